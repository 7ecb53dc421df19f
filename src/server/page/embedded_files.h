// The files of the page at `/`, which the build puts into the program (cmake/EmbedFiles.cmake).
#pragma once

#include <cstddef>
#include <span>

namespace kinora::server {

struct EmbeddedFile {
  const char* name;
  const unsigned char* bytes;
  size_t size;
};

std::span<const EmbeddedFile> embedded_files();

}  // namespace kinora::server

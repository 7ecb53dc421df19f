// The folder of one thing that a library keeps: a video, a saved memory. Held by the library and by
// everybody who reads the thing; the last of them removes what was deleted meanwhile.
#pragma once

#include <atomic>
#include <filesystem>
#include <string>

#include "base/error.h"

namespace kinora::server {

struct KeptFolder {
  std::string folder;
  std::atomic<bool> deleted = false;

  ~KeptFolder() {
    std::error_code ignored;
    if (deleted) std::filesystem::remove_all(folder, ignored);
  }
};

// The folder of a whole library, made where it is missing.
inline void make_library_folder(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    throw Error(ErrorKind::resource,
                directory + ": this folder cannot be made: " + error.message());
  }
}

}  // namespace kinora::server

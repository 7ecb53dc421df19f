// The folder of one thing that a library keeps: a video, a saved memory. Held by the library and by
// everybody who reads the thing; the last of them removes what was deleted meanwhile.
#pragma once

#include <atomic>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "base/json/json_depth.h"

namespace kinora::server {

struct KeptFolder {
  std::string folder;
  std::atomic<bool> deleted = false;

  ~KeptFolder() {
    std::error_code ignored;
    if (deleted) std::filesystem::remove_all(folder, ignored);
  }
};

// What a library wrote down about a thing. Throws where it is damaged.
inline nlohmann::json read_about(const std::string& path) {
  constexpr size_t most_bytes = 1 << 20;
  const std::string text = real_files().read(path, most_bytes);
  if (json_nests_too_deeply(text))
    throw Error(ErrorKind::bad_input, path + ": is nested too deeply");
  return nlohmann::json::parse(text);
}

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

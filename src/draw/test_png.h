// Reads pictures back, for the tests.
#pragma once

#include <png.h>

#include <string>

#include "base/error.h"
#include "base/file.h"
#include "draw/image.h"

namespace kinora::testing {

inline Image read_png(const std::string& path) {
  const std::string bytes = real_files().read(path);
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  if (png_image_begin_read_from_memory(&png, bytes.data(), bytes.size()) == 0) {
    throw Error(ErrorKind::bad_input, path + ": " + png.message);
  }
  png.format = PNG_FORMAT_RGB;
  Image image(static_cast<int>(png.width), static_cast<int>(png.height));
  if (png_image_finish_read(&png, nullptr, image.row(0), 0, nullptr) == 0) {
    throw Error(ErrorKind::bad_input, path + ": " + png.message);
  }
  return image;
}

}  // namespace kinora::testing

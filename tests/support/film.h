// A folder of random pictures: the simplest video that needs no encoder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/random.h"
#include "base/tensor.h"

namespace kinora::testing {

inline void write_picture(const std::string& path, ConstTensorView pixels) {  // u8 [h, w, 3]
  std::ofstream out(path, std::ios::binary);
  out << "P6\n" << pixels.size(1) << " " << pixels.size(0) << "\n255\n";
  out.write(reinterpret_cast<const char*>(pixels.raw()), pixels.bytes());
}

// Makes the folder and fills it. Returns its path.
inline std::string write_film(const std::string& path, Random& random, int frames,
                              int64_t height = 60, int64_t width = 80) {
  std::filesystem::create_directory(path);
  for (int i = 0; i < frames; ++i) {
    Tensor picture(DType::u8, {height, width, 3});
    for (int64_t k = 0; k < picture.elements(); ++k) {
      picture.data<uint8_t>()[k] = static_cast<uint8_t>(random.next());
    }
    write_picture(path + "/" + std::to_string(1000 + i) + ".ppm", picture);
  }
  return path;
}

}  // namespace kinora::testing

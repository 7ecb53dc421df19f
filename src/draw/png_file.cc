#include "draw/png_file.h"

#include <png.h>

#include "base/error.h"
#include "base/file.h"

namespace kinora {
namespace {

// libpng leaves by longjmp unless the error handler throws; it is C compiled with unwind tables on
// the platforms we build for, so the exception passes through it.
[[noreturn]] void on_error(png_structp, png_const_charp message) {
  throw Error(ErrorKind::bad_input, std::string("PNG: ") + message);
}
void on_warning(png_structp, png_const_charp) {}

class Writer {
 public:
  Writer() : png_(png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, on_error, on_warning)) {
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
    if (info_ == nullptr) {
      png_destroy_write_struct(&png_, &info_);
      throw Error(ErrorKind::resource, "not enough memory to write a PNG");
    }
  }
  ~Writer() { png_destroy_write_struct(&png_, &info_); }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  std::string write(const uint8_t* rgb, int width, int height, size_t stride, int level) {
    std::string bytes;
    png_set_write_fn(
        png_, &bytes,
        [](png_structp png, png_bytep data, size_t size) {
          static_cast<std::string*>(png_get_io_ptr(png))
              ->append(reinterpret_cast<const char*>(data), size);
        },
        [](png_structp) {});
    png_set_compression_level(png_, level);
    png_set_IHDR(png_, info_, static_cast<png_uint_32>(width), static_cast<png_uint_32>(height), 8,
                 PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
                 PNG_FILTER_TYPE_DEFAULT);
    png_write_info(png_, info_);
    for (int y = 0; y < height; ++y) png_write_row(png_, rgb + static_cast<size_t>(y) * stride);
    png_write_end(png_, info_);
    return bytes;
  }

 private:
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
};

}  // namespace

std::string encode_png(const uint8_t* rgb, int width, int height, size_t stride, int level) {
  if (width < 1 || height < 1)
    throw Error(ErrorKind::usage, "a PNG needs at least one pixel, not " + std::to_string(width) +
                                      " × " + std::to_string(height));
  return Writer().write(rgb, width, height, stride, level);
}

std::string encode_png(const Image& image, int level) {
  return encode_png(image.pixels().data(), image.width(), image.height(),
                    static_cast<size_t>(image.width()) * 3, level);
}

void write_png(const std::string& path, const Image& image) {
  real_files().write(path, encode_png(image));
}

}  // namespace kinora

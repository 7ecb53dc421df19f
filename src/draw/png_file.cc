#include "draw/png_file.h"

#include <png.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

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

class Reader {
 public:
  explicit Reader(std::string_view bytes)
      : rest_(bytes),
        png_(png_create_read_struct(PNG_LIBPNG_VER_STRING, nullptr, on_error, on_warning)) {
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
    if (info_ == nullptr) {
      png_destroy_read_struct(&png_, &info_, nullptr);
      throw Error(ErrorKind::resource, "not enough memory to read a PNG");
    }
  }
  ~Reader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  Image read(int64_t max_pixels) {
    png_set_read_fn(png_, &rest_, [](png_structp png, png_bytep data, size_t size) {
      auto& rest = *static_cast<std::string_view*>(png_get_io_ptr(png));
      if (size > rest.size()) png_error(png, "the file ends early");
      std::memcpy(data, rest.data(), size);
      rest.remove_prefix(size);
    });
    png_set_user_limits(png_, 32768, 32768);
    png_set_chunk_malloc_max(png_, 8 << 20);
    png_read_info(png_, info_);
    const auto width = static_cast<int>(png_get_image_width(png_, info_));
    const auto height = static_cast<int>(png_get_image_height(png_, info_));
    if (static_cast<int64_t>(width) * height > max_pixels)
      throw Error(ErrorKind::resource,
                  "PNG: " + std::to_string(width) + " × " + std::to_string(height) +
                      " pixels are more than the limit of " + std::to_string(max_pixels));
    png_set_expand(png_);
    png_set_strip_16(png_);
    png_set_gray_to_rgb(png_);
    png_set_add_alpha(png_, 0xff, PNG_FILLER_AFTER);
    const int passes = png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    const auto stride = static_cast<size_t>(width) * 4;
    if (png_get_rowbytes(png_, info_) != stride) png_error(png_, "unexpected row size");
    std::vector<uint8_t> pixels(stride * static_cast<size_t>(height));
    for (int pass = 0; pass < passes; ++pass)
      for (int y = 0; y < height; ++y)
        png_read_row(png_, pixels.data() + static_cast<size_t>(y) * stride, nullptr);
    png_read_end(png_, nullptr);

    Image image(width, height);
    for (int y = 0; y < height; ++y) {
      const uint8_t* from = pixels.data() + static_cast<size_t>(y) * stride;
      uint8_t* to = image.row(y);
      for (int x = 0; x < width; ++x)
        for (int c = 0; c < 3; ++c)
          to[3 * x + c] = static_cast<uint8_t>((from[4 * x + c] * from[4 * x + 3] + 127) / 255);
    }
    return image;
  }

 private:
  std::string_view rest_;
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

Image decode_png(std::string_view bytes, int64_t max_pixels) {
  return Reader(bytes).read(max_pixels);
}

void write_png(const std::string& path, const Image& image) {
  real_files().write(path, encode_png(image));
}

Image read_png(const std::string& path) { return decode_png(real_files().read(path)); }

}  // namespace kinora

#include "video/convert/convert.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "ops/resize_axis.h"
#include "support/random_data.h"
#include "video/convert/convert_rows.h"
#include "video/ffmpeg_handles.h"

extern "C" {
#include <libavutil/display.h>
#include <libavutil/imgutils.h>
}

namespace kinora {
namespace {

using Pixels = std::vector<uint8_t>;

// A frame of random samples. Planes are filled byte by byte, then samples are cut to their depth.
FramePtr random_frame(Random& random, AVPixelFormat format, int width, int height) {
  FramePtr frame = make_frame();
  frame->format = format;
  frame->width = width;
  frame->height = height;
  EXPECT_GE(av_frame_get_buffer(frame.get(), 0), 0);
  for (const AVBufferRef* buffer : frame->buf) {
    if (buffer == nullptr) continue;
    for (size_t i = 0; i < buffer->size; ++i)
      buffer->data[i] = static_cast<uint8_t>(random.below(256));
  }
  const AVPixFmtDescriptor* description = av_pix_fmt_desc_get(format);
  std::vector<uint16_t> line(static_cast<size_t>(width));
  if ((description->flags & AV_PIX_FMT_FLAG_PAL) != 0) return frame;
  for (int c = 0; c < description->nb_components; ++c) {
    const bool chroma = (c == 1 || c == 2) && (description->flags & AV_PIX_FMT_FLAG_RGB) == 0;
    const int shift_x = chroma ? description->log2_chroma_w : 0;
    const int shift_y = chroma ? description->log2_chroma_h : 0;
    const int columns = (width + (1 << shift_x) - 1) >> shift_x;
    const int rows = (height + (1 << shift_y) - 1) >> shift_y;
    for (int y = 0; y < rows; ++y) {
      for (int x = 0; x < columns; ++x)
        line[static_cast<size_t>(x)] =
            static_cast<uint16_t>(random.below(int64_t{1} << description->comp[c].depth));
      // Only ones are written over zeros by this function, so the packed formats start from zero.
      if (c == 0 && y == 0)
        for (const AVBufferRef* buffer : frame->buf)
          if (buffer != nullptr) std::fill_n(buffer->data, buffer->size, uint8_t{0});
      av_write_image_line(line.data(), frame->data, frame->linesize, description, 0, y, c, columns);
    }
  }
  return frame;
}

struct Matrix {
  AVColorSpace tag;
  double kr, kb;
};

constexpr Matrix matrices[] = {{AVCOL_SPC_SMPTE170M, 0.299, 0.114},
                               {AVCOL_SPC_BT470BG, 0.299, 0.114},
                               {AVCOL_SPC_BT709, 0.2126, 0.0722},
                               {AVCOL_SPC_BT2020_NCL, 0.2627, 0.0593},
                               {AVCOL_SPC_SMPTE240M, 0.212, 0.087}};

uint8_t level(double value) {
  return static_cast<uint8_t>(std::clamp(std::floor(value + 0.5), 0.0, 255.0));
}

// The picture at its own size in double precision, every sample read by FFmpeg's own function.
Pixels reference_rgb(const AVFrame& frame, double kr, double kb, bool full) {
  const auto* description = av_pix_fmt_desc_get(static_cast<AVPixelFormat>(frame.format));
  const bool rgb = (description->flags & AV_PIX_FMT_FLAG_RGB) != 0;
  const bool palette = (description->flags & AV_PIX_FMT_FLAG_PAL) != 0;
  const auto sample = [&](int x, int y, int c) {
    const bool chroma = (c == 1 || c == 2) && !rgb && !palette;
    uint16_t value = 0;
    const auto** data = const_cast<const uint8_t**>(frame.data);
    av_read_image_line(&value, data, frame.linesize, description,
                       chroma ? x >> description->log2_chroma_w : x,
                       chroma ? y >> description->log2_chroma_h : y, c, 1, 0);
    return static_cast<double>(value);
  };
  Pixels pixels;
  for (int y = 0; y < frame.height; ++y) {
    for (int x = 0; x < frame.width; ++x) {
      if (palette) {
        const auto* colours = reinterpret_cast<const uint32_t*>(frame.data[1]);
        const uint32_t colour = colours[static_cast<int>(sample(x, y, 0))];
        for (const int shift : {16, 8, 0}) pixels.push_back(static_cast<uint8_t>(colour >> shift));
        continue;
      }
      if (rgb) {
        for (int c = 0; c < 3; ++c)
          pixels.push_back(level(sample(x, y, c) * 255 / ((1 << description->comp[c].depth) - 1)));
        continue;
      }
      const int depth = description->comp[0].depth;
      const double unit = std::ldexp(1.0, depth - 8), top = std::ldexp(1.0, depth) - 1;
      const double luma = full ? sample(x, y, 0) / top : (sample(x, y, 0) / unit - 16) / 219;
      double u = 0, v = 0;
      if (description->nb_components >= 3) {
        u = full ? (sample(x, y, 1) - 128 * unit) / top : (sample(x, y, 1) / unit - 128) / 224;
        v = full ? (sample(x, y, 2) - 128 * unit) / top : (sample(x, y, 2) / unit - 128) / 224;
      }
      const double red = luma + 2 * (1 - kr) * v;
      const double blue = luma + 2 * (1 - kb) * u;
      const double green = (luma - kr * red - kb * blue) / (1 - kr - kb);
      for (const double value : {red, green, blue}) pixels.push_back(level(value * 255));
    }
  }
  return pixels;
}

Pixels reference_resize(const Pixels& source, int width, int height, int target_width,
                        int target_height, ResizeFilter filter) {
  const auto pass = [&](const Pixels& from, int lines, int line_step, int pixel_step, int size,
                        int target_size, int out_line_step, int out_pixel_step) {
    const auto taps = real_resize_taps(filter, size, target_size);
    Pixels out(static_cast<size_t>(lines * target_size * 3));
    for (int line = 0; line < lines; ++line)
      for (int i = 0; i < target_size; ++i)
        for (int c = 0; c < 3; ++c) {
          const RealTaps& pixel = taps[static_cast<size_t>(i)];
          double sum = 0;
          for (size_t j = 0; j < pixel.weights.size(); ++j)
            sum += pixel.weights[j] *
                   from[static_cast<size_t>(line * line_step +
                                            (pixel.begin + static_cast<int>(j)) * pixel_step + c)];
          out[static_cast<size_t>(line * out_line_step + i * out_pixel_step + c)] = level(sum);
        }
    return out;
  };
  const Pixels wide = pass(source, height, width * 3, 3, width, target_width, target_width * 3, 3);
  return pass(wide, target_width, 3, target_width * 3, height, target_height, 3, target_width * 3);
}

Pixels converted(FrameConverter& converter, const AVFrame& frame, int width, int height) {
  Pixels out(static_cast<size_t>(width * height * 3));
  converter.convert(frame, TensorView::of(out.data(), {height, width, 3}));
  return out;
}

// Differences in levels. The largest is held against a bound picture by picture, the mean over all
// pictures of a test, because a single pixel may well round the other way.
class Differences {
 public:
  void add(const Pixels& ours, const Pixels& expected, int bound) {
    ASSERT_EQ(ours.size(), expected.size());
    int largest = 0;
    for (size_t i = 0; i < ours.size(); ++i) {
      largest = std::max(largest, std::abs(ours[i] - expected[i]));
      sum_ += std::abs(ours[i] - expected[i]);
    }
    count_ += static_cast<double>(ours.size());
    EXPECT_LE(largest, bound);
  }
  double mean() const { return sum_ / count_; }

 private:
  double sum_ = 0;
  double count_ = 0;
};

std::vector<AVPixelFormat> directly_read_formats() {
  std::vector<AVPixelFormat> formats;
  const AVPixFmtDescriptor* description = nullptr;
  while ((description = av_pix_fmt_desc_next(description)) != nullptr) {
    const AVPixelFormat format = av_pix_fmt_desc_get_id(description);
    if (RgbRowReader::reads(format)) formats.push_back(format);
  }
  return formats;
}

// Every format that is read without swscale, at its own size: every sample lies where FFmpeg says
// and the colour is right to the last rounding.
TEST(Convert, ReadsEveryFormat) {
  KINORA_FRESH_RANDOM(random);
  Differences differences;
  const auto formats = directly_read_formats();
  EXPECT_GE(formats.size(), 150u);
  for (const AVPixelFormat format : formats) {
    for (const bool full : {false, true}) {
      const Matrix& matrix = matrices[random.below(std::size(matrices))];
      const int width = static_cast<int>(1 + random.below(70));
      const int height = static_cast<int>(1 + random.below(20));
      SCOPED_TRACE(std::string(av_get_pix_fmt_name(format)) + " " + std::to_string(width) + "x" +
                   std::to_string(height) + (full ? " full" : " limited") + " matrix " +
                   av_color_space_name(matrix.tag));
      const FramePtr frame = random_frame(random, format, width, height);
      frame->colorspace = matrix.tag;
      frame->color_range = full ? AVCOL_RANGE_JPEG : AVCOL_RANGE_MPEG;
      FrameConverter converter({width, height, ResizeFilter::bicubic});
      differences.add(converted(converter, *frame, width, height),
                      reference_rgb(*frame, matrix.kr, matrix.kb, full), 1);
    }
  }
  EXPECT_LE(differences.mean(), 0.01);
}

// Files may hold numbers of matrices and ranges that have no name: as if they said nothing.
TEST(Convert, UnknownMatricesAndRangesAreAsIfUnsaid) {
  KINORA_FRESH_RANDOM(random);
  const FramePtr frame = random_frame(random, AV_PIX_FMT_YUV420P, 33, 17);
  frame->colorspace = AVCOL_SPC_UNSPECIFIED;
  frame->color_range = AVCOL_RANGE_MPEG;
  FrameConverter converter({33, 17, ResizeFilter::bicubic});
  const Pixels expected = converted(converter, *frame, 33, 17);
  for (const int number : {65, -1, 1 << 30}) {
    std::memcpy(&frame->colorspace, &number, sizeof(number));
    std::memcpy(&frame->color_range, &number, sizeof(number));
    EXPECT_EQ(converted(converter, *frame, 33, 17), expected) << number;
  }
}

// The common formats through resize and all eight orientations.
TEST(Convert, ResizesAndTurns) {
  KINORA_FRESH_RANDOM(random);
  Differences differences;
  const AVPixelFormat formats[] = {AV_PIX_FMT_YUV420P, AV_PIX_FMT_NV12,    AV_PIX_FMT_YUV420P10LE,
                                   AV_PIX_FMT_P010LE,  AV_PIX_FMT_YUV422P, AV_PIX_FMT_YUV444P12LE,
                                   AV_PIX_FMT_YUYV422, AV_PIX_FMT_GRAY8,   AV_PIX_FMT_RGB24,
                                   AV_PIX_FMT_BGRA,    AV_PIX_FMT_GBRP,    AV_PIX_FMT_PAL8};
  const int sides[] = {1, 2, 17, 63, 65, 127, 129};
  for (const AVPixelFormat format : formats) {
    for (int trial = 0; trial < 8; ++trial) {
      const auto side = [&] { return sides[random.below(std::size(sides))]; };
      const int width = side(), height = side(), target_width = side(), target_height = side();
      const Matrix& matrix = matrices[random.below(std::size(matrices))];
      const bool full = random.below(2) == 0;
      const Orientation orientation = {(trial & 1) != 0, (trial & 2) != 0, (trial & 4) != 0};
      SCOPED_TRACE(std::string(av_get_pix_fmt_name(format)) + " " + std::to_string(width) + "x" +
                   std::to_string(height) + " to " + std::to_string(target_width) + "x" +
                   std::to_string(target_height) + " orientation " + std::to_string(trial));
      const FramePtr frame = random_frame(random, format, width, height);
      frame->colorspace = matrix.tag;
      frame->color_range = full ? AVCOL_RANGE_JPEG : AVCOL_RANGE_MPEG;

      const int resized_width = orientation.transposed ? target_height : target_width;
      const int resized_height = orientation.transposed ? target_width : target_height;
      const Pixels upright =
          reference_resize(reference_rgb(*frame, matrix.kr, matrix.kb, full), width, height,
                           resized_width, resized_height, ResizeFilter::bicubic);
      Pixels expected(upright.size());
      for (int y = 0; y < resized_height; ++y)
        for (int x = 0; x < resized_width; ++x) {
          int to_x = orientation.transposed ? y : x, to_y = orientation.transposed ? x : y;
          if (orientation.mirrored_x) to_x = target_width - 1 - to_x;
          if (orientation.mirrored_y) to_y = target_height - 1 - to_y;
          std::copy_n(upright.begin() + (y * resized_width + x) * 3, 3,
                      expected.begin() + (to_y * target_width + to_x) * 3);
        }
      FrameConverter converter({target_width, target_height, ResizeFilter::bicubic}, orientation);
      differences.add(converted(converter, *frame, target_width, target_height), expected, 3);
    }
  }
  EXPECT_LE(differences.mean(), 0.05);
}

TEST(Convert, DoesNotDependOnTheFramesBefore) {
  KINORA_FRESH_RANDOM(random);
  const AVPixelFormat formats[] = {
      AV_PIX_FMT_YUV420P, AV_PIX_FMT_YUV420P10LE, AV_PIX_FMT_RGB565LE,   AV_PIX_FMT_MONOBLACK,
      AV_PIX_FMT_GRAY8,   AV_PIX_FMT_NV12,        AV_PIX_FMT_BAYER_RGGB8};
  FrameConverter used({41, 27, ResizeFilter::bicubic});
  for (int trial = 0; trial < 60; ++trial) {
    const int width = static_cast<int>(2 + 2 * random.below(60));
    const int height = static_cast<int>(2 + 2 * random.below(40));
    const FramePtr frame =
        random_frame(random, formats[random.below(std::size(formats))], width, height);
    frame->color_range = random.below(2) == 0 ? AVCOL_RANGE_JPEG : AVCOL_RANGE_MPEG;
    FrameConverter fresh({41, 27, ResizeFilter::bicubic});
    ASSERT_EQ(converted(used, *frame, 41, 27), converted(fresh, *frame, 41, 27));
  }
}

TEST(Convert, ExoticFormatsGoThroughSwscale) {
  KINORA_FRESH_RANDOM(random);
  ASSERT_FALSE(RgbRowReader::reads(AV_PIX_FMT_MONOWHITE));
  const FramePtr frame = random_frame(random, AV_PIX_FMT_MONOWHITE, 40, 10);
  FrameConverter converter({40, 10, ResizeFilter::bicubic});
  const Pixels pixels = converted(converter, *frame, 40, 10);
  for (int y = 0; y < 10; ++y)
    for (int x = 0; x < 40; ++x) {
      const bool black = (frame->data[0][y * frame->linesize[0] + x / 8] >> (7 - x % 8) & 1) != 0;
      ASSERT_EQ(pixels[static_cast<size_t>((y * 40 + x) * 3)], black ? 0 : 255);
    }
}

TEST(Convert, UntaggedPicturesAreBt601WhateverTheirSize) {
  KINORA_FRESH_RANDOM(random);
  Differences differences;
  for (const int height : {576, 720, 2160}) {
    const FramePtr frame = random_frame(random, AV_PIX_FMT_YUV420P, 64, height);
    FrameConverter converter({64, height, ResizeFilter::bicubic});
    differences.add(converted(converter, *frame, 64, height),
                    reference_rgb(*frame, matrices[0].kr, matrices[0].kb, false), 1);
  }
  EXPECT_LE(differences.mean(), 0.02);
}

TEST(Convert, BottomUpPicturesAndTightBuffers) {
  KINORA_FRESH_RANDOM(random);
  Differences differences;
  // No byte more than the picture, so that the address sanitizer sees any read past it.
  constexpr int width = 37, height = 11;
  Pixels data(static_cast<size_t>(width * height * 3));
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random.below(256));
  const FramePtr frame = make_frame();
  frame->format = AV_PIX_FMT_YUV444P;
  frame->width = width;
  frame->height = height;
  for (int c = 0; c < 3; ++c) {
    frame->data[c] = data.data() + (c + 1) * width * height - width;
    frame->linesize[c] = -width;
  }
  FrameConverter converter({width, height, ResizeFilter::bicubic});
  differences.add(converted(converter, *frame, width, height),
                  reference_rgb(*frame, 0.299, 0.114, false), 1);
  EXPECT_LE(differences.mean(), 0.05);
}

TEST(Convert, OrientationFromDisplayMatrix) {
  EXPECT_EQ(Orientation::from_display_matrix(nullptr), Orientation{});
  for (int turns = 0; turns < 4; ++turns)
    for (const bool mirrored : {false, true}) {
      int32_t matrix[9];
      av_display_rotation_set(matrix, 90.0 * turns);  // clockwise
      if (mirrored) av_display_matrix_flip(matrix, 1, 0);
      const Orientation orientation = Orientation::from_display_matrix(matrix);
      if (!mirrored) {
        EXPECT_EQ(orientation, Orientation::turned(turns));
      }
      // The matrix says where the corner (1, 0) of the stored picture goes, relative to (0, 0).
      const bool to_right = matrix[0] > 0, to_left = matrix[0] < 0;
      if (to_right || to_left) {
        EXPECT_EQ(orientation.mirrored_x, to_left);
      }
      const bool down = matrix[1] > 0, up = matrix[1] < 0;
      if (down || up) {
        EXPECT_EQ(orientation.mirrored_y, up);
      }
      EXPECT_EQ(orientation.transposed, turns % 2 == 1);
    }
}

TEST(Convert, RefusesWhatIsNoPicture) {
  FrameConverter converter({8, 8, ResizeFilter::bicubic});
  Pixels out(8 * 8 * 3);
  const TensorView view = TensorView::of(out.data(), {8, 8, 3});
  const FramePtr empty = make_frame();
  EXPECT_THROW(converter.convert(*empty, view), Error);
  KINORA_FRESH_RANDOM(random);
  const FramePtr missing = random_frame(random, AV_PIX_FMT_YUV420P, 16, 16);
  missing->data[2] = nullptr;
  EXPECT_THROW(converter.convert(*missing, view), Error);
  const FramePtr hardware = random_frame(random, AV_PIX_FMT_YUV420P, 16, 16);
  hardware->format = AV_PIX_FMT_VAAPI;
  EXPECT_THROW(converter.convert(*hardware, view), Error);
  const FramePtr good = random_frame(random, AV_PIX_FMT_YUV420P, 16, 16);
  EXPECT_THROW(converter.convert(*good, TensorView::of(out.data(), {8, 4, 6})), Error);
  EXPECT_THROW(FrameConverter({0, 8, ResizeFilter::bicubic}), Error);
}

}  // namespace
}  // namespace kinora

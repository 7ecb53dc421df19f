// A decoded picture as rows of planar 8-bit RGB, at its own size. Used by video/convert;
// video/convert/convert.h defines the colours.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "video/convert/convert_kernels.h"

extern "C" {
#include <libavutil/frame.h>
#include <libavutil/pixdesc.h>
}

namespace kinora {

class RgbRowReader {
 public:
  // Whether rows of this format can be read; swscale must help with the others.
  static bool reads(AVPixelFormat format);

  // Prepares for a frame that must stay alive while rows are read. `smooth_chroma`: subsampled
  // chroma is interpolated instead of repeated.
  void start(const AVFrame& frame, bool smooth_chroma);

  // Row y; writes up to 15 bytes past the width.
  void read(int y, uint8_t* red, uint8_t* green, uint8_t* blue);

 private:
  enum class Kind { yuv, gray, palette, rgb };

  // What the tables and factors depend on; they are made anew only when it changes.
  struct Setup {
    int format = AV_PIX_FMT_NONE;
    bool full_range = false;
    double kr = 0;
    double kb = 0;
    bool operator==(const Setup&) const = default;
  };

  void prepare(const Setup& setup);
  void read_yuv(int y, uint8_t* red, uint8_t* green, uint8_t* blue);
  template <typename Sample>
  const Sample* component_row(int component, int y, int log2_repeat, std::vector<Sample>& scratch);
  // Row y of a chroma component at full width, with the triangle filter of libjpeg …
  const uint8_t* smooth_row(int component, int y, std::vector<uint8_t>& scratch);
  // … and with that of libwebp, which rounds twice.
  const uint8_t* webp_row(int component, int y, std::vector<uint8_t>& scratch);
  // The row of chroma that row y lies in, and the next one on the side that it is nearer to.
  std::pair<const uint8_t*, const uint8_t*> chroma_rows(int component, int y);
  // Row y of a component through table_.
  void look_up(int component, int y, uint8_t* out);

  const AVFrame* frame_ = nullptr;
  const AVPixFmtDescriptor* description_ = nullptr;
  Setup setup_;
  Kind kind_ = Kind::yuv;
  bool smooth_ = false;
  bool webp_ = false;  // as well
  YuvToRgb factors_;
  std::vector<uint8_t> table_;  // of a sample: its level
  std::vector<uint8_t> bytes_[3];
  std::vector<uint8_t> near_, far_;  // rows of chroma that one is made from
  std::vector<int> sums_;
  std::vector<uint16_t> words_[3];
};

}  // namespace kinora

#include "video/convert/convert_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "video/ffmpeg_compat.h"

namespace kinora {
namespace {

bool has_flag(const AVPixFmtDescriptor& description, uint64_t flag) {
  return (description.flags & flag) != 0;
}

bool is_full_range(const AVFrame& frame, bool gray) {
  const int range = raw_value(frame.color_range);
  if (range != AVCOL_RANGE_UNSPECIFIED) return range == AVCOL_RANGE_JPEG;
  switch (frame.format) {
    case AV_PIX_FMT_YUVJ420P:
    case AV_PIX_FMT_YUVJ422P:
    case AV_PIX_FMT_YUVJ444P:
    case AV_PIX_FMT_YUVJ440P:
    case AV_PIX_FMT_YUVJ411P:
      return true;
    default:
      return gray;  // as swscale has it
  }
}

struct LumaWeights {
  double red, blue;
};

constexpr LumaWeights bt601 = {0.299, 0.114};

LumaWeights luma_weights(const AVFrame& frame) {
  constexpr LumaWeights bt709 = {0.2126, 0.0722};
  switch (raw_value(frame.colorspace)) {
    case AVCOL_SPC_BT709:
      return bt709;
    case AVCOL_SPC_FCC:
      return {0.30, 0.11};
    case AVCOL_SPC_BT470BG:
    case AVCOL_SPC_SMPTE170M:
      return bt601;
    case AVCOL_SPC_SMPTE240M:
      return {0.212, 0.087};
    case AVCOL_SPC_BT2020_NCL:
    case AVCOL_SPC_BT2020_CL:
      return {0.2627, 0.0593};
    default:
      return bt601;
  }
}

// One sample in memory, as pixdesc.h lays it out.
struct SampleReader {
  const AVComponentDescriptor& component;
  bool big_endian;
  bool wide;  // the sample spans more than 8 bits of memory

  SampleReader(const AVPixFmtDescriptor& description, int index)
      : component(description.comp[index]),
        big_endian(has_flag(description, AV_PIX_FMT_FLAG_BE)),
        wide(component.shift + component.depth > 8) {}

  const uint8_t* row(const AVFrame& frame, int y) const {
    const int plane = component.plane;
    const uint8_t* start =
        frame.data[plane] + static_cast<ptrdiff_t>(y) * frame.linesize[plane] + component.offset;
    return !wide && big_endian ? start + 1 : start;
  }
  unsigned at(const uint8_t* sample) const {
    const unsigned raw = !wide        ? sample[0]
                         : big_endian ? static_cast<unsigned>(sample[0] << 8 | sample[1])
                                      : static_cast<unsigned>(sample[1] << 8 | sample[0]);
    return (raw >> component.shift) & ((1u << component.depth) - 1);
  }
};

// BT.601 in limited range as libwebp computes it: factors in 2^-14, sums in 2^-6, cut off at the
// end instead of rounded.
void webp_to_rgb(const uint8_t* luma, const uint8_t* u, const uint8_t* v, int width, uint8_t* red,
                 uint8_t* green, uint8_t* blue) {
  const auto times = [](int value, int factor) { return (value * factor) >> 8; };
  const auto level = [](int sum) { return static_cast<uint8_t>(std::clamp(sum >> 6, 0, 255)); };
  for (int x = 0; x < width; ++x) {
    const int y = times(luma[x], 19077);
    red[x] = level(y + times(v[x], 26149) - 14234);
    green[x] = level(y - times(u[x], 6419) - times(v[x], 13320) + 8708);
    blue[x] = level(y + times(u[x], 33050) - 17685);
  }
}

int chroma_shift(int component, int log2_chroma) {
  return component == 1 || component == 2 ? log2_chroma : 0;
}

}  // namespace

bool RgbRowReader::reads(AVPixelFormat format) {
  const AVPixFmtDescriptor* description = av_pix_fmt_desc_get(format);
  if (description == nullptr || description->nb_components == 0) return false;
  if (has_flag(*description, AV_PIX_FMT_FLAG_PAL)) return true;
  if (has_flag(*description, AV_PIX_FMT_FLAG_BITSTREAM | AV_PIX_FMT_FLAG_HWACCEL |
                                 AV_PIX_FMT_FLAG_FLOAT | AV_PIX_FMT_FLAG_BAYER))
    return false;
  // Not what their descriptions suggest: colours are XYZ, and samples lie at uneven distances.
  if (format == AV_PIX_FMT_XYZ12LE || format == AV_PIX_FMT_XYZ12BE ||
      format == AV_PIX_FMT_UYYVYY411)
    return false;
  for (int i = 0; i < description->nb_components; ++i) {
    const AVComponentDescriptor& component = description->comp[i];
    if (component.depth + component.shift > 16) return false;
    // Different depths in luma and chroma do not occur; a new format that has them is not ours.
    if (!has_flag(*description, AV_PIX_FMT_FLAG_RGB) && i < 3 && description->nb_components >= 3 &&
        component.depth != description->comp[0].depth)
      return false;
  }
  return true;
}

void RgbRowReader::start(const AVFrame& frame, bool smooth_chroma) {
  frame_ = &frame;
  description_ = av_pix_fmt_desc_get(static_cast<AVPixelFormat>(frame.format));
  const bool rgb = has_flag(*description_, AV_PIX_FMT_FLAG_RGB);
  kind_ = has_flag(*description_, AV_PIX_FMT_FLAG_PAL) ? Kind::palette
          : rgb                                        ? Kind::rgb
          : description_->nb_components <= 2           ? Kind::gray
                                                       : Kind::yuv;
  const AVComponentDescriptor& luma = description_->comp[0];
  smooth_ = smooth_chroma && kind_ == Kind::yuv && luma.depth + luma.shift <= 8 &&
            description_->log2_chroma_w <= 1 && description_->log2_chroma_h <= 1 &&
            description_->log2_chroma_w + description_->log2_chroma_h > 0;
  const LumaWeights weights = luma_weights(frame);
  webp_ = smooth_ && !is_full_range(frame, false) && weights.red == bt601.red &&
          description_->log2_chroma_w == 1 && description_->log2_chroma_h == 1;
  const Setup setup = {frame.format, is_full_range(frame, kind_ == Kind::gray), weights.red,
                       weights.blue};
  if (setup != setup_) prepare(setup);
}

void RgbRowReader::prepare(const Setup& setup) {
  setup_ = setup;
  const int depth = description_->comp[0].depth;
  if (kind_ == Kind::yuv) {
    factors_ =
        YuvToRgb::make(setup.kr, setup.kb, setup.full_range, depth, description_->comp[0].shift);
    return;
  }
  // Gray and odd depths of RGB. Components of RGB may differ in depth (565): each has a table of
  // its own, one behind the other.
  table_.clear();
  const int tables = kind_ == Kind::rgb ? 3 : kind_ == Kind::gray ? 1 : 0;
  for (int i = 0; i < tables; ++i) {
    const int bits = description_->comp[i].depth;
    const int count = 1 << bits;
    const bool limited = kind_ == Kind::gray && !setup.full_range;
    const double unit = std::ldexp(1.0, bits - 8);
    for (int sample = 0; sample < count; ++sample) {
      const double level =
          limited ? (sample - 16 * unit) * 255 / (219 * unit) : sample * 255.0 / (count - 1);
      table_.push_back(static_cast<uint8_t>(std::clamp(std::floor(level + 0.5), 0.0, 255.0)));
    }
  }
}

void RgbRowReader::look_up(int component, int y, uint8_t* out) {
  const SampleReader reader(*description_, component);
  const uint8_t* table = table_.data();
  if (kind_ == Kind::rgb)
    for (int i = 0; i < component; ++i) table += size_t{1} << description_->comp[i].depth;
  const uint8_t* sample = reader.row(*frame_, y);
  const int step = reader.component.step;
  for (int x = 0; x < frame_->width; ++x, sample += step) out[x] = table[reader.at(sample)];
}

// Row y of a component as consecutive samples (shifted as luma lies in memory), each repeated
// 2^log2_repeat times: in place when they already are, else gathered into `scratch`.
template <typename Sample>
const Sample* RgbRowReader::component_row(int component, int y, int log2_repeat,
                                          std::vector<Sample>& scratch) {
  const SampleReader reader(*description_, component);
  const uint8_t* row = reader.row(*frame_, y);
  const int step = reader.component.step;
  const bool native = sizeof(Sample) == 1 || !reader.big_endian;
  const bool aligned = reinterpret_cast<uintptr_t>(row) % sizeof(Sample) == 0;
  if (step == sizeof(Sample) && log2_repeat == 0 && native && aligned &&
      std::endian::native == std::endian::little)
    return reinterpret_cast<const Sample*>(row);
  const int log2_width = chroma_shift(component, description_->log2_chroma_w) - log2_repeat;
  const int width = (frame_->width + (1 << log2_width) - 1) >> log2_width;
  const int shift = description_->comp[0].shift;
  scratch.resize(static_cast<size_t>(width));
  Sample* out = scratch.data();
  if (sizeof(Sample) == 1 && log2_repeat == 0) {
    for (int x = 0; x < width; ++x) out[x] = row[static_cast<ptrdiff_t>(x) * step];
  } else {
    for (int x = 0; x < width; ++x) {
      const ptrdiff_t at = static_cast<ptrdiff_t>(x >> log2_repeat) * step;
      out[x] = static_cast<Sample>(reader.at(row + at) << shift);
    }
  }
  return scratch.data();
}

std::pair<const uint8_t*, const uint8_t*> RgbRowReader::chroma_rows(int component, int y) {
  const int tall = description_->log2_chroma_h;
  const int height = (frame_->height + tall) >> tall;
  const int own = y >> tall;
  const int other = tall == 0 ? own : std::clamp((y & 1) == 0 ? own - 1 : own + 1, 0, height - 1);
  return {component_row(component, own, 0, near_), component_row(component, other, 0, far_)};
}

// libjpeg's fancy upsampling, to the last bit: each sample lies in the middle of its pixels, and a
// pixel takes three quarters of the nearest one and a quarter of the next, in each direction.
const uint8_t* RgbRowReader::smooth_row(int component, int y, std::vector<uint8_t>& scratch) {
  const int wide = description_->log2_chroma_w, tall = description_->log2_chroma_h;
  const int width = (frame_->width + wide) >> wide;
  const bool upper = (y & 1) == 0;
  const auto [near, far] = chroma_rows(component, y);
  scratch.resize(2 * static_cast<size_t>(width));
  uint8_t* out = scratch.data();
  if (wide == 0) {
    const int rounding = upper ? 1 : 2;
    for (int x = 0; x < width; ++x) {
      out[x] = static_cast<uint8_t>((3 * near[x] + far[x] + rounding) >> 2);
    }
    return out;
  }
  if (width <= 2) {  // too narrow to interpolate, libjpeg finds
    for (int x = 0; x < 2 * width; ++x) out[x] = near[x / 2];
    return out;
  }
  // Sums of four; sixteen with the neighbours.
  sums_.resize(static_cast<size_t>(width));
  int* sums = sums_.data();
  for (int x = 0; x < width; ++x) sums[x] = tall != 0 ? 3 * near[x] + far[x] : near[x];
  const int shift = tall != 0 ? 4 : 2;
  const int left_rounding = tall != 0 ? 8 : 1, right_rounding = tall != 0 ? 7 : 2;
  for (int x = 0; x < width; ++x) {
    const int before = sums[std::max(x - 1, 0)], after = sums[std::min(x + 1, width - 1)];
    out[2 * x] = static_cast<uint8_t>((3 * sums[x] + before + left_rounding) >> shift);
    out[2 * x + 1] = static_cast<uint8_t>((3 * sums[x] + after + right_rounding) >> shift);
  }
  return out;
}

// Weights of 9, 3, 3 and 1 sixteenths as libwebp has them, to the last bit.
const uint8_t* RgbRowReader::webp_row(int component, int y, std::vector<uint8_t>& scratch) {
  const int width = (frame_->width + 1) / 2;
  const auto [near, far] = chroma_rows(component, y);
  scratch.resize(2 * static_cast<size_t>(width));
  uint8_t* out = scratch.data();
  const auto at_edge = [&](int x) { return static_cast<uint8_t>((3 * near[x] + far[x] + 2) >> 2); };
  const auto between = [&](int x, int next) {
    const int a = near[x], b = near[next], c = far[x], d = far[next];
    return static_cast<uint8_t>((((a + 3 * b + 3 * c + d + 8) >> 3) + a) >> 1);
  };
  out[0] = at_edge(0);
  for (int x = 1; x < width; ++x) {
    out[2 * x - 1] = between(x - 1, x);
    out[2 * x] = between(x, x - 1);
  }
  out[2 * width - 1] = at_edge(width - 1);
  return out;
}

void RgbRowReader::read_yuv(int y, uint8_t* red, uint8_t* green, uint8_t* blue) {
  if (smooth_) {
    const uint8_t* luma = component_row(0, y, 0, bytes_[0]);
    if (webp_) {
      const uint8_t* u = webp_row(1, y, bytes_[1]);
      const uint8_t* v = webp_row(2, y, bytes_[2]);
      webp_to_rgb(luma, u, v, frame_->width, red, green, blue);
      return;
    }
    const uint8_t* u = smooth_row(1, y, bytes_[1]);
    const uint8_t* v = smooth_row(2, y, bytes_[2]);
    yuv_row_to_rgb(factors_, luma, u, v, false, frame_->width, red, green, blue);
    return;
  }
  const int chroma_y = y >> description_->log2_chroma_h;
  const int log2_width = description_->log2_chroma_w;
  const bool half_chroma = log2_width == 1;
  const int repeat = half_chroma ? 0 : log2_width;
  const auto convert = [&](auto(&scratch)[3]) {
    const auto* luma = component_row(0, y, 0, scratch[0]);
    const auto* u = component_row(1, chroma_y, repeat, scratch[1]);
    const auto* v = component_row(2, chroma_y, repeat, scratch[2]);
    yuv_row_to_rgb(factors_, luma, u, v, half_chroma, frame_->width, red, green, blue);
  };
  if (description_->comp[0].depth + description_->comp[0].shift > 8)
    convert(words_);
  else
    convert(bytes_);
}

void RgbRowReader::read(int y, uint8_t* red, uint8_t* green, uint8_t* blue) {
  uint8_t* const out[3] = {red, green, blue};
  switch (kind_) {
    case Kind::yuv:
      read_yuv(y, red, green, blue);
      break;
    case Kind::gray:
      look_up(0, y, red);
      std::copy_n(red, frame_->width, green);
      std::copy_n(red, frame_->width, blue);
      break;
    case Kind::palette: {
      const uint8_t* row = frame_->data[0] + static_cast<ptrdiff_t>(y) * frame_->linesize[0];
      for (int x = 0; x < frame_->width; ++x) {
        uint32_t colour = 0;  // 0xAARRGGBB in the machine's order
        std::memcpy(&colour, frame_->data[1] + 4 * row[x], 4);
        red[x] = static_cast<uint8_t>(colour >> 16);
        green[x] = static_cast<uint8_t>(colour >> 8);
        blue[x] = static_cast<uint8_t>(colour);
      }
      break;
    }
    case Kind::rgb:
      for (int c = 0; c < 3; ++c) {
        const AVComponentDescriptor& component = description_->comp[c];
        if (component.depth == 8 && component.shift == 0) {
          const uint8_t* row = SampleReader(*description_, c).row(*frame_, y);
          const int step = component.step;
          for (int x = 0; x < frame_->width; ++x) out[c][x] = row[static_cast<ptrdiff_t>(x) * step];
        } else {
          look_up(c, y, out[c]);
        }
      }
      break;
  }
}

}  // namespace kinora

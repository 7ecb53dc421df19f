#include "video/convert/convert.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "ops/resize_kernels.h"
#include "ops/resize_rows.h"
#include "video/convert/convert_rows.h"
#include "video/ffmpeg_handles.h"

extern "C" {
#include <libavutil/frame.h>
#include <libavutil/pixdesc.h>
#include <libswscale/swscale.h>
}

namespace kinora {
namespace {

struct FreeScaler {
  void operator()(SwsContext* scaler) const { sws_freeContext(scaler); }
};

std::string format_name(int format) {
  const char* name = av_get_pix_fmt_name(static_cast<AVPixelFormat>(format));
  return name != nullptr ? name : "number " + std::to_string(format);
}

void check_frame(const AVFrame& frame) {
  if (frame.width < 1 || frame.height < 1 || frame.data[0] == nullptr)
    throw Error(ErrorKind::bad_input, "the decoder gave a picture without pixels");
  const AVPixFmtDescriptor* description =
      av_pix_fmt_desc_get(static_cast<AVPixelFormat>(frame.format));
  if (description == nullptr || (description->flags & AV_PIX_FMT_FLAG_HWACCEL) != 0)
    throw Error(ErrorKind::unsupported, "cannot convert pictures of the pixel format " +
                                            format_name(frame.format) + " to RGB");
  const int planes = av_pix_fmt_count_planes(static_cast<AVPixelFormat>(frame.format));
  for (int i = 0; i < planes; ++i)
    if (frame.data[i] == nullptr)
      throw Error(ErrorKind::bad_input, "the decoder gave a picture with a plane missing");
}

}  // namespace

Orientation Orientation::from_display_matrix(const int32_t* matrix) {
  if (matrix == nullptr) return {};
  // A stored point (x, y) is shown at (a x + c y, b x + d y), y downwards.
  const double a = matrix[0], b = matrix[1], c = matrix[3], d = matrix[4];
  if (std::abs(a) + std::abs(d) >= std::abs(b) + std::abs(c)) return {false, a < 0, d < 0};
  return {true, c < 0, b < 0};
}

Orientation Orientation::turned(int quarter_turns) {
  switch (((quarter_turns % 4) + 4) % 4) {
    case 1:
      return {true, true, false};
    case 2:
      return {false, true, true};
    case 3:
      return {true, false, true};
    default:
      return {};
  }
}

struct FrameConverter::State {
  TargetFrame target;
  Orientation orientation;

  RgbRowReader reader;
  std::shared_ptr<const ResizePlan> plan;
  std::unique_ptr<RowResizer> resizer;
  std::vector<uint8_t> rows;  // three planes of one row, when nothing is resized
  std::unique_ptr<SwsContext, FreeScaler> scaler;
  FramePtr rgb;  // what swscale made of an exotic format

  int resized_width() const { return orientation.transposed ? target.height : target.width; }
  int resized_height() const { return orientation.transposed ? target.width : target.height; }

  const AVFrame& readable(const AVFrame& frame);
  void write(int y, const RowResizer::Rows& row, const TensorView& out);
};

const AVFrame& FrameConverter::State::readable(const AVFrame& frame) {
  const auto format = static_cast<AVPixelFormat>(frame.format);
  if (RgbRowReader::reads(format)) return frame;
  scaler.reset(sws_getCachedContext(scaler.release(), frame.width, frame.height, format,
                                    frame.width, frame.height, AV_PIX_FMT_RGB24,
                                    SWS_BILINEAR | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INT, nullptr,
                                    nullptr, nullptr));
  if (!scaler)
    throw Error(ErrorKind::unsupported, "cannot convert pictures of the pixel format " +
                                            format_name(frame.format) + " to RGB");
  if (!rgb || rgb->width != frame.width || rgb->height != frame.height) {
    rgb = make_frame();
    rgb->format = AV_PIX_FMT_RGB24;
    rgb->width = frame.width;
    rgb->height = frame.height;
    if (av_frame_get_buffer(rgb.get(), 0) < 0) {
      rgb.reset();
      throw Error(ErrorKind::resource, "no memory for a decoded picture");
    }
  }
  if (sws_scale(scaler.get(), frame.data, frame.linesize, 0, frame.height, rgb->data,
                rgb->linesize) != frame.height)
    throw Error(ErrorKind::bad_input, "a picture of the pixel format " + format_name(frame.format) +
                                          " could not be converted");
  return *rgb;
}

// Puts row y of the resized picture where the orientation wants it.
void FrameConverter::State::write(int y, const RowResizer::Rows& row, const TensorView& out) {
  const int width = resized_width();
  const auto& [red, green, blue] = row.channel;
  if (!orientation.transposed && !orientation.mirrored_x) {
    pack_rgb(red, green, blue, width,
             out.row<uint8_t>(orientation.mirrored_y ? target.height - 1 - y : y));
    return;
  }
  // Pixel x of this row goes to first + x × step.
  uint8_t* first = nullptr;
  int64_t step = 0;
  if (orientation.transposed) {
    const int column = orientation.mirrored_x ? target.width - 1 - y : y;
    first = out.row<uint8_t>(orientation.mirrored_y ? target.height - 1 : 0) + 3 * column;
    step = orientation.mirrored_y ? -out.stride(0) : out.stride(0);
  } else {
    const int line = orientation.mirrored_y ? target.height - 1 - y : y;
    first = out.row<uint8_t>(line) + 3 * (target.width - 1);
    step = -3;
  }
  for (int x = 0; x < width; ++x, first += step) {
    first[0] = red[x];
    first[1] = green[x];
    first[2] = blue[x];
  }
}

FrameConverter::FrameConverter(const TargetFrame& target, const Orientation& orientation)
    : state_(std::make_unique<State>()) {
  if (target.width < 1 || target.height < 1)
    throw Error(ErrorKind::usage, "frames of " + std::to_string(target.width) + " × " +
                                      std::to_string(target.height) +
                                      " pixels were asked for; sides start at 1");
  state_->target = target;
  state_->orientation = orientation;
}

FrameConverter::~FrameConverter() = default;
FrameConverter::FrameConverter(FrameConverter&&) noexcept = default;
FrameConverter& FrameConverter::operator=(FrameConverter&&) noexcept = default;

void FrameConverter::convert(const AVFrame& frame, TensorView out) {
  State& state = *state_;
  const Shape expected = {state.target.height, state.target.width, 3};
  if (out.dtype() != DType::u8 || !(out.shape() == expected) || out.stride(1) != 3 ||
      !out.device().is_cpu())
    throw Error(ErrorKind::internal, "FrameConverter: the output must be u8 " +
                                         to_string(expected) + ", not " + to_string(out.shape()));
  check_frame(frame);
  const AVFrame& source = state.readable(frame);
  state.reader.start(source, state.target.smooth_chroma);
  const int width = state.resized_width();
  const int height = state.resized_height();

  if (source.width == width && source.height == height) {
    const size_t stride = static_cast<size_t>(width) + RowResizer::slack;
    state.rows.resize(3 * stride);
    const RowResizer::Rows row{
        {state.rows.data(), state.rows.data() + stride, state.rows.data() + 2 * stride}};
    for (int y = 0; y < height; ++y) {
      state.reader.read(y, row.channel[0], row.channel[1], row.channel[2]);
      state.write(y, row, out);
    }
    return;
  }
  if (!state.plan || state.plan->horizontal.source != source.width ||
      state.plan->vertical.source != source.height) {
    state.resizer.reset();
    state.plan = std::make_shared<const ResizePlan>(state.target.filter, source.width,
                                                    source.height, width, height);
    state.resizer = std::make_unique<RowResizer>(state.plan);
  }
  state.resizer->run(
      0, height,
      [&](int y, const RowResizer::Rows& row) {
        state.reader.read(y, row.channel[0], row.channel[1], row.channel[2]);
      },
      [&](int y, const RowResizer::Rows& row) { state.write(y, row, out); });
}

}  // namespace kinora

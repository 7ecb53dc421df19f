#include "cli/evidence_sheet.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "draw/contact_sheet.h"
#include "draw/png_file.h"
#include "draw/text.h"
#include "video/video.h"

namespace kinora::cli {
namespace {

constexpr int64_t longest_side = 320;

// "00:12:31"
std::string clock(double seconds) {
  const auto whole = static_cast<int64_t>(std::max(0.0, seconds));
  return fmt::format("{:02}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string span_text(const EvidenceSpan& span) {
  return fmt::format("[{}-{}]", clock(span.start), clock(std::ceil(span.end)));
}

std::string file_name(const InputInfo& input) {
  return std::filesystem::path(input.source).filename().string();
}

// Times of the frames that were looked at, of one span.
std::vector<double> times_within(const InputInfo& input, const EvidenceSpan& span) {
  std::vector<double> times;
  for (const double time : input.times) {
    if (time >= span.start && time < span.end) times.push_back(time);
  }
  return times;
}

FrameSize fitted(FrameSize source) {
  const double shrink =
      std::min(1.0, static_cast<double>(longest_side) /
                        static_cast<double>(std::max<int64_t>({1, source.width, source.height})));
  const auto side = [&](int64_t pixels) {
    return std::max<int64_t>(1, std::llround(static_cast<double>(pixels) * shrink));
  };
  return {side(source.width), side(source.height)};
}

}  // namespace

std::string evidence_text(const std::vector<EvidenceSpan>& evidence,
                          const std::vector<InputInfo>& inputs) {
  std::string text;
  for (const EvidenceSpan& span : evidence) {
    if (!text.empty()) text += ' ';
    if (inputs.size() > 1) text += file_name(inputs.at(span.input)) + ' ';
    text += span_text(span);
  }
  return text;
}

void draw_evidence(const std::string& path, const std::vector<EvidenceSpan>& evidence,
                   const std::vector<InputInfo>& inputs, const CancelToken& cancel) {
  int64_t frames = 0;
  for (const EvidenceSpan& span : evidence) {
    const InputInfo& input = inputs.at(span.input);
    if (input.source == "-") {
      throw Error(ErrorKind::usage, "frames of standard input cannot be read again to be drawn");
    }
    frames += std::ssize(times_within(input, span));
  }
  if (frames == 0) throw Error(ErrorKind::usage, "the answer rests on no frame of a video");
  std::optional<ContactSheet> sheet;
  FrameSize size;  // of all frames: that of the first
  for (const EvidenceSpan& span : evidence) {
    const InputInfo& input = inputs.at(span.input);
    OpenOptions open;
    open.cancel = cancel;
    const std::unique_ptr<Video> video = open_video(input.source, open);
    ReadOptions read;
    read.target_size = [&](FrameSize source, int64_t) { return sheet ? size : fitted(source); };
    read.cancel = cancel;
    FrameStream stream =
        video->read(video->sample(FrameChoice::at_times(times_within(input, span))), read);
    if (!sheet) {
      size = stream.size();
      sheet.emplace(frames, static_cast<int>(size.width), static_cast<int>(size.height),
                    evidence_text(evidence, inputs));
    }
    while (const auto group = stream.next()) {
      for (int64_t i = 0; i < group->frames(); ++i) {
        const ConstTensorView frame = ConstTensorView(group->pixels.view())[i];
        sheet->add(frame.data<uint8_t>(), static_cast<size_t>(frame.stride(0)),
                   time_label(group->times[static_cast<size_t>(i)]));
      }
    }
  }
  write_png(path, sheet->image());
}

}  // namespace kinora::cli

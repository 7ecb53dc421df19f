#include "video/source/subtitles.h"

#include <fmt/format.h>

extern "C" {
#include <libavutil/avstring.h>
#include <libavutil/mem.h>
}

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include "base/error.h"
#include "video/ffmpeg_compat.h"
#include "video/ffmpeg_handles.h"
#include "video/source/subtitle_decoder.h"

namespace kinora {
namespace {

constexpr int64_t max_bytes = int64_t{16} << 20;
constexpr size_t max_subtitles = size_t{1} << 18;
constexpr size_t probed_bytes = size_t{64} << 10;
constexpr int buffer_bytes = 4096;
constexpr std::string_view arrow = "-->";  // between the times of SubRip and WebVTT

// Demuxers of text files that hold nothing but subtitles. A video is not such a file, and neither
// are the formats that name other files.
constexpr const char* text_formats =
    "aqtitle,ass,jacosub,lrc,microdvd,mpl2,mpsub,pjs,realtext,sami,srt,stl,subviewer,subviewer1,"
    "tedcaptions,vplayer,webvtt";

// A format by the content alone. SubRip's demuxer looks for times in any text, so it also reads
// files that lack the numbers it is recognised by.
const AVInputFormat* find_format(std::string_view content) {
  std::string head(content.substr(0, probed_bytes));
  AVProbeData probe{};
  probe.filename = "";
  probe.buf_size = static_cast<int>(head.size());
  head.append(AVPROBE_PADDING_SIZE, '\0');
  probe.buf = reinterpret_cast<unsigned char*>(head.data());
  const AVInputFormat* format = av_probe_input_format(&probe, 1);
  if (format == nullptr) return av_find_input_format("srt");
  return av_match_list(format->name, text_formats, ',') > 0 ? format : nullptr;
}

// As SubRip's demuxer reads it.
bool is_subrip_time(const std::string& line) {
  int milliseconds = 0;
  return std::sscanf(line.c_str(), "%*d:%*d:%*d%*1[,.]%*d --> %*d:%*d:%*d%*1[,.]%d",
                     &milliseconds) == 1;
}

// As WebVTT's demuxer reads it.
bool is_webvtt_time(const std::string& line) {
  const auto is_clock = [](const char* text) {
    unsigned number = 0;
    return std::sscanf(text, "%*u:%*u:%*u.%u", &number) == 1 ||
           std::sscanf(text, "%*u:%*u.%u", &number) == 1;
  };
  return is_clock(line.c_str()) && is_clock(line.c_str() + line.find(arrow) + arrow.size());
}

// FFmpeg reads from memory: nothing is opened by name.
struct MemoryInput {
  std::string_view left;

  static int read(void* input, uint8_t* to, int count) {
    std::string_view& left = static_cast<MemoryInput*>(input)->left;
    const size_t size = std::min(static_cast<size_t>(count), left.size());
    if (size == 0) return AVERROR_EOF;
    std::memcpy(to, left.data(), size);
    left.remove_prefix(size);
    return static_cast<int>(size);
  }
};

class SubtitleReader {
 public:
  SubtitleReader(std::string_view content, const std::string& name)
      : content_(content), name_(name) {
    silence_ffmpeg();
    const AVInputFormat* format = find_format(content_);
    if (format == nullptr) refuse("not a file of subtitles");
    if (std::string_view(format->name) == "webvtt") hide_webvtt_styles(content_);
    open_input(format);
    decoder_.emplace(*format_->streams[0], name_);
  }

  std::vector<Subtitle> read(LoopGuard& guard) {
    const std::string_view format = format_->iformat->name;
    std::vector<Subtitle> found;
    const PacketPtr packet = make_packet();
    const int64_t stopped = avio_seek(format_->pb, 0, SEEK_CUR);  // all is read when opened
    auto first = static_cast<int64_t>(content_.size()), last = int64_t{0};  // places in the file
    while (av_read_frame(format_.get(), packet.get()) >= 0) {
      guard.turn();
      first = std::min(first, packet->pos);
      last = std::max(last, packet->pos);
      if (format == "srt" || format == "webvtt") refuse_times_in_text(*packet);
      std::string text = decode(*packet, guard);
      if (!text.empty()) found.push_back(timed(*packet, std::move(text)));
      if (found.size() > max_subtitles) {
        throw Error(ErrorKind::resource,
                    fmt::format("{}: more than {} subtitles", name_, max_subtitles));
      }
      av_packet_unref(packet.get());
    }
    // Before the first subtitle SubRip's demuxer passes over times that it cannot read; WebVTT's
    // demuxer ends at one, and at any other block that it does not know.
    if (format == "srt") refuse_broken_times(0, first, is_subrip_time, guard);
    if (format == "webvtt") {
      refuse_broken_times(last, static_cast<int64_t>(content_.size()), is_webvtt_time, guard);
      const bool more = content_.find(arrow, static_cast<size_t>(stopped)) != std::string::npos;
      if (more) refuse(stopped, "what stands above is neither a subtitle nor a note");
    }
    if (found.empty()) refuse("there is no subtitle in this file");
    std::stable_sort(found.begin(), found.end(),
                     [](const Subtitle& a, const Subtitle& b) { return a.begin < b.begin; });
    return found;
  }

 private:
  void open_input(const AVInputFormat* wanted) {
    input_.left = content_;
    auto* buffer = static_cast<unsigned char*>(av_malloc(buffer_bytes));
    if (buffer == nullptr) throw Error(ErrorKind::resource, "not enough memory for subtitles");
    bytes_ = own<OwnInputPtr>(
        avio_alloc_context(buffer, buffer_bytes, 0, &input_, &MemoryInput::read, nullptr, nullptr));
    AVFormatContext* format = own<FormatPtr>(avformat_alloc_context()).release();
    format->pb = bytes_.get();
    // On failure FFmpeg frees the context.
    const int opened = avformat_open_input(&format, "", wanted, nullptr);
    if (opened < 0) refuse(fmt::format("{} ({})", ffmpeg_error(opened), wanted->long_name));
    format_.reset(format);
    if (format_->nb_streams != 1) refuse("not a file of subtitles");
  }

  std::string decode(AVPacket& packet, LoopGuard& guard) {
    std::optional<std::string> text = decoder_->text(packet, guard);
    if (!text) refuse(packet.pos, "the text cannot be read; write the file as UTF-8");
    return std::move(*text);
  }

  Subtitle timed(const AVPacket& packet, std::string text) const {
    const double tick = av_q2d(format_->streams[0]->time_base);
    if (packet.pts == AV_NOPTS_VALUE || packet.pts < 0) {
      refuse(packet.pos, "a subtitle begins before the video does");
    }
    // Formats without an end give −1 for the last one; where others follow, the next one ends it.
    if (packet.duration < -1) refuse(packet.pos, "a subtitle ends before it begins");
    const double begin = static_cast<double>(packet.pts) * tick;
    return {begin, begin + static_cast<double>(std::max<int64_t>(0, packet.duration)) * tick,
            std::move(text)};
  }

  // What the demuxers do not take for a time becomes text of the subtitle above.
  void refuse_times_in_text(const AVPacket& packet) const {
    const std::string_view text(reinterpret_cast<const char*>(packet.data),
                                static_cast<size_t>(packet.size));
    const size_t found = text.find(arrow);
    if (found == std::string_view::npos) return;
    const size_t begin = text.rfind('\n', found) + 1;  // npos + 1 is 0
    const std::string line(trimmed(text.substr(begin, text.find('\n', begin) - begin)));
    const size_t place = std::min(content_.find(line), content_.size());
    if (!is_webvtt_time(line)) refuse_time(static_cast<int64_t>(place), line);
    refuse(static_cast<int64_t>(place), fmt::format("an empty line is missing before '{}'", line));
  }

  // Refuses the first line within [begin, end) of the file that has the arrow of a time and is
  // none.
  template <typename IsTime>
  void refuse_broken_times(int64_t begin, int64_t end, const IsTime& is_time,
                           LoopGuard& guard) const {
    const auto size = static_cast<size_t>(std::max<int64_t>(0, end));
    for (auto at = static_cast<size_t>(std::max<int64_t>(0, begin)); at < size;) {
      const size_t line_end = std::min(content_.find('\n', at), size);
      guard.turn(static_cast<int64_t>(line_end - at) + 1);
      const std::string line = content_.substr(at, line_end - at);
      if (line.find(arrow) != std::string::npos && !is_time(line)) {
        refuse_time(static_cast<int64_t>(at), line);
      }
      at = line_end + 1;
    }
  }

  [[noreturn]] void refuse_time(int64_t place, std::string_view line) const {
    refuse(place, fmt::format("'{}' is not a time", trimmed(line).substr(0, 80)));
  }

  [[noreturn]] void refuse(int64_t place, const std::string& why) const {
    const auto end = static_cast<size_t>(std::max<int64_t>(0, place));
    const std::string_view before = std::string_view(content_).substr(0, end);
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    refuse(fmt::format("line {}: {}", line, why));
  }

  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: {}; subtitles are SubRip (.srt), WebVTT (.vtt), ASS (.ass) or "
                            "another text format",
                            name_, why));
  }

  std::string content_;
  const std::string& name_;
  // These outlive the format that reads through them.
  MemoryInput input_;
  OwnInputPtr bytes_;
  FormatPtr format_;
  std::optional<SubtitleDecoder> decoder_;
};

}  // namespace

std::vector<Subtitle> parse_subtitles(std::string_view content, const std::string& name,
                                      LoopGuard& guard) {
  if (static_cast<int64_t>(content.size()) > max_bytes) {
    throw Error(ErrorKind::resource, fmt::format("{}: {} bytes of subtitles, the limit is {}", name,
                                                 content.size(), max_bytes));
  }
  return SubtitleReader(content, name).read(guard);
}

std::vector<Subtitle> parse_subtitles(std::string_view content, const std::string& name) {
  LoopGuard guard;
  return parse_subtitles(content, name, guard);
}

std::vector<Subtitle> read_subtitles(const FileSystem& files, const std::string& path,
                                     const CancelToken& cancel) {
  LoopGuard guard(cancel);
  return parse_subtitles(files.read_or_cancel(path, max_bytes, cancel), path, guard);
}

}  // namespace kinora

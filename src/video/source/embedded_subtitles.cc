#include "video/source/embedded_subtitles.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "video/source/subtitle_decoder.h"

namespace kinora {
namespace {

constexpr size_t max_subtitles = size_t{1} << 18;

int rank_of(const AVStream& stream) {
  // Forced ones translate a few signs only; those for the deaf have everything, and more.
  if ((stream.disposition & AV_DISPOSITION_FORCED) != 0) return 3;
  if ((stream.disposition & AV_DISPOSITION_DEFAULT) != 0) return 0;
  return (stream.disposition & AV_DISPOSITION_HEARING_IMPAIRED) != 0 ? 2 : 1;
}

}  // namespace

std::vector<SubtitleTrack> list_subtitles(const AVFormatContext& format) {
  std::vector<SubtitleTrack> tracks;
  for (unsigned i = 0; i < format.nb_streams; ++i) {
    const AVStream& stream = *format.streams[i];
    if (stream.codecpar->codec_type != AVMEDIA_TYPE_SUBTITLE) continue;
    SubtitleTrack track;
    track.stream = static_cast<int>(i);
    const AVDictionaryEntry* language = av_dict_get(stream.metadata, "language", nullptr, 0);
    track.language = language != nullptr && *language->value != '\0' ? language->value : "und";
    track.codec = avcodec_get_name(stream.codecpar->codec_id);
    const AVCodecDescriptor* codec = avcodec_descriptor_get(stream.codecpar->codec_id);
    track.text = codec != nullptr && (codec->props & AV_CODEC_PROP_TEXT_SUB) != 0;
    track.rank = rank_of(stream);
    tracks.push_back(std::move(track));
  }
  return tracks;
}

const SubtitleTrack& choose_subtitles(const std::vector<SubtitleTrack>& tracks,
                                      const std::string& language, const std::string& name) {
  if (tracks.empty()) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: there are no subtitles inside it; name a file of them", name));
  }
  const SubtitleTrack* best = nullptr;
  std::vector<std::string> known;
  for (const SubtitleTrack& track : tracks) {
    known.push_back(fmt::format("{} ({})", track.language, track.codec));
    if (!language.empty() && track.language != language) continue;
    // Text before pictures, then as a player would.
    const auto worth = [](const SubtitleTrack& one) { return std::pair(!one.text, one.rank); };
    if (best == nullptr || worth(track) < worth(*best)) best = &track;
  }
  if (best == nullptr) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: no subtitles of the language '{}' inside it; there are {}", name,
                            language, fmt::join(known, ", ")));
  }
  if (!best->text) {
    throw Error(ErrorKind::unsupported,
                fmt::format("{}: the subtitles inside it are pictures ({}), which are not read; "
                            "name a file of subtitles",
                            name, best->codec));
  }
  return *best;
}

std::vector<Subtitle> read_embedded_subtitles(Demuxer& demuxer, const SubtitleTrack& track,
                                              double offset, const std::string& name) {
  demuxer.turn_to(track.stream);
  SubtitleDecoder decoder(demuxer.stream(), name);
  const double tick = av_q2d(demuxer.stream().time_base);
  const PacketPtr packet = make_packet();
  std::vector<Subtitle> found;
  LoopGuard guard;  // reading checks for cancelling
  while (demuxer.read(*packet)) {
    if (packet->pts == AV_NOPTS_VALUE) continue;
    std::optional<std::string> text = decoder.text(*packet, guard);
    const double begin = static_cast<double>(packet->pts) * tick - offset;
    if (!text) {
      throw Error(ErrorKind::bad_input,
                  fmt::format("{}: the text of a subtitle at {:.2f} s inside it cannot be read; "
                              "name a file of them, or do without",
                              name, begin));
    }
    const double end = begin + static_cast<double>(std::max<int64_t>(0, packet->duration)) * tick;
    if (text->empty() || end < 0) continue;
    found.push_back({std::max(0.0, begin), end, std::move(*text)});
    if (found.size() > max_subtitles) {
      throw Error(ErrorKind::resource,
                  fmt::format("{}: more than {} subtitles inside it", name, max_subtitles));
    }
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Subtitle& a, const Subtitle& b) { return a.begin < b.begin; });
  return found;
}

}  // namespace kinora

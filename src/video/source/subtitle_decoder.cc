#include "video/source/subtitle_decoder.h"

#include <fmt/format.h>

#include "base/error.h"

namespace kinora {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && static_cast<unsigned char>(text.front()) <= ' ') text.remove_prefix(1);
  while (!text.empty() && static_cast<unsigned char>(text.back()) <= ' ') text.remove_suffix(1);
  return text;
}

namespace {

// Joins the lines of an event to one. `text` is that of an ASS event: override blocks in braces,
// "\N", "\n" and "\h" for line ends and blanks, "\{" for a brace. In an ASS file whatever stands in
// braces is hidden; other formats reach here with the writer's own braces, and these are text.
std::string plain_text(std::string_view text, bool from_ass_file, LoopGuard& guard) {
  constexpr std::string_view word_joiner = "\xe2\x81\xa0";  // put behind a backslash to disarm it
  std::string out, line;
  const auto end_line = [&] {
    const std::string_view words = trimmed(line);
    if (!words.empty() && !out.empty()) out += ' ';
    out += words;
    line.clear();
  };
  bool closes = true;  // there may be another closing brace
  for (size_t i = 0; i < text.size(); ++i) {
    guard.turn();
    const char c = text[i], next = i + 1 < text.size() ? text[i + 1] : '\0';
    if (c == '{' && closes && (from_ass_file || next == '\\' || next == '}')) {
      const size_t end = text.find('}', i);
      closes = end != std::string_view::npos;
      guard.turn(static_cast<int64_t>((closes ? end : text.size()) - i));
      if (closes) {
        i = end;
        continue;
      }
    }
    if (c == '\\' && (next == 'N' || (next == 'n' && from_ass_file))) {
      end_line();
      ++i;
    } else if (c == '\\' && next == 'h') {
      line += ' ';
      ++i;
    } else if (c == '\\' && (next == '{' || next == '}' || next == '\\')) {
      line += next;
      ++i;
    } else if (c == '\n' || c == '\r') {
      end_line();
    } else {
      line += c;
      if (c == '\\' && text.substr(i + 1).starts_with(word_joiner)) i += word_joiner.size();
    }
  }
  end_line();
  return out;
}

// The text of an event as decoders give it: eight fields, each with a comma, stand before it.
std::string_view text_field(const char* event) {
  std::string_view text = event;
  for (int field = 0; field < 8; ++field) {
    const size_t comma = text.find(',');
    if (comma == std::string_view::npos) return {};
    text.remove_prefix(comma + 1);
  }
  return text;
}

}  // namespace

SubtitleDecoder::SubtitleDecoder(const AVStream& stream, const std::string& name) {
  const AVCodec* codec = avcodec_find_decoder(stream.codecpar->codec_id);
  if (codec == nullptr || codec->type != AVMEDIA_TYPE_SUBTITLE) {
    throw Error(ErrorKind::unsupported,
                fmt::format("{}: FFmpeg has no decoder for {} subtitles here", name,
                            avcodec_get_name(stream.codecpar->codec_id)));
  }
  decoder_ = own<CodecPtr>(avcodec_alloc_context3(codec));
  decoder_->pkt_timebase = stream.time_base;
  int opened = avcodec_parameters_to_context(decoder_.get(), stream.codecpar);
  if (opened >= 0) opened = avcodec_open2(decoder_.get(), codec, nullptr);
  if (opened < 0) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: its subtitles cannot be read ({})", name, ffmpeg_error(opened)));
  }
}

std::optional<std::string> SubtitleDecoder::text(AVPacket& packet, LoopGuard& guard) {
  const AVCodecID codec = decoder_->codec_id;
  const bool from_ass_file = codec == AV_CODEC_ID_ASS || codec == AV_CODEC_ID_SSA;
  SubtitleEvent event;
  int complete = 0;
  const int decoded = avcodec_decode_subtitle2(decoder_.get(), &event.value, &complete, &packet);
  if (decoded == AVERROR(ENOMEM)) throw Error(ErrorKind::resource, "not enough memory");
  if (decoded == AVERROR_INVALIDDATA) return std::nullopt;
  if (decoded < 0) return "";  // SAMI's way to show nothing
  std::string text;
  for (unsigned i = 0; complete != 0 && i < event.value.num_rects; ++i) {
    const AVSubtitleRect& rect = *event.value.rects[i];
    if (rect.type != SUBTITLE_ASS || rect.ass == nullptr) continue;
    const std::string line = plain_text(text_field(rect.ass), from_ass_file, guard);
    if (!line.empty() && !text.empty()) text += ' ';
    text += line;
  }
  return text;
}

}  // namespace kinora

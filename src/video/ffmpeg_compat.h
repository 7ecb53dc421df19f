// The differences between FFmpeg 5.1 and 7.x, and between C and C++, in one place.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "video/ffmpeg_functions.h"

namespace kinora {

// An enumeration that FFmpeg filled in from a file. Hostile files contain numbers without a name,
// and C++ must not read those as the enumeration.
template <class Enumeration>
int raw_value(const Enumeration& field) {
  static_assert(sizeof(Enumeration) == sizeof(int));
  int value;
  std::memcpy(&value, &field, sizeof(value));
  return value;
}

// The nine numbers of the stream's display matrix, or null. Side data of streams moved into the
// codec parameters with 6.1.
inline const int32_t* stream_display_matrix(const AVStream& stream) {
  constexpr size_t bytes = 9 * sizeof(int32_t);
#if LIBAVFORMAT_VERSION_INT >= AV_VERSION_INT(60, 15, 100)
  const AVPacketSideData* data =
      av_packet_side_data_get(stream.codecpar->coded_side_data, stream.codecpar->nb_coded_side_data,
                              AV_PKT_DATA_DISPLAYMATRIX);
  if (data == nullptr || data->size < bytes) return nullptr;
  return reinterpret_cast<const int32_t*>(data->data);
#else
  size_t size = 0;
  const uint8_t* data = av_stream_get_side_data(&stream, AV_PKT_DATA_DISPLAYMATRIX, &size);
  if (data == nullptr || size < bytes) return nullptr;
  return reinterpret_cast<const int32_t*>(data);
#endif
}

// FFmpeg 5.1 knows WebVTT's notes, but ends at a block of styles or regions as at a broken time.
// Such a block becomes a note; every byte stays in its place.
inline void hide_webvtt_styles(std::string& content) {
  bool after_blank = false;  // a block begins here
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    const std::string_view line(content.data() + begin, end - begin);
    if (after_blank && line.starts_with("STYLE")) content.replace(begin, 5, "NOTE ");
    if (after_blank && line.starts_with("REGION")) content.replace(begin, 6, "NOTE  ");
    after_blank = line.empty() || line == "\r";
    begin = end + 1;
  }
}

}  // namespace kinora

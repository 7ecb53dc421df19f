// The differences between FFmpeg 5.1 and 7.x, in one place.
#pragma once

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
}

#include <cstddef>
#include <cstdint>

namespace kinora {

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

}  // namespace kinora

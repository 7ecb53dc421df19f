// Turns packets into pictures. A picture carries the number of the packet it came from, whatever
// the file's timestamps are worth. One per worker; not thread safe.
#pragma once

#include <cstdint>
#include <functional>

#include "video/ffmpeg_handles.h"
#include "video/limits.h"

namespace kinora {

class PictureDecoder {
 public:
  // `threads` above 1 decodes several pictures of one interval at once. `reorder_depth` comes from
  // the index, so that the decoder need not discover it by dropping a picture. With
  // `show_all`, a decoder that begins at an open GOP does not hold back pictures that it cannot
  // vouch for; the index knows better which are good. `stills`: packets are pictures of their own.
  PictureDecoder(const AVCodecParameters& parameters, int threads, int reorder_depth, bool show_all,
                 const VideoLimits& limits, bool stills = false);

  // Called for each picture that comes out, with the number of its packet. Returns false when no
  // more are wanted.
  using Take = std::function<bool(int64_t number, const AVFrame& frame)>;

  enum class Result { more, enough, broken };
  // `broken`: the packet could not be decoded; the next may be sent all the same.
  Result send(AVPacket& packet, int64_t number, const Take& take);
  // No more packets: the pictures still inside come out.
  Result finish(const Take& take);
  // Forgets everything; the next packet must be one that decoding can begin at.
  void restart();

  // The decoder itself reports that the picture is damaged.
  bool is_damaged(const AVFrame& frame) const;

 private:
  Result receive(const Take& take);

  CodecPtr codec_;
  FramePtr frame_;
  VideoLimits limits_;
  bool stills_;
};

}  // namespace kinora

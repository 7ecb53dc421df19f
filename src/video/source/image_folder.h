// A folder of pictures as a video: one frame per picture in natural order of the names (2 before
// 10), at a rate that the caller chooses. Pictures may differ in format and size.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "video/decode/packet_feed.h"
#include "video/index/index.h"
#include "video/video.h"

namespace kinora {

// Paths of the pictures; throws bad_input when there are none.
std::vector<std::string> list_pictures(const std::string& folder);

// Every picture a keyframe that nothing else needs, 1/fps after the one before.
VideoIndex folder_index(size_t pictures, double fps);

class FolderFeed final : public PacketFeed {
 public:
  FolderFeed(std::vector<std::string> pictures, const OpenOptions& options,
             const CancelToken& cancel, const CancelToken& stop);

  std::vector<NumberedPacket> read(const KeyframeInterval& interval, int64_t& from,
                                   int64_t next_begin, int64_t max_bytes) override;
  const AVCodecParameters& parameters() const override { return *current_; }
  int64_t seeks() const override { return 0; }

 private:
  std::vector<std::string> pictures_;
  OpenOptions options_;
  CancelToken cancel_;
  CancelToken stop_;
  std::vector<ParametersPtr> known_;  // one for each codec met
  const AVCodecParameters* current_ = nullptr;
};

}  // namespace kinora

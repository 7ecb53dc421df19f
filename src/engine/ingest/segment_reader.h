// Hands out the groups of an ingest in pieces that end where a segment of the prompt ends:
// subtitles cut a video wherever they come, groups of frames do not. Used by session_prefill.cc.
#pragma once

#include <cstdint>
#include <optional>

#include "base/cancel.h"
#include "engine/ingest/ingest.h"

namespace kinora {

class SegmentReader {
 public:
  SegmentReader(Ingest& ingest, CancelToken cancel);

  // At most `units` units, as they lie in one group. A frame is counted with the last piece of its
  // group.
  TokenGroup take(int64_t units, int64_t tokens_per_unit);
  bool at_end_of_group() const { return !group_; }

  // Of the input that ends here.
  ReadReport report();

 private:
  Ingest& ingest_;
  const CancelToken cancel_;
  std::optional<TokenGroup> group_;  // under way …
  int64_t used_ = 0;                 // … and its units that were handed out
};

}  // namespace kinora

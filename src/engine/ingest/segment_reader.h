// Hands out the groups of an ingest in pieces that end where a segment of the prompt ends:
// subtitles cut a video wherever they come, groups of frames do not. Used by session_prefill.cc,
// and its pieces by session_stream.cc.
#pragma once

#include <cstdint>
#include <optional>

#include "base/cancel.h"
#include "engine/ingest/ingest.h"

namespace kinora {

// Units [first, first + count) of a group. Its frames, and what trails its last unit, belong to the
// piece that ends with the group.
TokenGroup piece_of(const TokenGroup& group, int64_t first, int64_t count, int64_t tokens_per_unit);

class SegmentReader {
 public:
  SegmentReader(Ingest& ingest, CancelToken cancel);

  // At most `units` units, as they lie in one group.
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

// Visual tokens of a question's inputs, group after group. With overlap, the inputs are decoded on
// separate threads, earliest intervals first, while the caller prefills what has arrived; on a GPU
// the vision tower also has a thread. Bounded queues between the stages hold back whichever stage
// is ahead, and destroying the feed ends every thread at any time. Without overlap (for measuring),
// an input is decoded completely before its first group is encoded.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/cancel.h"
#include "base/progress.h"
#include "engine/engine_state.h"
#include "engine/span_recorder.h"
#include "engine/unit_stream.h"

namespace kinora {

// Some units of one input as tokens; or, without tokens, the end of that input with its report.
struct EncodedGroup {
  int64_t first = 0;  // unit
  int64_t count = 0;
  bool last = false;
  int64_t frames = 0;
  std::vector<double> times;  // of each unit
  Tensor tokens;              // f32 [tokens, (1 + deep levels) × hidden]
  std::shared_ptr<const ReadReport> report;
};

struct FeedOptions {
  int64_t frames_per_group = 16;
  bool overlap = true;
  int decode_threads = 0;  // 0: one per core
};

class VisualFeed {
 public:
  virtual ~VisualFeed() = default;

  // The next group, or the next report, in the order of the inputs; nothing after the last report.
  virtual std::optional<EncodedGroup> next() = 0;

  // Seconds spent encoding, and seconds the caller waited for something to encode.
  virtual double vision_seconds() const = 0;
  virtual double wait_seconds() const = 0;
};

// The inputs, the progress and the recorder must outlive the feed.
std::unique_ptr<VisualFeed> make_visual_feed(const EngineState& engine,
                                             std::vector<VisualInput*> inputs,
                                             const FeedOptions& options, Progress& progress,
                                             SpanRecorder& spans, const CancelToken& cancel);

}  // namespace kinora

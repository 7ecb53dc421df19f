// Inputs become visual tokens, group after group: decoded, cut into units, encoded. A file gives
// the frames that were sampled from it; a source without a known end gives frames as they come, and
// nothing here has to know how many that will be.
//
// With overlap, inputs are decoded on a separate thread, one after the other, while the caller
// prefills what has arrived; on a GPU the vision tower also has a thread. Bounded queues between
// the stages hold back whichever stage is ahead, and destroying the ingest ends every thread at any
// time. Without overlap (for measuring), everything is decoded before the first group is encoded.
//
// A session makes one for each question, and keeps one for as long as it takes in an open source.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/cancel.h"
#include "base/progress.h"
#include "engine/engine_state.h"
#include "engine/ingest/unit_source.h"
#include "engine/ingest/visual_input.h"
#include "engine/span_recorder.h"
#include "engine/tokens/tokens.h"

namespace kinora {

// Some units of one input as tokens; or, with a report, the end of that input.
struct TokenGroup {
  int64_t first = 0;  // unit
  int64_t count = 0;
  bool last = false;
  std::vector<SampledFrame> frames;
  std::vector<double> times;  // of each unit
  Tensor tokens;              // f32 [tokens, (1 + deep levels) × hidden]; may be undefined
  std::vector<int32_t> kept;  // which of all tokens of its units, and behind them, these are
  std::shared_ptr<const ReadReport> report;
};

// One input on its way in.
struct IngestItem {
  VisualPlan plan;
  int64_t frames = 0;  // 0: nobody knows
  TokenChoice tokens;  // that go on
  // Called on the thread that decodes.
  std::function<std::unique_ptr<UnitSource>(ReadOptions options)> open;
  bool drops = false;  // what waits longest is left out when there is too much
};

// The input must outlive what is opened.
IngestItem ingest_item(VisualInput& input, int64_t frames_per_group,
                       const TokenChoice& tokens = {});

struct IngestOptions {
  bool overlap = true;     // always so when an item has no known end
  int decode_threads = 0;  // 0: one per core
};

class Ingest {
 public:
  virtual ~Ingest() = default;

  // The next group, or the next report, in the order of the items; nothing after the last report.
  // Waits for it, and throws what stopped the work.
  virtual std::optional<TokenGroup> next(const CancelToken& cancel) = 0;
  // The same if it need not be waited for.
  virtual std::optional<TokenGroup> ready() = 0;

  // Seconds spent encoding, and seconds the caller waited for something to encode.
  virtual double vision_seconds() const = 0;
  virtual double wait_seconds() const = 0;
  virtual int64_t dropped() const { return 0; }  // frames that were left out
};

// The progress and the recorder must outlive the ingest.
std::unique_ptr<Ingest> make_ingest(const EngineState& engine, std::vector<IngestItem> items,
                                    const IngestOptions& options, Progress& progress,
                                    SpanRecorder& spans);

// The tokens that close an item of which the last unit is already in; undefined if there are none.
Tensor closing_tokens(const EngineState& engine, const VisualPlan& plan);

}  // namespace kinora

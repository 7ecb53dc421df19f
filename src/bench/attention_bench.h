// One layer's attention on a GPU as a ladder: dense, lists of blocks that get fewer and fewer, rows
// a stride apart, gathered rows, and the sparse policies by name; index and run apart, the host's
// part of the time, and what was computed. Used by cli/commands/bench_attention.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "attention/attention.h"
#include "attention/attention_dtype.h"
#include "attention/policies/head_table.h"
#include "base/context.h"

namespace kinora::cli {

struct AttentionShape {
  int64_t heads = 28;
  int64_t kv_heads = 4;
  int64_t head_size = 128;
};

struct AttentionFigure {
  int64_t tokens = 0;
  std::string name;
  double seconds = 0;                                   // by the device's clock, all of it
  double index_seconds = 0;                             // of these, making the lists
  double host_seconds = 0;                              // until the call returns
  double pairs = 0;                                     // (query, head, row) triples computed
  double share = 1;                                     // of what dense attention computes
  std::vector<std::pair<std::string, double>> parts{};  // a policy's, in seconds
  AttentionLaunches launches{};                         // where FP8 was asked for
};

// Queries, keys and values of one layer as models have them: rotated by their position, so that
// heads see diagonals; some heads look for a frame's length back, some for a few keys that stand
// out, and the first tokens draw all of them. All of it lies on the device, in bf16.
class AttentionInput {
 public:
  // The first `text_tokens` of every frame count as text; 0: all are video.
  AttentionInput(const Context& context, const AttentionShape& shape, int64_t tokens,
                 int64_t frame_tokens, int64_t text_tokens = 0);

  QueryView queries() const;
  RowSet rows() const;
  float scale() const;

 private:
  Tensor queries_, keys_, values_;
  std::vector<int32_t> ordinals_;
  std::vector<Modality> modalities_;
};

struct AttentionBenchOptions {
  AttentionShape shape;
  int64_t frame_tokens = 256;
  int64_t text_tokens = 0;  // of these
  int64_t dense_below = 0;
  int repeats = 3;
  bool lists = true;                  // the ladder of blocks and rows
  std::vector<std::string> policies;  // by name
  // A table besides: heads take these in turn, each BOUNDARY/PATTERN, "both/grid:stride=256".
  std::vector<std::string> mix;
  // FP8: everything in it that can be, after dense attention in bf16.
  AttentionDtype dtype = AttentionDtype::bf16;
};

// Throws a usage error where an item of a mix makes no sense.
HeadChoice parse_mixed_head(const std::string& item, int32_t frame_stride);

// Calls `found` for every figure as it is measured; dense comes first.
void bench_attention(const Context& context, const AttentionBenchOptions& options, int64_t tokens,
                     const std::function<void(const AttentionFigure&)>& found);

}  // namespace kinora::cli

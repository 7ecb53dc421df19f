// Queries, keys and values of one layer whose heads attend as those of video models do: sharply,
// and along lines. The spread over heads is that of figure 2 of the MMInference paper: at 131,072
// tokens a head needs 5.7 % of the weights on average to hold 95 % of the attention, and half of
// the heads need less than 2 % (docs/methods/attention.md has the equations, and other lengths).
// For attention_bench.h.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/attention.h"
#include "base/context.h"

namespace kinora::cli {

struct AttentionShape {
  int64_t heads = 28;
  int64_t kv_heads = 4;
  int64_t head_size = 128;
};

// What a head looks at besides its nearest tokens and the first ones.
enum class VideoHeadKind : uint8_t {
  grid,      // every Nth token of each frame
  slash,     // the same place in earlier frames: tokens at multiples of a frame or a part of it
  vertical,  // a few tokens that all queries look at
  boundary,  // nothing: tokens of its own modality, the nearer the more
};
constexpr int video_head_kinds = 4;

// The terms of a head's scores, in natural units.
struct VideoHead {
  VideoHeadKind kind = VideoHeadKind::grid;
  double decay = 0;     // × how near the key is: weights fall with distance^-decay
  double comb = 0;      // a key in the middle of a slash
  int64_t slashes = 1;  // of a frame
  int grid = 0;         // which of the grids of keys
  double line = 0;      // a key of that grid
  double landmark = 0;  // a key that all look at; it has no other term
  double sink = 0;      // one of the first keys; it has no other term
  double boundary = 0;  // taken from keys of another modality
};

struct VideoKeyOptions {
  int64_t frame_tokens = 256;
  int64_t text_tokens = 16;  // the first of every frame
  double softest = 1;        // in 0 … 1; below 1 the heads that need most weights are left out
  uint64_t seed = 1;         // of places and noise; kinds of heads do not depend on it
};

std::vector<VideoHead> video_heads(const AttentionShape& shape, const VideoKeyOptions& options);

// Keys and values are bf16; queries are on a GPU too, and f32 on the CPU. The same for the same
// options wherever it is made, but for rounding. A million tokens take a second or two: noise
// repeats after some thousand tokens, where they stand does not.
class VideoKeys {
 public:
  // Throws a usage error where the head size is too small or a frame has no video.
  VideoKeys(const Context& context, const AttentionShape& shape, int64_t tokens,
            const VideoKeyOptions& options);

  QueryView queries() const { return {queries_.view(), ordinals_, modalities_}; }
  RowSet rows() const { return {keys_.view(), values_.view(), ordinals_, modalities_}; }
  float scale() const;

 private:
  Tensor queries_, keys_, values_;
  std::vector<int32_t> ordinals_;
  std::vector<Modality> modalities_;
};

}  // namespace kinora::cli

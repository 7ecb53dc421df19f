// Queries, keys and values that look like a video prefill to the patterns: frames of equal length
// whose tokens resemble the same place in other frames, keys that all attend to, and noise.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/attention.h"

namespace kinora::bench {

struct InputShape {
  int64_t tokens = 32768;
  int64_t heads = 28;
  int64_t kv_heads = 4;
  int64_t head_size = 128;
  int64_t frame = 64;  // tokens per frame
};

class Input {
 public:
  Input(const InputShape& shape, uint64_t seed);

  const InputShape& shape() const { return shape_; }
  // The first `count` tokens as one group.
  QueryView queries(int64_t count) const;
  RowSet rows(int64_t count) const;
  float scale() const;

 private:
  InputShape shape_;
  std::vector<float> queries_, keys_, values_;
  std::vector<int32_t> ordinals_;
  std::vector<Modality> modalities_;
};

}  // namespace kinora::bench

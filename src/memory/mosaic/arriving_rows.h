// Rows of frames on their way from a GPU to the index of a mosaic memory, which lives on the host:
// keys as they were before they were turned, and values. Copies of all layers of a group overlap
// with its computation. The newest rows are kept for a while, so that clusters which become too
// loose can be split without asking the GPU.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "base/gpu.h"
#include "base/tensor.h"
#include "memory/mosaic/mosaic_index.h"

namespace kinora {

class ArrivingRows {
 public:
  // Keeps about this many of the newest rows of a layer.
  ArrivingRows(int layers, int64_t kept) : kept_(kept), layers_(static_cast<size_t>(layers)) {}

  // Rows of these tokens on a GPU, f32 [tokens, …] each: the first `fresh` ones are new, the others
  // older ones that are wanted again. `near` is i32 [fresh, 2]. Only starts the copies.
  void start(const Context& context, int layer, std::vector<int32_t> tokens, size_t fresh,
             const Tensor& keys, const Tensor& values, const Tensor& near);
  // Waits for the newest copy of a layer: its new rows, and what is near to each.
  struct Arrived {
    std::vector<MosaicRow> rows;
    std::span<const std::array<int32_t, 2>> near;
  };
  Arrived wait(int layer) const;
  // Of rows that were kept, or came as older ones.
  FetchRows fetch(int layer) const;
  // Forgets rows of tokens from this one on.
  void forget(int64_t token);

 private:
  struct Copy {
    PinnedBuffer keys, values;  // f32 [tokens, width]
    PinnedBuffer near;          // i32 [fresh, 2]
    std::vector<int32_t> tokens;
    size_t fresh = 0;  // of the tokens; the others are older ones
  };
  struct Layer {
    std::deque<Copy> copies;
    std::vector<Copy> spare;
    std::unique_ptr<GpuEvent> copied;
    size_t width = 0;
  };

  int64_t kept_;
  std::vector<Layer> layers_;
};

}  // namespace kinora

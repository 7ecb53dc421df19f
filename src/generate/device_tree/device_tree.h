// Trees of guesses that grow on a GPU by themselves. Where a host looks at every level's guesses
// before it starts the next level, a fast device waits longer than it computes. Here the newest
// text and all levels below it are one captured graph: the device ranks what may follow, chooses
// the leaves to go on from, and the host sees the whole tree at the end. Used by DraftModel, whose
// weights it reads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "base/context.h"
#include "base/tensor.h"
#include "generate/draft_parts.h"
#include "generate/draft_tree.h"
#include "memory/memory.h"
#include "model/decoder/layers.h"

namespace kinora {

// Where a tree starts: below text tokens that have no rows yet, the last of which is the newest.
struct TreeStart {
  static constexpr int64_t most = 8;    // tokens
  Memory& memory;                       // of the draft: gets their rows; those of the tree go again
  std::span<const int32_t> ids;         // at least one
  std::span<const Position> positions;  // of the same
  // Writes what the draft is told of the tokens before them, f32 [tokens, hidden].
  std::function<void(TensorView)> states;
};

struct GrownTree {
  DraftTree tree;
  bool replayed = false;  // else it took longer than such trees will take
};

class DeviceTrees {
 public:
  virtual ~DeviceTrees() = default;

  // Whether trees of this shape can be captured; others grow level by level.
  virtual bool takes(const TreeShape& shape) const = 0;
  // All nodes of a tree of this shape, chains no longer than `deepest`.
  virtual GrownTree grow(const TreeShape& shape, int64_t deepest, const TreeStart& start) = 0;
};

// All that is passed by reference must outlive the trees.
struct DeviceTreeParts {
  Context context;
  const DecoderLayers& layers;          // the draft's one layer
  std::span<const double> frequencies;  // of its rotation
  const DecoderLayers& speaker;         // whose head makes logits
  const DraftParts& draft;
  Tensor embeddings;  // [vocabulary, hidden]
};

// Throws unsupported in a build without CUDA.
std::unique_ptr<DeviceTrees> make_device_trees(const DeviceTreeParts& parts);

}  // namespace kinora

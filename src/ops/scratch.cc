#include "ops/scratch.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace kinora {
namespace {

constexpr size_t most_kept = 4;                    // blocks a thread
constexpr size_t largest_kept = size_t{32} << 20;  // bytes; rarer, larger ones go back at once
thread_local std::vector<std::shared_ptr<Buffer>> kept;  // oldest first

}  // namespace

ScratchLease::ScratchLease(size_t bytes) {
  bytes = std::max<size_t>(bytes, 64);
  auto best = kept.end();
  for (auto block = kept.begin(); block != kept.end(); ++block) {
    const bool fits = (*block)->size() >= bytes;
    if (fits && (best == kept.end() || (*block)->size() < (*best)->size())) best = block;
  }
  if (best != kept.end()) {
    block_ = std::move(*best);
    kept.erase(best);
  } else {
    block_ = Buffer::allocate(Device::cpu(), bytes);
  }
}

ScratchLease::~ScratchLease() {
  if (block_->size() > largest_kept) return;
  if (kept.size() == most_kept) kept.erase(kept.begin());
  kept.push_back(std::move(block_));
}

}  // namespace kinora

// Scratch memory for packed panels. Each thread keeps the few blocks it used last, so that a layer
// does not fault in fresh pages for every product; they are freed when the thread ends. Used in
// ops/.
#pragma once

#include <cstddef>
#include <memory>

#include "base/buffer.h"

namespace kinora {

// A block of at least `bytes` bytes, aligned to 64, uninitialised, for the life of the object.
// Lives and dies on one thread.
class ScratchLease {
 public:
  explicit ScratchLease(size_t bytes);
  ~ScratchLease();
  ScratchLease(const ScratchLease&) = delete;
  ScratchLease& operator=(const ScratchLease&) = delete;

  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(block_->data());
  }

 private:
  std::shared_ptr<Buffer> block_;
};

}  // namespace kinora

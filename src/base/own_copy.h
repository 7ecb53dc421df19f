// Copy on write: values that marks and forks share, changed by whoever has them alone.
#pragma once

#include <memory>
#include <type_traits>

namespace kinora {

// What the pointer points to, to be changed: a copy, put in its place, unless nobody else has it.
// It must not have been made as a constant.
template <typename T>
std::remove_const_t<T>& own_copy(std::shared_ptr<T>& shared) {
  using Plain = std::remove_const_t<T>;
  if (shared.use_count() > 1) {
    shared = std::make_shared<Plain>(*shared);
  } else {
    // Others may have had it until now: what they read comes before what is written next. Dropping
    // a pointer acquires what they released. A fence would too, but not for the thread sanitizer.
    std::shared_ptr<T>(shared).reset();
  }
  return const_cast<Plain&>(*shared);
}

}  // namespace kinora

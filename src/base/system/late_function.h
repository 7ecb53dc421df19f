// A function of a shared library that is looked for when it is first called, so that a large
// library is loaded only by those who need it. The library's header says what the function is like:
//
//   inline constinit const decltype(late_like(&::cairo_create)) cairo_create{&find_cairo,
//                                                                             "cairo_create"};
//
// Inside the namespace a call then finds this object, which stands before the header's own
// declaration. Used for FFmpeg and Cairo.
#pragma once

#include <atomic>

namespace kinora {

template <typename Signature>
class LateFunction;

template <typename Result, typename... Arguments>
class LateFunction<Result(Arguments...)> {
 public:
  // `find` loads the library unless that has been done, and throws where it, or the function, is
  // not installed.
  constexpr LateFunction(void* (*find)(const char*), const char* name) : find_(find), name_(name) {}

  Result operator()(Arguments... arguments) const {
    void* found = found_.load(std::memory_order_acquire);
    if (found == nullptr) {
      found = find_(name_);
      found_.store(found, std::memory_order_release);
    }
    return reinterpret_cast<Result (*)(Arguments...)>(found)(arguments...);
  }

 private:
  void* (*find_)(const char*);
  const char* name_;
  mutable std::atomic<void*> found_ = nullptr;
};

template <typename Result, typename... Arguments>
LateFunction<Result(Arguments...)> late_like(Result (*declared)(Arguments...));

}  // namespace kinora

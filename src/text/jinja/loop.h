// The object `loop` inside a for loop.
#pragma once

#include <functional>

#include "text/jinja/value.h"

namespace kinora::jinja {

class Loop final : public Callable {
 public:
  // `again` runs a recursive loop over other items; empty for plain loops.
  using Again = std::function<Value(const Value& items)>;
  Loop(const Items& items, int depth, Again again)
      : items_(items), depth_(depth), again_(std::move(again)) {}

  void move_to(size_t index) { index_ = index; }

  Value call(const Arguments& arguments) override;
  std::optional<Value> attribute(std::string_view name) const override;
  std::string_view type_name() const override { return "LoopContext"; }

 private:
  Items items_;
  size_t index_ = 0;
  int depth_;
  Again again_;
  mutable Items last_changed_;
};

}  // namespace kinora::jinja

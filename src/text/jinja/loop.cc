#include "text/jinja/loop.h"

#include "text/jinja/runtime.h"

namespace kinora::jinja {

Value Loop::call(const Arguments& arguments) {
  if (!again_) {
    throw Problem("The loop must have the 'recursive' marker to be called recursively.");
  }
  if (arguments.values.size() != 1) throw Problem("loop() takes what to loop over");
  return again_(arguments.values[0]);
}

std::optional<Value> Loop::attribute(std::string_view name) const {
  const auto index = static_cast<int64_t>(index_);
  const auto count = static_cast<int64_t>(items_.size());
  if (name == "index") return index + 1;
  if (name == "index0") return index;
  if (name == "revindex") return count - index;
  if (name == "revindex0") return count - index - 1;
  if (name == "first") return index == 0;
  if (name == "last") return index + 1 == count;
  if (name == "length") return count;
  if (name == "depth") return depth_;
  if (name == "depth0") return depth_ - 1;
  if (name == "previtem") {
    return index > 0 ? items_[index_ - 1] : Value::undefined("there is no previous item");
  }
  if (name == "nextitem") {
    return index + 1 < count ? items_[index_ + 1] : Value::undefined("there is no next item");
  }
  if (name == "cycle") {
    return make_function([this](const Arguments& arguments) {
      if (arguments.values.empty()) throw Problem("no items for cycling given");
      return arguments.values[index_ % arguments.values.size()];
    });
  }
  if (name == "changed") {
    return make_function([this](const Arguments& arguments) -> Value {
      const bool same = equal(Value::tuple(arguments.values), Value::tuple(last_changed_)) &&
                        !(arguments.values.empty() && index_ == 0);
      last_changed_ = arguments.values;
      return !same;
    });
  }
  return std::nullopt;
}

}  // namespace kinora::jinja

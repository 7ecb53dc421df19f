#include <fmt/format.h>

#include "attention/policies/pattern_policy.h"

namespace kinora {
namespace {

struct AShape {
  int32_t sink = 128;
  int32_t local = 4096;
};

}  // namespace

AttentionPolicy a_shape_policy() {
  PatternSizes<AShape> sizes({});
  sizes.count("sink", &AShape::sink, SizeChange::shrinks, "first tokens, read by all")
      .count("local", &AShape::local, SizeChange::grows, "nearest tokens, read by each");
  return pattern_policy(LinePattern<AShape>{
      .name = "a-shape",
      .summary = "the first tokens and the nearest",
      .sizes = sizes,
      .resolve =
          [](const AShape& shape, const Region&, const Probe&) {
            LineIndex index;
            index.sink = shape.sink;
            index.local = shape.local;
            return index;
          },
      .text = [](const AShape& shape) { return fmt::format("{}/{}", shape.sink, shape.local); },
      .candidates = [](int32_t) -> std::vector<AShape> {
        return {{128, 1024}, {128, 2048}, {128, 4096}};
      }});
}

}  // namespace kinora

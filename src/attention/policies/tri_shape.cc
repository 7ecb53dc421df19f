#include <fmt/format.h>

#include "attention/policies/pattern_policy.h"

namespace kinora {
namespace {

struct TriShape {
  int32_t sink = 128;
  int32_t local = 4096;
  int32_t bottom = 128;
};

}  // namespace

AttentionPolicy tri_shape_policy() {
  PatternSizes<TriShape> sizes({});
  sizes.count("sink", &TriShape::sink, SizeChange::shrinks, "first tokens, read by all")
      .count("local", &TriShape::local, SizeChange::grows, "nearest tokens, read by each")
      .count("bottom", &TriShape::bottom, SizeChange::shrinks, "last tokens of a group");
  return pattern_policy(LinePattern<TriShape>{
      .name = "tri-shape",
      .summary = "the first tokens and the nearest; the last tokens of a group read everything",
      .sizes = sizes,
      .resolve =
          [](const TriShape& shape, const Region&, const Probe&) {
            LineIndex index;
            index.sink = shape.sink;
            index.local = shape.local;
            index.bottom = shape.bottom;
            return index;
          },
      .text =
          [](const TriShape& shape) {
            return fmt::format("{}/{}/{}", shape.sink, shape.local, shape.bottom);
          }});
}

}  // namespace kinora

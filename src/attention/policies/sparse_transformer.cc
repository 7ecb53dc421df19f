// The two patterns of SparseTransformer, each with one stride: the tokens of a frame where none is
// given. A window of its own lets them be compared with others at equal cost.
#include <fmt/format.h>

#include <algorithm>

#include "attention/policies/pattern_policy.h"

namespace kinora {
namespace {

struct Strided {
  int32_t stride = 0;  // 0: the tokens of a frame
  int32_t local = 0;   // 0: as published
};

LinePattern<Strided> strided_pattern(std::string_view meaning) {
  PatternSizes<Strided> sizes({});
  sizes.settings().count_or("stride", &Strided::stride, {1}, {"frame", 0}, meaning);
  sizes.store({.key = "stride"}, &Strided::stride);
  sizes.count("local", &Strided::local, SizeChange::grows,
              "nearest tokens besides; 0: as published");
  return {.name = {},
          .summary = {},
          .sizes = sizes,
          .resolve = {},
          .text =
              [](const Strided& pattern) {
                return fmt::format("{}{}", pattern.stride,
                                   pattern.local > 0 ? fmt::format(" + {}", pattern.local) : "");
              },
          .problem = [](const Strided& pattern) -> std::string {
            if (pattern.stride > 0) return "";
            return "a stride of 0; it is the number of tokens a frame";
          },
          .follow_frames =
              [](Strided& pattern, int32_t frame_stride) {
                if (pattern.stride == 0) pattern.stride = frame_stride;
              }};
}

}  // namespace

AttentionPolicy sf_fixed_policy() {
  LinePattern<Strided> pattern = strided_pattern("tokens of a segment; frame: those of a frame");
  pattern.name = "sf-fixed";
  pattern.summary = "the own segment and the first token of every segment (SparseTransformer)";
  pattern.resolve = [](const Strided& sizes, const Region&, const Probe&) {
    LineIndex index;
    index.segment = sizes.stride;
    index.local = sizes.local;
    index.stride = sizes.stride;
    index.vertical = {0};
    return index;
  };
  return pattern_policy(pattern);
}

AttentionPolicy sf_strided_policy() {
  LinePattern<Strided> pattern = strided_pattern("N; frame: the tokens of a frame");
  pattern.name = "sf-strided";
  pattern.summary = "the N nearest tokens and every Nth before them (SparseTransformer)";
  pattern.resolve = [](const Strided& sizes, const Region&, const Probe&) {
    LineIndex index;
    index.local = std::max(sizes.stride, sizes.local);
    index.stride = sizes.stride;
    index.slash = {0};
    return index;
  };
  return pattern_policy(pattern);
}

}  // namespace kinora

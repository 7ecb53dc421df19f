// Attention policies by the names that people give them. A name may carry settings and delta
// correction: "a-shape:sink=128,local=2048", "grid:stride=64,lines=vs+delta", "grid+delta=32". The
// list of all is in all.h, each policy with its settings in a file of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attention/attention.h"
#include "attention/policies/head_table.h"
#include "attention/policies/sparse_attention.h"
#include "base/policy/policy.h"

namespace kinora {

struct AttentionOptions {
  SparseOptions sparse;
  int32_t frame_stride = 64;               // tokens per frame, for patterns that follow frames
  std::shared_ptr<const HeadTable> table;  // of the model's heads, for policies that need one
};

// The description in a policy's own file.
struct AttentionPolicy {
  PolicyInfo info;
  bool needs_table = false;
  bool runs_on_gpu = false;
  std::shared_ptr<const PatternKind> pattern;                // null: no head of a table can have it
  std::function<void(std::span<const GivenSetting>)> check;  // throws what is wrong with them
  std::function<std::unique_ptr<Attention>(std::span<const GivenSetting>, const AttentionOptions&)>
      make;
};

// What there is, for help and documentation.
const PolicyPoint& attention_point();

// Throws a usage error that lists the choices.
std::unique_ptr<Attention> make_attention(std::string_view text, const AttentionOptions& options);

// The policy that a text names, for what it can do. Throws a usage error.
const AttentionPolicy& find_attention(std::string_view text);

}  // namespace kinora

// What a group of frames leaves in memory. Right after a layer's attention has used a group, every
// visual row of it gets one score, its key/value heads joined, and the best share of them stays;
// text rows always stay. The rules that score are listed in policies.h.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/context.h"
#include "base/modality.h"
#include "base/policy/policy.h"
#include "base/tensor.h"
#include "memory/retention/rule.h"

namespace kinora {

struct Retention {
  std::shared_ptr<const RetentionRule> rule;  // null: everything stays
  double ratio = 1;                           // of the visual rows of a group, in (0, 1]

  bool prunes() const { return rule != nullptr; }
  bool needs_question() const { return prunes() && rule->needs_question(); }
};

// What there is, for help and documentation.
const PolicyPoint& retention_point();

// Reads "all", "NAME:RATIO" ("key-norm:0.5"), "NAME:ratio=RATIO" or a ratio alone, which means
// key-norm. Throws a usage error that lists the choices.
Retention parse_retention(std::string_view text);
std::string to_string(const Retention& retention);  // "key-norm:0.5"

// The number of visual rows that stay: the ratio of `rows`, rounded, and at least one.
int64_t kept_count(const Retention& retention, int64_t rows);

// Indexes into the group, increasing: every text row and the best `kept_count` of the others. Of
// rows with equal scores the earlier ones stay; a score that is no number is the lowest.
std::vector<int32_t> choose_rows(const Retention& retention, std::span<const double> scores,
                                 std::span<const Modality> modalities);

// Places in a group that stay, increasing: on the host, or where the rows are.
struct KeptRows {
  std::vector<int32_t> places;
  Tensor there;  // i32 on a GPU, where the work has only been started
};

// Chooses among the rows of a group. `question` has the queries of its tokens, [tokens, heads, head
// size] on the context's device, for rules that need them.
//   keys, values: [rows, kv heads, head size] on the context's device
KeptRows keep_best(const Context& context, const Retention& retention, ConstTensorView keys,
                   ConstTensorView values, std::span<const Modality> modalities,
                   ConstTensorView question = {});

}  // namespace kinora

#include "attention/policies/pattern_attention.h"
#include "attention/policies/sparse_policy.h"

namespace kinora {
namespace {

struct NoSettings {};

}  // namespace

AttentionPolicy mminference_policy() {
  AttentionPolicy policy = sparse_policy(
      "mminference", "by the table of the model's heads that 'kinora tune' makes",
      Settings<NoSettings>(), [](NoSettings, const AttentionOptions& options) {
        return std::make_unique<PatternAttention>("mminference", options.table, options.sparse);
      });
  policy.needs_table = true;
  policy.runs_on_gpu = true;
  return policy;
}

}  // namespace kinora

// What a group of frames leaves in memory. Right after a layer's attention has used a group, every
// visual row of it gets one score, its key/value heads joined, and the best share of them stays;
// text rows always stay. The engine hooks a Pruner into PrefillOptions::after_attention.
//
//   key-norm          -‖k‖: small keys stay (QuickVideo's default)
//   value-norm         ‖v‖
//   attention-score   Σ over the question's tokens and heads of q · k
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attention/attention.h"
#include "memory/row_store.h"

namespace kinora {

enum class RetentionRule { all, key_norm, value_norm, attention_score };

struct Retention {
  RetentionRule rule = RetentionRule::all;
  double ratio = 1;  // of the visual rows of a group, in (0, 1]

  bool prunes() const { return rule != RetentionRule::all; }
  bool needs_question() const { return rule == RetentionRule::attention_score; }
};

// Reads "all", "NAME:RATIO" ("key-norm:0.5") or a ratio alone, which means key-norm. Throws a usage
// error that names the accepted forms.
Retention parse_retention(std::string_view text);
std::string to_string(const Retention& retention);  // "key-norm:0.5"

// How many of so many visual rows stay: the ratio of them, rounded, and at least one.
int64_t kept_count(const Retention& retention, int64_t rows);

// One score per row, higher is better; a score that is no number is the lowest. `keys` and
// `values`: [rows, kv heads, head size] on the CPU. `question` is what QueryTap gives, for
// attention-score only.
std::vector<double> row_scores(const Context& context, RetentionRule rule, ConstTensorView keys,
                               ConstTensorView values, std::span<const double> question);

// Indexes into the group, increasing: every text row and the best `kept_count` of the others.
// Of rows with equal scores the earlier ones stay.
std::vector<int32_t> choose_rows(const Retention& retention, std::span<const double> scores,
                                 std::span<const Modality> modalities);

// Passes attention through and adds up the queries of the last `rows` rows of each call. The
// heads that share a kv head, and the rows, are summed: q · k is linear, so the sum of the scores
// is the score of the sum.
class QueryTap final : public Attention {
 public:
  QueryTap(Attention& inner, int64_t rows) : inner_(inner), rows_(rows) {}

  std::string_view name() const override { return inner_.name(); }
  void attend(const Context& context, int layer, const QueryView& queries, const RowsView& rows,
              float scale, TensorView out) override;

  std::span<const double> sum() const { return sum_; }  // [kv heads, head size], of the last call

 private:
  Attention& inner_;
  int64_t rows_;
  std::vector<double> sum_;
};

// Prunes the newest group in one layer. The last `probe_rows` rows of the group only asked (the
// question, for attention-score) and leave nothing.
void prune_group(const Context& context, const Retention& retention, int layer, RowStore& store,
                 int64_t probe_rows = 0, std::span<const double> question = {});

}  // namespace kinora

#include "memory/retention/retention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "memory/retention/policies.h"
#include "memory/retention/question.h"
#include "memory/row_ops/best_rows.h"
#include "ops/packed_rows.h"

namespace kinora {
namespace {

Retention read(std::string_view text) {
  const bool ratio = !text.empty() && text[0] >= '0' && text[0] <= '9';
  const PolicyText parts = split_policy(ratio ? "key-norm:" + std::string(text) : text);
  return find_policy(parts.name, retention_policies()).make(parts.settings);
}

// Rows of a layer where the CPU can read them.
Tensor on_host(ConstTensorView rows) {
  Tensor copy(rows.dtype(), rows.shape());
  copy_bytes(copy.view().raw(), Device::cpu(), rows.raw(), rows.device(),
             static_cast<size_t>(copy.bytes()));
  return copy;
}

std::vector<double> scores_of(const Context& context, const RetentionRule& rule,
                              ConstTensorView keys, ConstTensorView values,
                              ConstTensorView question) {
  if (rule.needs_question() && (question.rank() != 3 || question.size(2) != keys.size(2))) {
    throw Error(ErrorKind::internal, std::string(rule.name()) + " needs the question's queries");
  }
  std::vector<double> scores = rule.scores(context, keys, values, question);
  for (double& score : scores) {
    if (std::isnan(score)) score = -std::numeric_limits<double>::infinity();
  }
  return scores;
}

}  // namespace

const PolicyPoint& retention_point() {
  static const PolicyPoint point{.name = "retention",
                                 .summary = "what a group of frames leaves in memory",
                                 .form = "NAME[:RATIO]",
                                 .initial = "all",
                                 .policies = infos_of(retention_policies()),
                                 .check = [](std::string_view text) { read(text); }};
  return point;
}

Retention parse_retention(std::string_view text) {
  return in_words("retention", text, [&] { return read(text); });
}

std::string to_string(const Retention& retention) {
  if (!retention.prunes()) return "all";
  return std::string(retention.rule->name()) + ":" + share_text(retention.ratio);
}

int64_t kept_count(const Retention& retention, int64_t rows) {
  if (!retention.prunes() || rows == 0) return rows;
  return std::clamp<int64_t>(std::llround(retention.ratio * static_cast<double>(rows)), 1, rows);
}

std::vector<int32_t> choose_rows(const Retention& retention, std::span<const double> scores,
                                 std::span<const Modality> modalities) {
  std::vector<int32_t> visual, kept;
  for (size_t i = 0; i < modalities.size(); ++i) {
    (modalities[i] == Modality::text ? kept : visual).push_back(static_cast<int32_t>(i));
  }
  const auto count = kept_count(retention, static_cast<int64_t>(visual.size()));
  const auto better = [&](int32_t a, int32_t b) {
    const double left = scores[static_cast<size_t>(a)], right = scores[static_cast<size_t>(b)];
    return left != right ? left > right : a < b;
  };
  std::nth_element(visual.begin(), visual.begin() + count, visual.end(), better);
  kept.insert(kept.end(), visual.begin(), visual.begin() + count);
  std::sort(kept.begin(), kept.end());
  return kept;
}

KeptRows keep_best(const Context& context, const Retention& retention, ConstTensorView keys,
                   ConstTensorView values, std::span<const Modality> modalities,
                   ConstTensorView question) {
  const auto count = static_cast<int64_t>(modalities.size());
  const int64_t texts = std::count(modalities.begin(), modalities.end(), Modality::text);
  KeptRows kept;
  if (!retention.prunes() || texts == count) {
    kept.places.resize(modalities.size());
    std::iota(kept.places.begin(), kept.places.end(), 0);
    return kept;
  }
  const RetentionRule& rule = *retention.rule;
  Tensor key_room, value_room;
  if (context.device.is_cpu()) {
    const std::vector<double> scores = scores_of(context, rule, plain_rows(context, keys, key_room),
                                                 plain_rows(context, values, value_room), question);
    kept.places = choose_rows(retention, scores, modalities);
    return kept;
  }
  if (auto choice = rule.on_gpu(keys, values)) {
    choice->rows = plain_rows(context, choice->rows, key_room);
    choice->visual = kept_count(retention, count - texts);
    std::vector<double> sum;
    if (rule.needs_question()) sum = sum_queries(question, keys.size(1));
    kept.there = cuda::best_rows(context, *choice, sum, modalities);
    return kept;
  }
  const Tensor host_keys = on_host(keys), host_values = on_host(values);
  Tensor host_question;
  if (rule.needs_question()) {
    host_question = queries_on_host(question);
    question = host_question;
  }
  const Context host(*context.threads);
  const std::vector<double> scores = scores_of(host, rule, plain_rows(host, host_keys, key_room),
                                               plain_rows(host, host_values, value_room), question);
  kept.places = choose_rows(retention, scores, modalities);
  return kept;
}

}  // namespace kinora

#include "memory/retention.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "memory/best_rows.h"

namespace kinora {
namespace {

constexpr std::array<std::pair<RetentionRule, std::string_view>, 4> names{{
    {RetentionRule::all, "all"},
    {RetentionRule::key_norm, "key-norm"},
    {RetentionRule::value_norm, "value-norm"},
    {RetentionRule::attention_score, "attention-score"},
}};

[[noreturn]] void refuse(std::string_view text) {
  throw Error(ErrorKind::usage, "'" + std::string(text) +
                                    "' does not say what stays in memory; give all, or key-norm, "
                                    "value-norm or attention-score with a ratio above 0 and at "
                                    "most 1, such as key-norm:0.5");
}

double widen(float value) { return value; }
double widen(bf16 value) { return value.to_float(); }

// Σ x² over each row, or Σ question · x where there is a question.
template <typename T>
void row_sums(const Context& context, ConstTensorView rows, std::span<const double> question,
              std::span<double> sums) {
  const int64_t width = rows.size(1) * rows.size(2);
  context.threads->parallel_for(rows.size(0), 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T* row = rows.row<T>(i);
      double sum = 0;
      for (int64_t k = 0; k < width; ++k) {
        const double value = widen(row[k]);
        sum += value * (question.empty() ? value : question[static_cast<size_t>(k)]);
      }
      sums[static_cast<size_t>(i)] = sum;
    }
  });
}

// Adds query rows [rows, heads, head size] to `sum`, [kv heads, head size].
template <typename T>
void add_queries(ConstTensorView queries, int64_t kv_heads, std::span<double> sum) {
  const int64_t heads = queries.size(1), size = queries.size(2);
  for (int64_t i = 0; i < queries.size(0); ++i) {
    const T* query = queries.row<T>(i);
    for (int64_t head = 0; head < heads; ++head) {
      double* target = sum.data() + head / (heads / kv_heads) * size;
      for (int64_t k = 0; k < size; ++k) target[k] += widen(query[head * size + k]);
    }
  }
}

}  // namespace

Retention parse_retention(std::string_view text) {
  const size_t colon = text.find(':');
  std::string_view name = text.substr(0, colon);
  std::string_view number = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  if (colon == std::string_view::npos && !text.empty() && text[0] >= '0' && text[0] <= '9') {
    name = "key-norm";
    number = text;
  }
  const auto found = std::find_if(names.begin(), names.end(),
                                  [&](const auto& known) { return known.second == name; });
  if (found == names.end()) refuse(text);
  Retention retention{found->first, 1};
  if (retention.rule == RetentionRule::all && number.empty() && colon == std::string_view::npos) {
    return retention;
  }
  const char* end = number.data() + number.size();
  const auto [after, error] =
      std::from_chars(number.data(), end, retention.ratio, std::chars_format::fixed);
  if (error != std::errc() || after != end || !(retention.ratio > 0) || retention.ratio > 1) {
    refuse(text);
  }
  if (retention.rule == RetentionRule::all && retention.ratio != 1) refuse(text);
  return retention;
}

std::string to_string(const Retention& retention) {
  const auto found = std::find_if(names.begin(), names.end(),
                                  [&](const auto& known) { return known.first == retention.rule; });
  std::string text(found->second);
  if (!retention.prunes()) return text;
  std::array<char, 32> number{};
  const auto written = std::to_chars(number.data(), number.data() + number.size(), retention.ratio);
  return text + ":" + std::string(number.data(), written.ptr);
}

int64_t kept_count(const Retention& retention, int64_t rows) {
  if (!retention.prunes() || rows == 0) return rows;
  return std::clamp<int64_t>(std::llround(retention.ratio * static_cast<double>(rows)), 1, rows);
}

std::vector<double> row_scores(const Context& context, RetentionRule rule, ConstTensorView keys,
                               ConstTensorView values, std::span<const double> question) {
  const bool asks = rule == RetentionRule::attention_score;
  const ConstTensorView rows = rule == RetentionRule::value_norm ? values : keys;
  if (asks && static_cast<int64_t>(question.size()) != rows.size(1) * rows.size(2)) {
    throw Error(ErrorKind::internal, "attention-score needs the question's queries");
  }
  if (!asks) question = {};
  std::vector<double> scores(static_cast<size_t>(rows.size(0)));
  if (rows.dtype() == DType::f32) {
    row_sums<float>(context, rows, question, scores);
  } else {
    row_sums<bf16>(context, rows, question, scores);
  }
  const double sign = rule == RetentionRule::key_norm ? -1 : 1;
  for (double& score : scores) {
    if (!asks) score = sign * std::sqrt(score);
    if (std::isnan(score)) score = -std::numeric_limits<double>::infinity();
  }
  return scores;
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

void QueryTap::attend(const Context& context, int layer, const QueryView& queries,
                      const RowsView& rows, float scale, TensorView out) {
  inner_.attend(context, layer, queries, rows, scale, out);
  const int64_t count = std::min(rows_, queries.count());
  ConstTensorView last = queries.queries.rows(queries.count() - count, count);
  Tensor on_host;
  if (!last.device().is_cpu()) {
    on_host = Tensor(last.dtype(), last.shape());
    for (int64_t i = 0; i < count; ++i) {  // rows may be strided
      copy_bytes(on_host.view()[i].raw(), Device::cpu(), last[i].raw(), last.device(),
                 static_cast<size_t>(last[i].bytes()));
    }
    last = on_host;
  }
  const int64_t kv_heads = rows.keys.size(1);
  sum_.assign(static_cast<size_t>(kv_heads * rows.keys.size(2)), 0.0);
  if (last.dtype() == DType::f32) {
    add_queries<float>(last, kv_heads, sum_);
  } else {
    add_queries<bf16>(last, kv_heads, sum_);
  }
}

void prune_group(const Context& context, const Retention& retention, int layer, RowStore& store,
                 int64_t probe_rows, std::span<const double> question) {
  const std::span<const Modality> all = store.group_modalities();
  const std::span<const Modality> group = all.first(all.size() - static_cast<size_t>(probe_rows));
  if (std::all_of(group.begin(), group.end(),
                  [](Modality modality) { return modality == Modality::text; })) {
    std::vector<int32_t> kept(group.size());
    std::iota(kept.begin(), kept.end(), 0);
    if (probe_rows > 0) store.retain(layer, kept);
    return;
  }
  const RowsView rows = store.rows(layer);
  const auto count = static_cast<int64_t>(group.size());
  const int64_t first = rows.count() - static_cast<int64_t>(all.size());
  const ConstTensorView keys = rows.keys.rows(first, count);
  const ConstTensorView values = rows.values.rows(first, count);
  if (store.device().is_cpu()) {
    const std::vector<double> scores = row_scores(context, retention.rule, keys, values, question);
    store.retain(layer, choose_rows(retention, scores, group));
    return;
  }
  const auto texts = std::count(group.begin(), group.end(), Modality::text);
  cuda::RowChoice choice;
  choice.rows = retention.rule == RetentionRule::value_norm ? values : keys;
  choice.smallest = retention.rule == RetentionRule::key_norm;
  choice.visual = kept_count(retention, count - texts);
  store.retain_there(context, layer, cuda::best_rows(context, choice, question, group));
}

}  // namespace kinora

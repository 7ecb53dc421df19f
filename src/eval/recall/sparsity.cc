#include "eval/recall/sparsity.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>
#include <set>

#include "attention/head_view.h"
#include "attention/plan/region.h"
#include "attention/policies/pattern.h"
#include "attention/search/probe.h"
#include "engine/session_state.h"
#include "eval/prefix_session.h"
#include "ops/matmul.h"
#include "ops/softmax.h"

namespace kinora {
namespace {

constexpr int64_t least_rows = 1024;
constexpr size_t looked_at = 64;  // queries that make lines, and as many that read along them

// Attention of some queries of a head, each over the rows that it sees.
class Weights {
 public:
  Weights(const Context& context, const HeadViews& head, float scale,
          std::span<const int32_t> queries)
      : rows_(head.rows.count()),
        scores_(DType::f32, {std::max<int64_t>(1, std::ssize(queries)), rows_}) {
    const ConstTensorView& q = head.queries.queries;
    const int64_t size = q.size(2);
    Tensor picked(DType::f32, {std::max<int64_t>(1, std::ssize(queries)), size});
    for (size_t i = 0; i < queries.size(); ++i) {
      const float* from = q.row<float>(queries[i]);
      float* to = picked.data<float>() + static_cast<int64_t>(i) * size;
      for (int64_t c = 0; c < size; ++c) to[c] = from[c] * scale;
    }
    const ConstTensorView& keys = head.rows.keys;
    matmul(context, picked,
           ConstTensorView(keys.raw(), keys.dtype(), {rows_, size}, {keys.stride(0), 1},
                           keys.device()),
           scores_);
    for (size_t i = 0; i < queries.size(); ++i) {
      const int32_t ordinal = head.queries.ordinals[static_cast<size_t>(queries[i])];
      seen_.push_back(visible_rows(head.rows.ordinals, ordinal));
      ordinals_.push_back(ordinal);
      const auto row = TensorView::of(scores_.data<float>() + static_cast<int64_t>(i) * rows_,
                                      {1, seen_.back()});
      softmax(context, row, row);
    }
  }

  size_t count() const { return seen_.size(); }
  int32_t ordinal(size_t i) const { return ordinals_[i]; }
  std::span<const float> of(size_t i) const {
    return {scores_.data<float>() + static_cast<int64_t>(i) * rows_, static_cast<size_t>(seen_[i])};
  }

 private:
  int64_t rows_;
  Tensor scores_;
  std::vector<int64_t> seen_;
  std::vector<int32_t> ordinals_;
};

// The smallest number of weights with a sum of `wanted`.
int64_t needed(std::span<const float> weights, double wanted, std::vector<float>& sorted) {
  sorted.assign(weights.begin(), weights.end());
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  double total = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    total += static_cast<double>(sorted[i]);
    if (total >= wanted) return static_cast<int64_t>(i) + 1;
  }
  return std::ssize(sorted);
}

// Rows that a query of this ordinal reads along columns and slashes, each once.
std::vector<int64_t> rows_along(const LineIndex& index, std::span<const int32_t> ordinals,
                                int32_t query, int64_t seen) {
  std::vector<int64_t> found;
  const auto add = [&](int32_t ordinal) {
    const auto last = ordinals.begin() + seen;
    const auto at = std::lower_bound(ordinals.begin(), last, ordinal);
    if (at != last && *at == ordinal) found.push_back(at - ordinals.begin());
  };
  for (const int32_t column : index.columns) add(column);
  for (const int32_t distance : index.slashes) add(query - distance);
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

}  // namespace

void SparsityStudy::begin_prompt() {
  before_ = std::move(lines_);
  lines_.clear();
  group_ = 0;
}

void SparsityStudy::begin_group(const PromptGroup& group) {
  length_ = group.total;
  ++group_;
}

void SparsityStudy::see(const Context& context, const AttentionCall& call) {
  const HostCall host(call);
  const QueryView& queries = host.queries();
  const RowSet& rows = host.rows();
  if (rows.count() < least_rows_) return;
  const std::vector<Region> regions = cut_regions(Boundary::query, queries, rows);
  const PatternSpec spec = scaled(parse_pattern("vertical-slash"), length_);
  std::mutex mutex;
  context.threads->parallel_for(queries.queries.size(1), 1, [&](int64_t begin, int64_t end) {
    const ThreadPool one(1);
    const Context alone(one);
    for (auto head = static_cast<int>(begin); head < end; ++head) {
      const HeadViews view = view_head(queries, rows, head);
      struct Made {
        Modality modality;
        LineIndex index;
        Weights readers;
      };
      std::vector<Made> made;
      std::vector<float> sorted;
      for (const Region& region : regions) {
        const size_t all = region.queries.size();
        const size_t makers = std::min(looked_at, all / 2);
        if (makers == 0) continue;
        const Probe probe = probe_region(alone, view.queries, view.rows, region, 0, call.scale,
                                         ProbeOf::region, static_cast<int64_t>(makers));
        const size_t readers = std::min(looked_at, all - makers);
        made.push_back(
            {region.query_modality, resolve(spec, region, probe),
             Weights(alone, view, call.scale,
                     std::span(region.queries).subspan(all - makers - readers, readers))});
      }
      const std::lock_guard lock(mutex);
      for (const Made& reader : made) {
        Sum& sum = needed_[{call.layer, head, reader.modality}];
        for (size_t i = 0; i < reader.readers.count(); ++i) {
          const auto weights = reader.readers.of(i);
          sum.value += static_cast<double>(needed(weights, wanted_, sorted)) /
                       static_cast<double>(weights.size());
          ++sum.count;
        }
        const auto read = [&](const LineIndex& index, Modality from, bool other) {
          Sum& total = found_[{from, reader.modality, other}];
          for (size_t i = 0; i < reader.readers.count(); ++i) {
            const auto weights = reader.readers.of(i);
            const auto along =
                rows_along(index, rows.ordinals, reader.readers.ordinal(i), std::ssize(weights));
            for (const int64_t row : along) {
              total.value += static_cast<double>(weights[static_cast<size_t>(row)]);
            }
            total.keys += static_cast<double>(along.size()) / static_cast<double>(weights.size());
            ++total.count;
          }
        };
        for (const Made& maker : made) read(maker.index, maker.modality, false);
        const auto old = before_.find({group_, call.layer, head, reader.modality});
        if (old != before_.end()) read(old->second, reader.modality, true);
      }
      for (Made& maker : made) {
        lines_[{group_, call.layer, head, maker.modality}] = std::move(maker.index);
      }
    }
  });
}

std::vector<HeadSparsity> SparsityStudy::heads() const {
  std::vector<HeadSparsity> out;
  for (const auto& [key, sum] : needed_) {
    out.push_back({std::get<0>(key), std::get<1>(key), std::get<2>(key),
                   sum.value / static_cast<double>(sum.count), sum.count});
  }
  return out;
}

std::vector<LineReuse> SparsityStudy::reuse() const {
  std::vector<LineReuse> out;
  for (const auto& [key, sum] : found_) {
    const auto count = static_cast<double>(sum.count);
    out.push_back({std::get<0>(key), std::get<1>(key), std::get<2>(key), sum.value / count,
                   sum.keys / count, sum.count});
  }
  return out;
}

SparsityStudy measure_sparsity(const Engine& engine, const EvalData& data,
                               const SessionOptions& reading, const SparsityOptions& options) {
  SessionOptions dense = reading;
  dense.attention = "dense";
  SparsityStudy study(0.95, least_rows);
  AnswerOptions nothing;
  nothing.max_tokens = 0;
  nothing.cancel = options.cancel;
  std::set<std::string> seen;
  for (const EvalItem& item : data.items) {
    const auto done = static_cast<int64_t>(seen.size());
    if (done == options.prompts) break;
    if (!seen.insert(item.prefix_key()).second) continue;
    if (options.progress) options.progress(done, options.prompts);
    PrefixSession prompt(engine, dense, item, options.cancel);
    study.begin_prompt();
    SessionAccess::state(prompt.session()).observe(&study);
    prompt.ask(item, nothing);
  }
  return study;
}

}  // namespace kinora

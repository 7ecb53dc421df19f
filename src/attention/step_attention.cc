#include "attention/step_attention.h"

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <tuple>

#include "attention/cpu/piece_cpu.h"
#include "base/error.h"
#include "ops/scratch.h"

namespace kinora {
namespace {

using attention_cpu::Piece;
using attention_cpu::piece_queries;
using attention_cpu::piece_stride;

// Rows of a piece: long enough to be worth a result of its own, short enough for every core to get
// some. Sets are cut at multiples of it, so that readers who share some of a set share pieces.
constexpr int64_t piece_rows = 512;
constexpr int64_t max_head_size = 1024;
// Results that one thread joins while another would still be waking up.
constexpr int64_t joined_floats = 16 * 1024;

void check(bool holds, const char* what) {
  if (!holds) throw Error(ErrorKind::internal, std::string("attention of steps: ") + what);
}

bool readable(DType type) {
  return type == DType::f32 || type == DType::bf16 || type == DType::f16;
}

// Where a set's rows begin, whatever describes them.
const void* address(const RowSet& set, int64_t begin) {
  if (set.listed()) return set.list.data<int32_t>() + begin;
  return set.keys.raw() + begin * set.keys.stride(0) * dtype_size(set.keys.dtype());
}

}  // namespace

bool StepAttention::takes(const QueryView& queries, std::span<const RowSet> sets) {
  if (queries.count() != 1 || !queries.queries.device().is_cpu()) return false;
  const int32_t now = queries.ordinals.front();
  return std::all_of(sets.begin(), sets.end(), [&](const RowSet& set) {
    return readable(set.keys.dtype()) && set.keys.size(2) <= max_head_size &&
           (set.serves.empty() || set.serves.front() == 0) &&
           (set.ordinals.empty() || set.ordinals.back() <= now);
  });
}

void StepAttention::add(const QueryView& queries, std::span<const RowSet> sets, TensorView out) {
  const ConstTensorView& q = queries.queries;
  check(q.rank() == 3 && q.size(0) == 1 && q.dtype() == DType::f32 && out.shape() == q.shape() &&
            out.dtype() == DType::f32 && out.device().is_cpu(),
        "query and output are f32 [1, heads, head size]");
  for (const RowSet& set : sets) {
    check(set.keys.rank() == 3 && set.values.shape() == set.keys.shape() &&
              set.values.dtype() == set.keys.dtype() && set.keys.size(2) == q.size(2) &&
              q.size(1) % set.keys.size(1) == 0 && set.keys.size(1) == sets.front().keys.size(1) &&
              set.keys.device().is_cpu(),
          "keys and values are [rows, kv heads, head size], for whole groups of heads");
    check(!set.weighted() ||
              (set.weights.dtype() == DType::f32 && set.weights.size(0) == set.count()),
          "weights are f32, one for each row");
  }
  check(std::any_of(sets.begin(), sets.end(), [](const RowSet& set) { return set.count() > 0; }),
        "a token reads at least its own row");
  check(readers_.empty() || (readers_.front().query.shape() == q[0].shape() &&
                             kv_heads_ == sets.front().keys.size(1)),
        "all sequences belong to one model");
  kv_heads_ = sets.front().keys.size(1);
  Reader reader{q[0], out[0], std::ssize(stretches_), 0};
  for (const RowSet& set : sets) {
    for (int64_t begin = 0; begin < set.count(); begin += piece_rows) {
      stretches_.push_back({&set, begin, std::min(piece_rows, set.count() - begin),
                            std::ssize(readers_), std::ssize(stretches_)});
    }
  }
  reader.count = std::ssize(stretches_) - reader.first;
  readers_.push_back(reader);
}

bool StepAttention::same_rows(const Stretch& a, const Stretch& b) {
  const RowSet &s = *a.set, &t = *b.set;
  return a.begin == b.begin && a.count == b.count && s.keys.raw() == t.keys.raw() &&
         s.values.raw() == t.values.raw() && s.keys.dtype() == t.keys.dtype() &&
         s.keys.stride(0) == t.keys.stride(0) && s.values.stride(0) == t.values.stride(0) &&
         s.list.raw() == t.list.raw() && s.weights.raw() == t.weights.raw();
}

// Puts stretches of the same rows side by side and makes jobs of them. All heads of a row lie side
// by side in memory, so one core reads them; only what would keep it busy longer than the others is
// cut by heads.
void StepAttention::share(int threads) {
  if (readers_.size() > 1) {
    std::sort(stretches_.begin(), stretches_.end(), [](const Stretch& a, const Stretch& b) {
      const void *at = address(*a.set, a.begin), *bt = address(*b.set, b.begin);
      if (at != bt) return std::less<>()(at, bt);
      return std::tie(a.count, a.place) < std::tie(b.count, b.place);
    });
  }
  const int64_t group = readers_.front().query.size(0) / kv_heads_;
  const auto most = static_cast<size_t>(std::max<int64_t>(1, piece_queries / group));
  int64_t all = 0;
  for (const Stretch& stretch : stretches_) all += stretch.count;
  const int64_t fair = all / (2 * threads);
  jobs_.clear();
  for (size_t first = 0; first < stretches_.size();) {
    size_t end = first + 1;
    while (end < stretches_.size() && end - first < most &&
           same_rows(stretches_[first], stretches_[end])) {
      ++end;
    }
    const int64_t rows = stretches_[first].count * static_cast<int64_t>(end - first);
    const int64_t heads = rows < fair ? kv_heads_ : 1;
    for (int64_t head = 0; head < kv_heads_; head += heads) {
      jobs_.push_back({first, end, head, head + heads, rows * heads});
    }
    first = end;
  }
  // The largest first: what is left at the end is small, and nobody waits long for it.
  std::stable_sort(jobs_.begin(), jobs_.end(),
                   [](const Job& a, const Job& b) { return a.work > b.work; });
}

void StepAttention::work(const Job& job, int64_t kv_head, float scale, float* results) const {
  const Stretch& rows = stretches_[job.first];
  const RowSet& set = *rows.set;
  const int64_t heads = readers_.front().query.size(0);
  const int64_t group = heads / kv_heads_;
  const int64_t bytes = dtype_size(set.keys.dtype());
  Piece piece;
  piece.type = set.keys.dtype();
  piece.keys = set.keys.raw() + kv_head * set.keys.stride(1) * bytes;
  piece.values = set.values.raw() + kv_head * set.values.stride(1) * bytes;
  piece.key_stride = set.keys.stride(0);
  piece.value_stride = set.values.stride(0);
  piece.first = rows.begin;
  piece.count = rows.count;
  if (set.listed()) piece.list = set.list.data<int32_t>();
  if (set.weighted()) piece.weights = set.weights.data<float>();
  piece.head_size = set.keys.size(2);
  piece.scale = scale;

  std::array<const float*, piece_queries> queries;
  std::array<float*, piece_queries> to;
  const int64_t stride = piece_stride(piece.head_size);
  size_t count = 0;
  const auto flush = [&] {
    piece.queries = std::span(queries).first(count);
    piece.results = std::span(to).first(count);
    if (count > 0) attention_cpu::read_piece(piece);
    count = 0;
  };
  for (size_t i = job.first; i < job.end; ++i) {
    const Stretch& stretch = stretches_[i];
    const ConstTensorView& query = readers_[static_cast<size_t>(stretch.reader)].query;
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      queries[count] = query.data<float>() + head * query.stride(0);
      to[count++] = results + (stretch.place * heads + head) * stride;
      if (count == queries.size()) flush();
    }
  }
  flush();
}

void StepAttention::run(const Context& context, float scale) {
  if (readers_.empty()) return;
  share(context.threads->threads());
  const int64_t heads = readers_.front().query.size(0);
  const int64_t head_size = readers_.front().query.size(1);
  const int64_t stride = piece_stride(head_size);
  const auto floats = static_cast<size_t>(std::ssize(stretches_) * heads * stride);
  const ScratchLease lease(floats * sizeof(float));
  float* const results = lease.as<float>();
  context.threads->parallel_for(std::ssize(jobs_), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Job& job = jobs_[static_cast<size_t>(i)];
      for (int64_t head = job.head_begin; head < job.head_end; ++head) {
        work(job, head, scale, results);
      }
    }
  });
  const int64_t each = std::max<int64_t>(1, static_cast<int64_t>(floats) / std::ssize(readers_));
  const int64_t grain = std::max<int64_t>(1, joined_floats / each);
  context.threads->parallel_for(std::ssize(readers_), grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Reader& reader = readers_[static_cast<size_t>(i)];
      for (int64_t head = 0; head < heads; ++head) {
        attention_cpu::join_pieces(results + (reader.first * heads + head) * stride, reader.count,
                                   heads * stride, head_size,
                                   reader.out.data<float>() + head * reader.out.stride(0));
      }
    }
  });
  clear();
}

void StepAttention::clear() {
  readers_.clear();
  stretches_.clear();
}

}  // namespace kinora

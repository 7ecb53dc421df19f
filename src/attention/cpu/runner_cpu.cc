#include "attention/cpu/runner_cpu.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <numbers>

#include "attention/merge.h"
#include "ops/rows.h"
#include "ops/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/runner_cpu.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "attention/cpu/few_rows-inl.h"
#include "attention/cpu/in_place-inl.h"
#include "attention/cpu/kernels-inl.h"
#include "attention/cpu/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kinora::attention_cpu {
namespace HWY_NAMESPACE {

constexpr float no_score = -std::numeric_limits<float>::infinity();
constexpr int32_t seen_by_all = std::numeric_limits<int32_t>::min();
constexpr int max_panels = 512;
constexpr int64_t ahead = 8;  // keys that are fetched before they are packed
// With at most this many rows keys are not packed either. Above few_job_rows: same bits.
constexpr int64_t in_place_rows = 32;

// Walks the rows of a list from any place.
class KeyCursor {
 public:
  KeyCursor(const Plan& plan, const Segment* first, int64_t place) : plan_(plan), segment_(first) {
    while (place > 0 && place >= segment_->count) place -= (segment_++)->count;
    at_ = place;
  }
  // The next row; the caller knows how many there are.
  int64_t next(bool& masked) {
    while (at_ >= segment_->count) {
      ++segment_;
      at_ = 0;
    }
    masked = segment_->masked;
    const int64_t at = at_++;
    return segment_->gathered() ? plan_.gathered[static_cast<size_t>(segment_->begin + at)]
                                : segment_->begin + at * segment_->stride;
  }

 private:
  const Plan& plan_;
  const Segment* segment_;
  int64_t at_ = 0;
};

// Everything a thread needs for one job after another.
class Worker {
 public:
  explicit Worker(const Run& run)
      : run_(run),
        head_size_(run.queries.queries.size(2)),
        depth_(round_up(head_size_, 4)),
        width_(round_up(head_size_, lanes)),
        rows_(round_up(job_rows, std::max(strip, bundle_rows))),
        lease_(static_cast<size_t>(scratch_floats()) * sizeof(float)) {
    panel_count_ = cut_panels(width_ / lanes, panels_);
    float* at = lease_.as<float>();
    const auto take = [&](int64_t count) {
      float* begin = at;
      at += round_up(count, 16);
      return begin;
    };
    queries_ = take(rows_ * std::max(depth_, width_));
    out_ = take(rows_ * width_);
    keys_ = take(block_keys * depth_);
    values_ = take(block_keys * width_);
    scores_ = take(block_keys * strip);
    std::fill_n(scores_, block_keys * strip, 0.0f);  // lanes beyond few rows are never written
    max_ = take(rows_);
    sum_ = take(rows_);
    correction_ = take(rows_);
    units_ = take(block_keys * rows_);
    wide_ = take(2 * block_keys * width_);
  }

  void work(const Job& job) {
    start(job);
    with_row_type(run_.rows.keys.dtype(), [&]<typename T>(T) {
      if (job.bundle != nullptr) {
        work_together<T>(*job.bundle);
      } else {
        work_alone<T>(job);
      }
    });
    finish(job);
  }

 private:
  template <typename T>
  void work_alone(const Job& job) {
    const Tile& tile = run_.plan.tiles[static_cast<size_t>(job.tile)];
    KeyCursor cursor(run_.plan, run_.plan.segments.data() + tile.segment_begin, job.key_begin);
    const int64_t step = run_.few_rows ? few_block : block_keys;
    in_place_ = row_count_ <= in_place_rows && run_.options.observer == nullptr;
    for (int64_t begin = job.key_begin; begin < job.key_end; begin += step) {
      const int64_t keys = std::min(step, job.key_end - begin);
      find_block(cursor, keys);
      if (run_.few_rows) {
        run_few<T>(keys);
        continue;
      }
      in_place_ ? list_block<T>(keys) : load_block<T>(keys);
      for (int64_t at = 0; at < row_count_; at += strip) run_strip(at, 0, keys, masked_);
      if (run_.options.observer != nullptr) observe(begin, keys);
    }
  }

  // Every block is loaded once; each tile takes its own keys of it.
  template <typename T>
  void work_together(const Bundle& bundle) {
    in_place_ = false;
    KeyCursor cursor(run_.plan, bundle.list.data(), 0);
    size_t next[job_rows / bundle_rows] = {};  // stretch of each tile
    for (int64_t begin = 0; begin < bundle.length; begin += block_keys) {
      const int64_t keys = std::min(block_keys, bundle.length - begin);
      find_block(cursor, keys);
      if (bundle.masked) see_ordinals(keys);
      load_block<T>(keys);
      int64_t row = 0;
      for (size_t m = 0; m < bundle.members.size(); ++m) {
        const Bundle::Member& member = bundle.members[m];
        const int64_t end = row + member_rows(member);
        for (int64_t to = 0; to < keys && next[m] < member.stretches.size();) {
          const int64_t from = std::max<int64_t>(member.stretches[next[m]].begin - begin, 0);
          if (from >= keys) break;
          bool masked = false;
          // What adjoins runs at once, as it does in a tile alone: the same bits.
          for (to = from; to < keys && next[m] < member.stretches.size(); ++next[m]) {
            const Bundle::Stretch& stretch = member.stretches[next[m]];
            if (to > from && stretch.begin - begin != to) break;
            masked |= stretch.masked;
            to = std::min(stretch.end - begin, keys);
            if (stretch.end - begin > keys) break;  // it goes on in the next block
          }
          for (int64_t at = row; at < end; at += strip) run_strip(at, from, to, masked);
        }
        row = end;
      }
    }
  }

  // Rows of the buffers that a tile of a bundle takes.
  int64_t member_rows(const Bundle::Member& member) const {
    return round_up(rows_in_bundle(run_.plan.tiles[static_cast<size_t>(member.tile)]), strip);
  }

  int64_t scratch_floats() const {
    return rows_ * (std::max(depth_, width_) + width_ + 3) +
           block_keys * (depth_ + 3 * width_ + strip + rows_) + 16 * 10;
  }

  void start(const Job& job) {
    row_count_ = 0;
    kv_head_ = run_.plan.tiles[static_cast<size_t>(job.tile)].head /
               (run_.plan.heads / run_.plan.kv_heads);
    if (job.bundle == nullptr) {
      add_rows(run_.plan.tiles[static_cast<size_t>(job.tile)], job.row_begin, job.row_end);
    } else {
      for (const Bundle::Member& member : job.bundle->members) {
        const Tile& tile = run_.plan.tiles[static_cast<size_t>(member.tile)];
        const int64_t end = row_count_ + member_rows(member);
        add_rows(tile, 0, tile.queries() * tile.heads);
        add_padding(end);
      }
    }
    const int64_t count = row_count_;
    add_padding(round_up(row_count_, strip));
    std::fill_n(max_, row_count_, no_score);
    std::fill_n(sum_, row_count_, 0.0f);
    std::fill_n(out_, row_count_ * width_, 0.0f);
    row_count_ = count;
  }

  // Packed: [strips][depth][strip]. Few rows: [rows][width].
  void add_rows(const Tile& tile, int64_t begin, int64_t end) {
    const ConstTensorView& queries = run_.queries.queries;
    const float factor = run_.scale * std::numbers::log2e_v<float>;
    const bool has_ordinals = !run_.queries.ordinals.empty();
    for (int64_t row = begin; row < end; ++row) {
      const int64_t i = row_count_++;
      query_[i] = run_.plan.query_rows[static_cast<size_t>(tile.query_begin + row / tile.heads)];
      head_[i] = tile.head + static_cast<int32_t>(row % tile.heads);
      ordinals_[i] =
          has_ordinals ? run_.queries.ordinals[static_cast<size_t>(query_[i])] : seen_by_all;
      const float* from =
          queries.data<float>() + query_[i] * queries.stride(0) + head_[i] * queries.stride(1);
      float* to = packed_row(i);
      const int64_t step = run_.few_rows ? 1 : strip, size = run_.few_rows ? width_ : depth_;
      for (int64_t c = 0; c < head_size_; ++c) to[c * step] = from[c] * factor;
      for (int64_t c = head_size_; c < size; ++c) to[c * step] = 0;
    }
  }

  void add_padding(int64_t end) {
    for (; row_count_ < end; ++row_count_) {
      float* to = packed_row(row_count_);
      const int64_t step = run_.few_rows ? 1 : strip, size = run_.few_rows ? width_ : depth_;
      for (int64_t c = 0; c < size; ++c) to[c * step] = 0;
      query_[row_count_] = -1;
      // Earlier than any key: padding never makes a strip look further.
      ordinals_[row_count_] = std::numeric_limits<int32_t>::min();
    }
  }

  float* packed_row(int64_t i) const {
    return queries_ + (run_.few_rows ? i * width_ : i / strip * strip * depth_ + i % strip);
  }

  // Which rows the next keys are, and who may see them.
  void find_block(KeyCursor& cursor, int64_t keys) {
    masked_ = false;
    for (int64_t i = 0; i < keys; ++i) {
      bool masked = false;
      block_rows_[i] = cursor.next(masked);
      key_ordinals_[i] =
          masked ? run_.rows.ordinals[static_cast<size_t>(block_rows_[i])] : seen_by_all;
      masked_ |= masked;
    }
    if (!run_.rows.weighted()) return;
    const auto* weights = run_.rows.weights.data<float>();
    for (int64_t i = 0; i < keys; ++i) bias_[i] = std::log2(weights[block_rows_[i]]);
  }

  // Ordinals of all keys of the block: tiles of a bundle do not agree which of them are masked.
  void see_ordinals(int64_t keys) {
    for (int64_t i = 0; i < keys; ++i) {
      key_ordinals_[i] = run_.rows.ordinals[static_cast<size_t>(block_rows_[i])];
    }
  }

  template <typename T>
  const T* key_row(int64_t place) const {
    const ConstTensorView& k = run_.rows.keys;
    return k.data<T>() + block_rows_[place] * k.stride(0) + kv_head_ * k.stride(1);
  }
  template <typename T>
  const T* value_row(int64_t place) const {
    const ConstTensorView& v = run_.rows.values;
    return v.data<T>() + block_rows_[place] * v.stride(0) + kv_head_ * v.stride(1);
  }

  template <typename T>
  void load_block(int64_t keys) {
    for (int64_t at = 0; at < keys; at += 4) {
      const T* four[4] = {};
      const int64_t end = std::min(at + 4, keys);
      for (int64_t i = at; i < end; ++i) {
        four[i - at] = key_row<T>(i);
        if (i + ahead < keys) {
          fetch_row(key_row<T>(i + ahead), head_size_);
          fetch_row(value_row<T>(i + ahead), head_size_);
        }
      }
      pack_four(four, at, head_size_, depth_, width_, wide_, keys_);
      for (int64_t i = at; i < end; ++i) {
        if constexpr (is_code<T>) {
          pack_value(widened(value_row<T>(i), 0), head_size_, i, panels_, panel_count_, values_);
        } else {
          pack_value(value_row<T>(i), head_size_, i, panels_, panel_count_, values_);
        }
      }
    }
    // The rest of the last group is computed with the others and ignored; it must be finite.
    const float* const none[4] = {};
    for (int64_t at = round_up(keys, 4); at < round_up(keys, key_group); at += 4) {
      pack_keys(none, head_size_, keys_ + at / key_group * key_group * depth_ + at % key_group);
    }
  }

  // A head of fewer bits in place `place` of the buffer.
  template <typename T>
  const float* widened(const T* row, int64_t place) {
    float* to = wide_ + place * width_;
    if constexpr (is_code<T>) {
      widen_head(row, head_size_, to);
    } else {
      const Tag d;
      for (int64_t c = 0; c < width_; c += lanes) {
        hn::Store(load_row(d, row, c, head_size_), d, to + c);
      }
    }
    return to;
  }

  // Where the heads of a block lie as floats.
  template <typename T>
  void list_block(int64_t keys) {
    for (int64_t i = 0; i < keys; ++i) {
      if constexpr (std::is_same_v<T, float>) {
        key_list_[i] = key_row<T>(i);
        value_list_[i] = value_row<T>(i);
      } else {
        const int64_t next = std::min(i + ahead, keys - 1);
        fetch_row(key_row<T>(next), head_size_);
        fetch_row(value_row<T>(next), head_size_);
        key_list_[i] = widened(key_row<T>(i), i);
        value_list_[i] = widened(value_row<T>(i), block_keys + i);
      }
    }
  }

  template <typename T>
  void run_few(int64_t keys) {
    if constexpr (is_code<T>) {
      const float* key_list[few_block] = {};
      const float* value_list[few_block] = {};
      for (int64_t i = 0; i < keys; ++i) {
        const int64_t next = std::min(i + ahead, keys - 1);
        fetch_row(key_row<T>(next), head_size_);
        fetch_row(value_row<T>(next), head_size_);
        key_list[i] = widened(key_row<T>(i), i);
        value_list[i] = widened(value_row<T>(i), few_block + i);
      }
      run_few_rows(key_list, value_list, keys);
    } else {
      const T* key_list[few_block] = {};
      const T* value_list[few_block] = {};
      for (int64_t i = 0; i < keys; ++i) {
        key_list[i] = key_row<T>(i);
        value_list[i] = value_row<T>(i);
      }
      run_few_rows(key_list, value_list, keys);
    }
  }

  template <typename T>
  void run_few_rows(const T* const* key_list, const T* const* value_list, int64_t keys) {
    score_few_rows(key_list, value_list, keys, queries_, row_count_, head_size_, width_, scores_);
    if (run_.rows.weighted()) add_bias(bias_, keys, scores_);
    if (masked_) mask_strip(ordinals_, key_ordinals_, keys, scores_);
    weigh_strip(row_count_, keys, scores_, max_, sum_, correction_, 0, nullptr);
    add_few_rows(scores_, value_list, keys, row_count_, head_size_, correction_, out_, width_);
  }

  // The strip's queries with keys [begin, end) of the block.
  void run_strip(int64_t at, int64_t begin, int64_t end, bool masked) {
    const int64_t unit = run_.options.observer ? run_.options.observer->block_size() : 0;
    float* units = units_ + at * block_keys;
    if (masked) {
      // Keys after the last one that any of these queries may see are not worth computing.
      const int32_t latest = *std::max_element(ordinals_ + at, ordinals_ + at + strip);
      const int64_t all = end;
      while (end > begin && key_ordinals_[end - 1] > latest) --end;
      if (unit > 0 && end < all) std::fill_n(units, round_up(all, unit) / unit * strip, 0.0f);
      if (end == begin) return;
    }
    const int64_t group = begin / key_group, keys = end - begin;
    const int64_t rows = std::min(strip, row_count_ - at);
    if (in_place_) {
      score_in_place(key_list_, keys, queries_ + at * depth_, rows, head_size_, scores_);
    } else {
      score_strip(queries_ + at * depth_, keys_ + group * key_group * depth_,
                  (end + key_group - 1) / key_group - group, depth_,
                  scores_ + group * key_group * strip);
    }
    float* scores = scores_ + begin * strip;
    if (run_.rows.weighted()) add_bias(bias_ + begin, keys, scores);
    if (masked) mask_strip(ordinals_ + at, key_ordinals_ + begin, keys, scores);
    weigh_strip(rows, keys, scores, max_ + at, sum_ + at, correction_ + at, unit, units);
    float* out = out_ + at * width_;
    if (in_place_) {
      add_in_place(scores, value_list_, keys, rows, head_size_, correction_ + at, out, width_);
    } else {
      add_values(scores, values_, panels_, panel_count_, begin, keys, rows, correction_ + at, out,
                 width_);
    }
  }

  void observe(int64_t begin, int64_t keys) {
    const int64_t unit = run_.options.observer->block_size();
    float scores[job_rows];
    for (int64_t i = 0; i * unit < keys; ++i) {
      for (int64_t row = 0; row < row_count_; ++row) {
        const float sum = units_[row / strip * strip * block_keys + i * strip + row % strip];
        scores[row] = sum > 0 ? std::log2(sum) + max_[row] : no_score;
      }
      run_.options.observer->observe(begin / unit + i, row_count_, query_, head_, scores);
    }
  }

  void finish(const Job& job) {
    const TensorView& out = run_.out;
    const SoftmaxState& state = run_.options.state;
    for (int64_t i = 0; i < row_count_; ++i) {
      if (query_[i] < 0) continue;
      const float sum = sum_[i];
      const float max = max_[i] * std::numbers::ln2_v<float>;
      const float factor = sum > 0 ? 1.0f / sum : 0.0f;
      float* to = out.data<float>() + query_[i] * out.stride(0) + head_[i] * out.stride(1);
      if (job.partial >= 0) {
        const int64_t row = job.partial + i;
        to = run_.partials.out + row * head_size_;
        run_.partials.max[row] = max;
        run_.partials.sum[row] = sum;
      } else {
        const int64_t place = query_[i] * run_.plan.heads + head_[i];
        if (run_.merge) {
          float* mine = out_ + i * width_;
          for (int64_t c = 0; c < head_size_; ++c) mine[c] *= factor;
          PartialRow row{to, state.max[place], state.sum[place]};
          merge_row(row, mine, max, sum, head_size_);
          state.max[place] = row.max;
          state.sum[place] = row.sum;
          continue;
        }
        if (state.max != nullptr) state.max[place] = max;
        if (state.sum != nullptr) state.sum[place] = sum;
      }
      for (int64_t c = 0; c < head_size_; ++c) to[c] = out_[i * width_ + c] * factor;
    }
  }

  const Run& run_;
  const int64_t head_size_;
  const int64_t depth_;  // head size in whole groups of 4
  const int64_t width_;  // head size in whole vectors
  const int64_t rows_;
  ScratchLease lease_;
  Panel panels_[max_panels];
  int panel_count_ = 0;

  int64_t kv_head_ = 0;
  int64_t row_count_ = 0;
  bool masked_ = false;
  bool in_place_ = false;  // the job's keys and values are not packed, but listed
  const float* key_list_[block_keys];
  const float* value_list_[block_keys];
  float* queries_ = nullptr;     // packed, scaled by scale · log2 e
  float* out_ = nullptr;         // [rows][width]
  float* keys_ = nullptr;        // packed block
  float* values_ = nullptr;      // packed block
  float* scores_ = nullptr;      // [block][strip]
  float* max_ = nullptr;         // [rows], in powers of two
  float* sum_ = nullptr;         // [rows]
  float* correction_ = nullptr;  // [rows]
  float* units_ = nullptr;       // [strips][units][strip]: weight of every observed block
  float* wide_ = nullptr;        // [2 · block][width]: heads of fewer bits as floats
  int32_t query_[job_rows + strip];
  int32_t head_[job_rows + strip];
  int32_t ordinals_[job_rows + strip];
  int32_t key_ordinals_[block_keys];
  int64_t block_rows_[block_keys];
  float bias_[block_keys];  // log2 of the weights of these rows, where they have some
};

void run_jobs_here(const Context& context, const Run& run, std::span<const Job> jobs,
                   std::span<double> seconds) {
  std::atomic<size_t> next{0};
  const auto workers =
      std::min<int64_t>(context.threads->threads(), static_cast<int64_t>(jobs.size()));
  context.threads->parallel_for(workers, 1, [&](int64_t, int64_t) {
    Worker worker(run);
    for (size_t i = next++; i < jobs.size(); i = next++) {
      run.queries.check_cancelled();
      const auto begin = std::chrono::steady_clock::now();
      worker.work(jobs[i]);
      if (seconds.empty()) continue;
      seconds[i] = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace kinora::attention_cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kinora::attention_cpu {

HWY_EXPORT(run_jobs_here);

void run_jobs(const Context& context, const Run& run, std::span<const Job> jobs,
              std::span<double> seconds) {
  HWY_DYNAMIC_DISPATCH(run_jobs_here)(context, run, jobs, seconds);
}

}  // namespace kinora::attention_cpu
#endif

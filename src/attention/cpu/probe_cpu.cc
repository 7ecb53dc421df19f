#include "attention/cpu/probe_cpu.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "ops/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/probe_cpu.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "attention/cpu/few_rows-inl.h"
#include "attention/cpu/kernels-inl.h"
#include "attention/cpu/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kinora::attention_cpu {
namespace HWY_NAMESPACE {

constexpr int64_t look_keys = 8 * block_keys;  // that one piece of work reads

// A look with its queries in lanes. Where their coordinates are not adjacent a new vector begins:
// what a vector weighs one key with then lies on adjacent diagonals.
class LaneLook {
 public:
  LaneLook(const Look& given, const QueryView& queries, float scale)
      : look(given), head_size(queries.queries.size(2)), depth(round_up(head_size, 4)) {
    const Region& region = *look.region;
    std::vector<int32_t> place_of_lane;
    int64_t before = std::numeric_limits<int64_t>::min();
    for (const int32_t place : look.places) {
      const int64_t coordinate = region.query_coordinates[static_cast<size_t>(place)];
      if (coordinate != before + 1) pad(place_of_lane, lanes);
      if (std::ssize(place_of_lane) % lanes == 0) bases.push_back(coordinate);
      place_of_lane.push_back(place);
      before = coordinate;
    }
    pad(place_of_lane, strip);
    bases.resize(place_of_lane.size() / static_cast<size_t>(lanes), bases.back());
    width = std::ssize(place_of_lane);
    first_coordinate = region.query_coordinates[static_cast<size_t>(look.places.front())];
    last_coordinate = region.query_coordinates[static_cast<size_t>(look.places.back())];
    last_row.reserve(place_of_lane.size());
    for (const int32_t place : place_of_lane) {
      last_row.push_back(place < 0
                             ? -1
                             : static_cast<int32_t>(region.place_of(
                                   int64_t{region.query_reach[static_cast<size_t>(place)]} + 1)) -
                                   1);
    }
    pack(queries, place_of_lane, scale);
    blocks = (region.row_count() + look_keys - 1) / look_keys;
    const int64_t states = blocks * rows();
    max = Tensor(DType::f32, {states});
    sum = Tensor(DType::f32, {states});
    log_sum = Tensor(DType::f32, {rows()});
    diagonals.resize(static_cast<size_t>(blocks) * look.heads.size());
  }

  int64_t heads() const { return std::ssize(look.heads); }
  int64_t rows() const { return heads() * width; }
  // Where the running softmax of a head's strip over a block stands.
  int64_t state(int64_t block, int64_t head, int64_t at) const {
    return block * rows() + head * width + at;
  }
  // The largest of the last rows that queries of a strip see, and the smallest of those that see
  // any.
  int32_t latest(int64_t at) const {
    return *std::max_element(last_row.begin() + at, last_row.begin() + at + strip);
  }
  int32_t earliest(int64_t at) const {
    int32_t least = std::numeric_limits<int32_t>::max();
    for (int64_t i = at; i < at + strip; ++i) {
      const int32_t last = last_row[static_cast<size_t>(i)];
      if (last >= 0) least = std::min(least, last);
    }
    return least;
  }

  // log2 Σ 2^s of every lane over all blocks; ∞ where there is no query, which then weighs nothing.
  void join_blocks() {
    const auto *tops = max.data<float>(), *sums = sum.data<float>();
    for (int64_t row = 0; row < rows(); ++row) {
      float top = -std::numeric_limits<float>::infinity();
      for (int64_t b = 0; b < blocks; ++b) top = std::max(top, tops[b * rows() + row]);
      double total = 0;
      for (int64_t b = 0; b < blocks; ++b) {
        total += double{sums[b * rows() + row]} *
                 std::exp2(double{tops[b * rows() + row]} - double{top});
      }
      const bool used = last_row[static_cast<size_t>(row % width)] >= 0;
      log_sum.data<float>()[row] = used ? static_cast<float>(double{top} + std::log2(total))
                                        : std::numeric_limits<float>::infinity();
    }
  }

  // Distances that weights of a block can have, in a buffer that whole vectors may be added to.
  int64_t lowest_distance(int64_t block) const {
    return first_coordinate - coordinate_of(block_end(block) - 1);
  }
  int64_t distances(int64_t block) const {
    return last_coordinate - coordinate_of(block * look_keys) - lowest_distance(block) + 1 +
           2 * lanes;
  }
  int64_t block_end(int64_t block) const {
    return std::min((block + 1) * look_keys, look.region->row_count());
  }

  // The parts of a head's diagonals, in the order of the blocks.
  void join_diagonals(int64_t head) {
    std::vector<float>& all = look.probes[static_cast<size_t>(head)]->diagonals;
    for (int64_t block = 0; block < blocks; ++block) {
      const std::vector<float>& part = part_of(block, head);
      const int64_t low = lowest_distance(block);
      const int64_t begin = std::max<int64_t>(0, -low);
      const int64_t end = std::min(std::ssize(part), std::ssize(all) - low);
      for (int64_t i = begin; i < end; ++i) {
        all[static_cast<size_t>(low + i)] += part[static_cast<size_t>(i)];
      }
    }
  }
  std::vector<float>& part_of(int64_t block, int64_t head) {
    return diagonals[static_cast<size_t>(block * heads() + head)];
  }

  const Look& look;
  const int64_t head_size, depth;
  int64_t width = 0;  // lanes of one head, whole strips
  int64_t blocks = 0;
  int64_t first_coordinate = 0, last_coordinate = 0;
  std::vector<int32_t> last_row;  // [width]: the last place that a lane's query sees; −1: no query
  std::vector<int64_t> bases;     // [width / lanes]: the coordinate of a vector's first lane
  Tensor packed;                  // [heads][strips][depth][strip], scaled by scale · log2 e
  Tensor max, sum;                // [blocks][heads][width], in powers of two
  Tensor log_sum;                 // [heads][width]
  std::vector<std::vector<float>> diagonals;  // [blocks][heads][distances]

 private:
  static void pad(std::vector<int32_t>& list, int64_t step) {
    list.resize(static_cast<size_t>(round_up(std::ssize(list), step)), -1);
  }
  int64_t coordinate_of(int64_t place) const {
    return look.region->row_coordinates[static_cast<size_t>(place)];
  }
  void pack(const QueryView& queries, std::span<const int32_t> place_of_lane, float scale) {
    packed = Tensor::zeros(DType::f32, {heads() * width * depth});
    const ConstTensorView& q = queries.queries;
    const float factor = scale * std::numbers::log2e_v<float>;
    for (int64_t head = 0; head < heads(); ++head) {
      float* to = packed.data<float>() + head * width * depth;
      for (int64_t i = 0; i < width; ++i) {
        const int32_t place = place_of_lane[static_cast<size_t>(i)];
        if (place < 0) continue;
        const int64_t query = look.region->queries[static_cast<size_t>(place)];
        const float* from = q.data<float>() + query * q.stride(0) +
                            look.heads[static_cast<size_t>(head)] * q.stride(1);
        float* lane = to + i / strip * strip * depth + i % strip;
        for (int64_t c = 0; c < head_size; ++c) lane[c * strip] = from[c] * factor;
      }
    }
  }
};

// What a thread needs for one block after another.
class Looker {
 public:
  Looker(const RowSet& rows, LaneLook& look, int64_t block)
      : rows_(rows),
        look_(look),
        block_(block),
        width_(round_up(look.head_size, lanes)),
        lease_(static_cast<size_t>(block_keys * (look.depth + strip + lanes) + 4 * width_ +
                                   2 * lanes * lanes + strip + 16 * 6) *
               sizeof(float)) {
    float* at = lease_.as<float>();
    const auto take = [&](int64_t count) {
      float* begin = at;
      at += round_up(count, 16);
      return begin;
    };
    keys_ = take(block_keys * look.depth);
    scores_ = take(block_keys * strip);
    columns_ = take(block_keys * lanes);
    wide_ = take(4 * width_);
    skewed_ = take(2 * lanes * lanes);
    correction_ = take(strip);
    std::fill_n(skewed_, 2 * lanes * lanes, 0.0f);
  }

  // The running softmax of every query.
  void sum() {
    const int64_t first = look_.state(block_, 0, 0);
    float* max = look_.max.data<float>();
    float* sum = look_.sum.data<float>();
    std::fill_n(max + first, look_.rows(), -std::numeric_limits<float>::infinity());
    std::fill_n(sum + first, look_.rows(), 0.0f);
    for_blocks([&](int64_t begin, int64_t keys) {
      for (int64_t head = 0; head < look_.heads(); ++head) {
        for_strips(head, begin, keys, [&](int64_t at, int64_t count) {
          const int64_t state = look_.state(block_, head, at);
          weigh_strip(strip, count, scores_, max + state, sum + state, correction_, 0, nullptr);
        });
      }
    });
  }

  // Weights, added up.
  void weigh() {
    for (int64_t head = 0; head < look_.heads(); ++head) {
      look_.part_of(block_, head).assign(static_cast<size_t>(look_.distances(block_)), 0.0f);
    }
    for_blocks([&](int64_t begin, int64_t keys) HWY_ATTR {
      for (int64_t head = 0; head < look_.heads(); ++head) {
        std::fill_n(columns_, keys * lanes, 0.0f);
        for_strips(head, begin, keys, [&](int64_t at, int64_t count) HWY_ATTR {
          for (int64_t v = 0; v < strip_vectors; ++v) {
            add_vector(head, at + v * lanes, begin, count, scores_ + v * lanes);
          }
        });
        float* columns = look_.look.probes[static_cast<size_t>(head)]->columns.data() + begin;
        const Tag d;
        for (int64_t k = 0; k < keys; ++k) {
          columns[k] = hn::GetLane(hn::SumOfLanes(d, hn::Load(d, columns_ + k * lanes)));
        }
      }
    });
  }

 private:
  template <class Work>
  void for_blocks(const Work& work) {
    const int64_t end = look_.block_end(block_);
    for (int64_t begin = block_ * look_keys; begin < end; begin += block_keys) {
      const int64_t keys = std::min(block_keys, end - begin);
      with_row_type(rows_.keys.dtype(), [&]<typename T>(T) { load<T>(begin, keys); });
      work(begin, keys);
    }
  }

  template <typename T>
  void load(int64_t begin, int64_t keys) {
    const ConstTensorView& k = rows_.keys;
    const auto row = [&](int64_t i) {
      const int64_t at = look_.look.region->rows[static_cast<size_t>(begin + i)];
      return k.data<T>() + at * k.stride(0) + look_.look.kv_head * k.stride(1);
    };
    for (int64_t i = 0; i < keys; ++i) places_[i] = static_cast<int32_t>(begin + i);
    constexpr int64_t ahead = 8;
    for (int64_t at = 0; at < round_up(keys, key_group); at += 4) {
      const T* four[4] = {};
      for (int64_t i = at; i < std::min(at + 4, keys); ++i) {
        four[i - at] = row(i);
        if (i + ahead < keys) fetch_row(row(i + ahead), look_.head_size);
      }
      pack_four(four, at, look_.head_size, look_.depth, width_, wide_, keys_);
    }
  }

  // work(first lane of the strip, keys that any of its queries sees) with their scores.
  template <class Work>
  void for_strips(int64_t head, int64_t begin, int64_t keys, const Work& work) {
    const float* queries = look_.packed.data<float>() + head * look_.width * look_.depth;
    for (int64_t at = 0; at < look_.width; at += strip) {
      const int64_t count = std::min<int64_t>(keys, look_.latest(at) + 1 - begin);
      if (count <= 0) continue;
      score_strip(queries + at * look_.depth, keys_, (count + key_group - 1) / key_group,
                  look_.depth, scores_);
      if (begin + count - 1 > look_.earliest(at)) {
        mask_strip(look_.last_row.data() + at, places_, count, scores_);
      }
      work(at, count);
    }
  }

  // One vector of queries: scores[key · strip] become weights and are added to columns and
  // diagonals.
  void add_vector(int64_t head, int64_t lane, int64_t begin, int64_t keys, float* scores) {
    const Tag d;
    const Vector log_sum = hn::Load(d, look_.log_sum.data<float>() + head * look_.width + lane);
    const int64_t base = look_.bases[static_cast<size_t>(lane / lanes)];
    const int32_t* coordinates = look_.look.region->row_coordinates.data() + begin;
    // The diagonal of the first lane and a key of coordinate 0.
    float* diagonal = look_.part_of(block_, head).data() + base - look_.lowest_distance(block_);
    const auto weigh = [&](int64_t k) HWY_ATTR {
      const Vector p = exp2(hn::Sub(hn::Load(d, scores + k * strip), log_sum));
      float* column = columns_ + k * lanes;
      hn::Store(hn::Add(hn::Load(d, column), p), d, column);
      return p;
    };
    int64_t k = 0;
    for (; k + lanes <= keys; k += lanes) {
      const int64_t last = coordinates[k + lanes - 1];
      if (last - coordinates[k] != lanes - 1) {
        for (int64_t i = k; i < k + lanes; ++i) add(weigh(i), diagonal - coordinates[i]);
        continue;
      }
      // Adjacent keys against adjacent queries: each key's weights one lane further than those of
      // the key behind it, so that whole vectors of them add up.
      for (int64_t i = 0; i < lanes; ++i) {
        hn::StoreU(weigh(k + i), d, skewed_ + i * 2 * lanes + lanes - 1 - i);
      }
      Vector near = hn::Zero(d), far = hn::Zero(d);
      for (int64_t i = 0; i < lanes; ++i) {
        near = hn::Add(near, hn::Load(d, skewed_ + i * 2 * lanes));
        far = hn::Add(far, hn::Load(d, skewed_ + i * 2 * lanes + lanes));
      }
      add(near, diagonal - last);
      add(far, diagonal - last + lanes);
    }
    for (; k < keys; ++k) add(weigh(k), diagonal - coordinates[k]);
  }

  static HWY_INLINE void add(Vector value, float* to) {
    const Tag d;
    hn::StoreU(hn::Add(hn::LoadU(d, to), value), d, to);
  }

  const RowSet& rows_;
  LaneLook& look_;
  const int64_t block_;
  const int64_t width_;
  ScratchLease lease_;
  float* keys_ = nullptr;     // packed
  float* scores_ = nullptr;   // [block_keys][strip]
  float* columns_ = nullptr;  // [block_keys][lanes]
  float* wide_ = nullptr;     // [4][width]: keys of 8 bits as floats
  float* skewed_ = nullptr;   // [lanes][2 · lanes], zero where nothing is written
  float* correction_ = nullptr;
  int32_t places_[block_keys];
};

void run_looks_here(const Context& context, const QueryView& queries, const RowSet& rows,
                    float scale, std::span<const Look> looks) {
  std::vector<LaneLook> lane_looks;
  lane_looks.reserve(looks.size());
  std::vector<std::pair<size_t, int64_t>> blocks, heads;  // of looks
  for (const Look& look : looks) {
    lane_looks.emplace_back(look, queries, scale);
    for (int64_t i = 0; i < lane_looks.back().blocks; ++i) {
      blocks.emplace_back(lane_looks.size() - 1, i);
    }
    for (int64_t i = 0; i < std::ssize(look.heads); ++i) {
      heads.emplace_back(lane_looks.size() - 1, i);
    }
  }
  const auto for_each = [&](size_t count, const auto& work) {
    context.threads->parallel_for(static_cast<int64_t>(count), 1, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        queries.check_cancelled();
        work(i);
      }
    });
  };
  for_each(blocks.size(),
           [&](size_t i) { Looker(rows, lane_looks[blocks[i].first], blocks[i].second).sum(); });
  for_each(lane_looks.size(), [&](size_t i) { lane_looks[i].join_blocks(); });
  for_each(blocks.size(),
           [&](size_t i) { Looker(rows, lane_looks[blocks[i].first], blocks[i].second).weigh(); });
  for_each(heads.size(),
           [&](size_t i) { lane_looks[heads[i].first].join_diagonals(heads[i].second); });
}

}  // namespace HWY_NAMESPACE
}  // namespace kinora::attention_cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kinora::attention_cpu {

HWY_EXPORT(run_looks_here);

void run_looks(const Context& context, const QueryView& queries, const RowSet& rows, float scale,
               std::span<const Look> looks) {
  HWY_DYNAMIC_DISPATCH(run_looks_here)(context, queries, rows, scale, looks);
}

}  // namespace kinora::attention_cpu
#endif

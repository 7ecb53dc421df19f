#include "ops/matmul_bf16_x86.h"

#if defined(__x86_64__) && defined(__linux__)

#include <algorithm>
#include <vector>

#include "ops/x86_intrinsics.h"
#include "ops/x86_turn.h"

namespace kinora::cpu {
namespace {

constexpr int64_t tile_rows = bf16_tile_rows;
constexpr int64_t tile_k = bf16_tile_k;
constexpr int64_t panel = bf16_panel;
constexpr int64_t panel_step = bf16_panel_step;
constexpr int64_t tile_sums = bf16_tile_sums;
constexpr int exact_parts = 3;
// Weights that are worth waking a thread for.
constexpr int64_t least_weights = 16 * 1024;

// 32 values as bf16 in `parts` parts, each of which takes 8 of 24 bits: with three, nothing is
// lost. What is infinite or no number stays so in the first part and adds nothing in the others.
template <int parts>
KINORA_AVX512_TARGET inline void cut_values(__m512 low, __m512 high, __m512i (&cut)[parts]) {
  if constexpr (parts == 1) {
    cut[0] = (__m512i)_mm512_cvtne2ps_pbh(high, low);
  } else {
    constexpr int not_a_number = 0x81, not_finite = 0x99;
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
#pragma GCC unroll 3
    for (int part = 0; part < parts; ++part) {
      __m512 rest[2] = {low, high};
      __m512i whole[2];
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        // Cut off and not rounded, so that nothing becomes infinite. A NaN must not lose its bits.
        whole[i] = _mm512_and_si512(_mm512_castps_si512(rest[i]), upper);
        whole[i] = _mm512_mask_or_epi32(whole[i], _mm512_fpclass_ps_mask(rest[i], not_a_number),
                                        whole[i], _mm512_set1_epi32(0x00400000));
        const __mmask16 finite = static_cast<__mmask16>(
            ~static_cast<unsigned>(_mm512_fpclass_ps_mask(rest[i], not_finite)));
        rest[i] = _mm512_maskz_sub_ps(finite, rest[i], _mm512_castsi512_ps(whole[i]));
      }
      low = rest[0];
      high = rest[1];
      // The upper halves of 32 numbers, in order.
      const __m512i index =
          _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29,
                           27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
      cut[part] = _mm512_permutex2var_epi16(whole[0], index, whole[1]);
    }
  }
}

template <int parts>
KINORA_AVX512_TARGET void pack_rows(const float* rows, int64_t stride, int64_t count, int64_t k,
                                    std::byte* to) {
  for (int64_t j = 0; j < std::max<int64_t>(k, 1); j += tile_k, to += parts * panel_step) {
    const __mmask16 low = bits_of(0, k - j), high = bits_of(0, k - j - 16);
    for (int64_t first = 0; first < count; first += tile_rows) {
      alignas(64) float pairs[parts][tile_sums];
      for (int64_t i = 0; i < tile_rows; ++i) {
        __m512i values[parts];
#pragma GCC unroll 3
        for (int part = 0; part < parts; ++part) values[part] = _mm512_setzero_si512();
        if (first + i < count) {
          const float* from = rows + (first + i) * stride + j;
          cut_values<parts>(_mm512_maskz_loadu_ps(low, from),
                            _mm512_maskz_loadu_ps(high, from + 16), values);
        }
#pragma GCC unroll 3
        for (int part = 0; part < parts; ++part) {
          _mm512_store_si512(pairs[part] + i * 16, values[part]);
        }
      }
      for (int part = 0; part < parts; ++part) {
        auto* tile =
            reinterpret_cast<float*>(to + part * panel_step + first / tile_rows * bf16_tile_bytes);
        for (int chunk = 0; chunk < 4; ++chunk) {
          __m512 columns[4];
          turn_four(pairs[part], 16, chunk, columns);
#pragma GCC unroll 4
          for (int c = 0; c < 4; ++c) _mm512_store_ps(tile + (chunk * 4 + c) * 16, columns[c]);
        }
      }
    }
  }
}

// `count` rows in three parts, one part below the other: 3 · count rows into [k / 32][2][16
// pairs][16 rows][2]. What is missing is zero, but of the second tile nothing is written where the
// first takes all rows.
KINORA_AVX512_TARGET void pack_parts_as_rows(const float* rows, int64_t stride, int64_t count,
                                             int64_t k, std::byte* to) {
  alignas(64) float pairs[2 * tile_sums] = {};
  const int64_t tiles = divide_up(exact_parts * count, tile_rows);
  for (int64_t j = 0; j < std::max<int64_t>(k, 1); j += tile_k, to += panel_step) {
    const __mmask16 low = bits_of(0, k - j), high = bits_of(0, k - j - 16);
    for (int64_t i = 0; i < count; ++i) {
      const float* from = rows + i * stride + j;
      __m512i values[exact_parts];
      cut_values<exact_parts>(_mm512_maskz_loadu_ps(low, from),
                              _mm512_maskz_loadu_ps(high, from + 16), values);
#pragma GCC unroll 3
      for (int part = 0; part < exact_parts; ++part) {
        _mm512_store_si512(pairs + (part * count + i) * 16, values[part]);
      }
    }
    for (int64_t tile = 0; tile < tiles; ++tile) {
      auto* out = reinterpret_cast<float*>(to + tile * bf16_tile_bytes);
      for (int chunk = 0; chunk < 4; ++chunk) {
        __m512 columns[4];
        turn_four(pairs + tile * tile_sums, 16, chunk, columns);
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) _mm512_store_ps(out + (chunk * 4 + c) * 16, columns[c]);
      }
    }
  }
}

}  // namespace

void pack_bf16_rows(const float* rows, int64_t stride, int64_t count, int64_t k, int parts,
                    std::byte* to) {
  (parts == 1 ? pack_rows<1> : pack_rows<3>)(rows, stride, count, k, to);
}

KINORA_AVX512_TARGET void write_bf16_sums(const MatmulWork& work, const Bf16Sums& sums) {
  const int64_t tiles = divide_up(sums.rows, tile_rows);
  const bool add = work.accumulate || !sums.first;
  for (int64_t side = 0; side < 2; ++side) {
    const int64_t column = sums.column + side * tile_rows;
    const __mmask16 mask = bits_of(sums.begin - column, sums.end - column);
    if (mask == 0) continue;
    __m512 bias = _mm512_setzero_ps();
    if (sums.first && work.bias) bias = _mm512_maskz_loadu_ps(mask, work.bias + column);
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const float* from = sums.values + (side * tiles + tile) * tile_sums;
      const int64_t rows = std::min(tile_rows, sums.rows - tile * tile_rows);
      float* out = work.out + (sums.row + tile * tile_rows) * work.out_stride + column;
      for (int chunk = 0; chunk * 4 < rows; ++chunk) {
        __m512 columns[4];
        turn_four(from, 16, chunk, columns);
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) {
          if (chunk * 4 + r >= rows) break;
          float* to = out + (chunk * 4 + r) * work.out_stride;
          __m512 value = _mm512_add_ps(columns[r], bias);
          if (add) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, to));
          _mm512_mask_storeu_ps(to, mask, value);
        }
      }
    }
  }
}

namespace {

// The same of rows whose three parts stand one below the other: the smallest are added first.
KINORA_AVX512_TARGET void write_parts_as_rows(const MatmulWork& work, const Bf16Sums& sums) {
  const int64_t tiles = divide_up(exact_parts * sums.rows, tile_rows);
  for (int64_t side = 0; side < 2; ++side) {
    const int64_t column = sums.column + side * tile_rows;
    const __mmask16 mask = bits_of(sums.begin - column, sums.end - column);
    if (mask == 0) continue;
    __m512 bias = _mm512_setzero_ps();
    if (work.bias) bias = _mm512_maskz_loadu_ps(mask, work.bias + column);
    alignas(64) float turned[2 * tile_sums];  // [part][row][16 weights]
    for (int64_t chunk = 0; chunk * 4 < exact_parts * sums.rows; ++chunk) {
      const float* from = sums.values + (side * tiles + chunk / 4) * tile_sums;
      __m512 columns[4];
      turn_four(from, 16, static_cast<int>(chunk % 4), columns);
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) _mm512_store_ps(turned + (chunk * 4 + c) * 16, columns[c]);
    }
    for (int64_t r = 0; r < sums.rows; ++r) {
      const auto part = [&](int64_t number) KINORA_AVX512_TARGET {
        return _mm512_load_ps(turned + (number * sums.rows + r) * 16);
      };
      float* to = work.out + (sums.row + r) * work.out_stride + column;
      __m512 value = _mm512_add_ps(_mm512_add_ps(part(2), part(1)), part(0));
      value = _mm512_add_ps(value, bias);
      if (work.accumulate) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, to));
      _mm512_mask_storeu_ps(to, mask, value);
    }
  }
}

// `count` weight rows into [k / 32][32 rows][32 values]; what is missing is zero.
KINORA_AVX512_TARGET void copy_weights(const bf16* rows, int64_t stride, int64_t count, int64_t k,
                                       std::byte* to) {
  for (int64_t i = 0; i < panel; ++i, to += tile_k * sizeof(bf16)) {
    const bf16* from = rows + i * stride;
    std::byte* at = to;
    for (int64_t j = 0; j < k; j += tile_k, at += panel_step) {
      const uint64_t left = static_cast<uint64_t>(std::min(tile_k, k - j));
      const auto mask = static_cast<__mmask32>(i < count ? (uint64_t{1} << left) - 1 : 0);
      _mm512_store_si512(at, _mm512_maskz_loadu_epi16(mask, from + j));
    }
  }
}

// How few rows meet the weights.
struct RowForm {
  int parts = 1;  // that the kernel adds up
  // Rows so few that their three parts are rows themselves: tiles that would be half empty hold
  // more than one part, and the kernel, which takes each for a row, has less to do.
  bool parts_as_rows = false;
};

// Multiplies one panel after the other, and writes each while the next one is multiplied: the
// instructions that turn sums find their place among those that wait for tiles.
class Pipeline {
 public:
  Pipeline(const Bf16Kernel& kernel, RowForm form) : kernel_(kernel), form_(form) {
    kernel_.begin();
  }
  ~Pipeline() {
    write();
    kernel_.end();
  }
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // The place for the next sums, whose position the caller fills in.
  Bf16Sums& next() { return waiting_ == &sums_[0] ? sums_[1] : sums_[0]; }

  void multiply(const MatmulWork& work, const Bf16Weights& weights, const std::byte* rows,
                Bf16Sums& sums) {
    for (int64_t r = 0; r < sums.rows; ++r) {
      const float* out = work.out + (sums.row + r) * work.out_stride + sums.column;
      for (int64_t c = 0; c < panel; c += 16) __builtin_prefetch(out + c, 1);
    }
    const int64_t rows_met = form_.parts_as_rows ? exact_parts * sums.rows : sums.rows;
    kernel_.multiply(rows_met, form_.parts)(weights, rows, sums.values);
    write();
    work_ = &work;
    waiting_ = &sums;
  }

 private:
  void write() {
    if (waiting_ == nullptr) return;
    (form_.parts_as_rows ? write_parts_as_rows : write_bf16_sums)(*work_, *waiting_);
  }

  const Bf16Kernel& kernel_;
  const RowForm form_;
  Bf16Sums sums_[2];
  const MatmulWork* work_ = nullptr;  // of the sums that wait
  Bf16Sums* waiting_ = nullptr;
};

constexpr auto value_bytes = static_cast<int64_t>(sizeof(bf16));

const std::byte* bytes_of(const bf16* values) { return reinterpret_cast<const std::byte*>(values); }

void run_many_rows(const MatmulWork& work, const Bf16Kernel& kernel, int parts,
                   const BlockTask& task, const std::byte* packed_a, std::byte* packed_w) {
  const bf16* weight = static_cast<const bf16*>(work.weight);
  const int64_t packed_k = std::max(tile_k, round_up(work.k, tile_k));
  const int64_t step = block_step(bf16_blocks, work.k);
  Pipeline pipeline(kernel, {parts});
  for (int64_t k_begin = 0; k_begin == 0 || k_begin < work.k; k_begin += step) {
    const int64_t k = std::min(step, work.k - k_begin);
    for (int64_t row = task.row_begin; row < task.row_end; row += panel) {
      const std::byte* a = packed_a + (row * packed_k + k_begin * panel) * parts * value_bytes;
      for (int64_t column = task.column_begin; column < task.column_end; column += panel) {
        std::byte* packed =
            packed_w + (column - task.column_begin) * round_up(k, tile_k) * value_bytes;
        Bf16Weights weights;
        if (row == task.row_begin) {  // the first rows find the weights unpacked
          const bf16* from = weight + column * work.weight_stride + k_begin;
          copy_weights(from, work.weight_stride, task.column_end - column, k, packed);
          if (column + 2 * panel <= task.column_end) {
            weights.fetch = bytes_of(from + panel * work.weight_stride);
            weights.fetch_stride = work.weight_stride * value_bytes;
            weights.fetch_step = tile_k * value_bytes;
          }
        }
        weights.at = packed;
        weights.stride = tile_k * value_bytes;
        weights.step = panel_step;
        weights.steps = divide_up(k, tile_k);
        Bf16Sums& sums = pipeline.next();
        sums.row = task.first_row + row;
        sums.rows = std::min(panel, task.row_end - row);
        sums.column = sums.begin = column;
        sums.end = task.column_end;
        sums.first = k_begin == 0;
        pipeline.multiply(work, weights, a, sums);
      }
    }
  }
}

// Panels of weights of several products, counted through from one product to the next.
class Panels {
 public:
  explicit Panels(std::span<const MatmulWork> products) : products_(products) {
    for (const MatmulWork& work : products) count_ += divide_up(work.n, panel);
  }
  int64_t count() const { return count_; }

  struct Place {
    const MatmulWork* work;
    int64_t column;  // where it begins
    // Panels are whole: the last one of a product may begin before its columns do.
    const bf16* weights() const {
      return static_cast<const bf16*>(work->weight) + first() * work->weight_stride;
    }
    int64_t first() const { return std::min(column, work->n - panel); }
  };
  Place operator[](int64_t index) const {
    for (const MatmulWork& work : products_) {
      const int64_t own = divide_up(work.n, panel);
      if (index < own) return {&work, index * panel};
      index -= own;
    }
    return {nullptr, 0};
  }

 private:
  std::span<const MatmulWork> products_;
  int64_t count_ = 0;
};

// One panel of rows and panels [begin, end) of weights, which are read once, where they lie. All of
// k is one block.
void run_panels(const Panels& panels, int64_t begin, int64_t end, const Bf16Kernel& kernel,
                RowForm form, const std::byte* packed_a) {
  alignas(64) std::byte last[panel_step];
  Pipeline pipeline(kernel, form);
  for (int64_t index = begin; index < end; ++index) {
    const Panels::Place place = panels[index];
    const MatmulWork& work = *place.work;
    Bf16Sums& sums = pipeline.next();
    sums.row = 0;
    sums.rows = work.m;
    sums.column = place.first();  // some are computed twice at the end
    sums.begin = place.column;
    sums.end = work.n;
    sums.first = true;
    const bf16* from = place.weights();
    const int64_t rest = work.k % tile_k;
    Bf16Weights weights;
    weights.at = bytes_of(from);
    weights.stride = work.weight_stride * value_bytes;
    weights.step = tile_k * value_bytes;
    weights.steps = work.k / tile_k;
    if (rest > 0) {
      copy_weights(from + work.k - rest, work.weight_stride, panel, rest, last);
      weights.last = last;
    }
    const Panels::Place after = panels[std::min(index + 1, end - 1)];
    weights.next = bytes_of(after.weights());
    weights.next_stride = after.work->weight_stride * value_bytes;
    if (index + 1 < end) {  // in the order in which they lie; gaps only shift what is fetched
      weights.fetch = weights.next;
      weights.fetch_stride = 64;
      weights.fetch_step = panel_step;
    }
    pipeline.multiply(work, weights, packed_a, sums);
  }
}

// Products of the same rows, at most a panel of them: one loop for the threads.
void run_few_rows(const Context& context, std::span<const MatmulWork> products,
                  const Bf16Kernel& kernel, bool exact) {
  const MatmulWork& first = products.front();
  RowForm form;
  form.parts_as_rows = exact && exact_parts * first.m <= panel;
  if (exact && !form.parts_as_rows) form.parts = exact_parts;
  const int64_t packed_k = std::max(tile_k, round_up(first.k, tile_k));
  const ScratchLease lease(static_cast<size_t>(packed_k * panel * form.parts * value_bytes));
  auto* packed = lease.as<std::byte>();
  if (form.parts_as_rows) {
    pack_parts_as_rows(first.a, first.a_stride, first.m, first.k, packed);
  } else {
    pack_bf16_rows(first.a, first.a_stride, first.m, first.k, form.parts, packed);
  }
  const Panels panels(products);
  const int64_t share = divide_up(panels.count(), context.threads->threads());
  const int64_t least = divide_up(least_weights, panel * std::max<int64_t>(1, first.k));
  context.threads->parallel_for(
      panels.count(), std::max(share, least),
      [&](int64_t begin, int64_t end) { run_panels(panels, begin, end, kernel, form, packed); });
}

template <int parts>
void run(const Context& context, const MatmulWork& work, const Bf16Kernel& kernel) {
  run_blocks<Bf16Parts<parts>>(
      context, work, bf16_blocks,
      [&](int64_t row, int64_t count, Bf16Parts<parts>* to) {
        pack_bf16_rows(work.a + row * work.a_stride, work.a_stride, count, work.k, parts,
                       reinterpret_cast<std::byte*>(to));
      },
      [&](const BlockTask& task, const Bf16Parts<parts>* packed_a, Bf16Parts<parts>* scratch) {
        run_many_rows(work, kernel, parts, task, reinterpret_cast<const std::byte*>(packed_a),
                      reinterpret_cast<std::byte*>(scratch));
      });
}

}  // namespace

void multiply_bf16_x86(const Context& context, std::span<const MatmulWork> products,
                       const Bf16Kernel& kernel, bool exact) {
  std::vector<MatmulWork> few;
  for (const MatmulWork& work : products) {
    if (work.m <= panel && work.n >= panel) {
      few.push_back(work);
    } else {
      exact ? run<exact_parts>(context, work, kernel) : run<1>(context, work, kernel);
    }
  }
  if (!few.empty()) run_few_rows(context, few, kernel, exact);
}

}  // namespace kinora::cpu

#endif

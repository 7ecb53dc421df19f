#include "ops/packed_amx_int8.h"
#include "ops/packed_matmul.h"
#include "ops/x86_intrinsics.h"

// Many rows times whole-number weights by AMX's products of bytes. A row is written in whole
// numbers, with a scale for every span of columns; sums of a span are scaled for the row and for
// the weights' group, and added up in f32. Nothing here may run before packed_amx_int8_available()
// has said yes.

#if defined(__x86_64__) && defined(__linux__)

#include <cpuid.h>

namespace kinora::cpu {
namespace {

constexpr int64_t panel = bf16_panel;
constexpr int64_t tile_rows = bf16_tile_rows;
constexpr int64_t tile_bytes = bf16_tile_bytes;
constexpr int64_t tile_sums = bf16_tile_sums;
constexpr int64_t panel_rows = PackedMatrix::panel_rows;
constexpr int64_t matrix_panels = panel / panel_rows;  // of the matrix in one of ours
// Weights are packed for so many panels at a time: they, their rows and the codes of the next ones,
// which are fetched meanwhile, share a second-level cache of 2 MiB.
constexpr int64_t panels_at_once = 8;
constexpr BlockShape blocks{panel, panel, widest_span, 2048, 4 * panels_at_once};

// GCC 12 does not know that loading a tile reads memory.
inline void finish_writing() { asm volatile("" ::: "memory"); }

// sums[2][tiles][16][16] = two tiles of weights × `tiles` tiles of rows, over a span. Registers 0
// to 3 are sums, 4 and 5 weights, 6 and 7 rows.
template <int tiles>
KINORA_TILES_TARGET inline void multiply_span(const std::byte* weights, const std::byte* rows,
                                              int64_t steps, int32_t* sums) {
  constexpr int64_t stride = 64;
  _tile_zero(0);
  _tile_zero(2);
  if constexpr (tiles == 2) {
    _tile_zero(1);
    _tile_zero(3);
  }
  for (int64_t i = 0; i < steps; ++i, weights += byte_panel_step, rows += byte_panel_step) {
    _tile_loadd(4, weights, stride);
    _tile_loadd(6, rows, stride);
    _tile_dpbssd(0, 4, 6);
    if constexpr (tiles == 2) {
      _tile_loadd(7, rows + tile_bytes, stride);
      _tile_dpbssd(1, 4, 7);
    }
    _tile_loadd(5, weights + tile_bytes, stride);
    _tile_dpbssd(2, 5, 6);
    if constexpr (tiles == 2) _tile_dpbssd(3, 5, 7);
  }
  _tile_stored(0, sums, stride);
  if constexpr (tiles == 2) _tile_stored(1, sums + tile_sums, stride);
  _tile_stored(2, sums + tiles * tile_sums, stride);
  if constexpr (tiles == 2) _tile_stored(3, sums + 3 * tile_sums, stride);
}

// Sums of a span that wait to be scaled.
struct SpanSums {
  const float* rows = nullptr;  // what those of the span are multiplied with, [panel] each
  const float* row_shifts = nullptr;
  const float* weights = nullptr;
  const float* weight_shifts = nullptr;
  Bf16Sums* totals = nullptr;
  bool first = false, last = false;  // of those that are added up
  int tiles = 2;                     // of rows
  alignas(64) int32_t values[4 * tile_sums];
};

// totals = or += the sums, scaled.
template <int tiles, bool shifted>
KINORA_TILES_TARGET void add_scaled(const SpanSums& sums) {
  for (int tile = 0; tile < 2 * tiles; ++tile) {
    const int weights = tile / tiles * static_cast<int>(tile_rows);
    const int rows = tile % tiles * static_cast<int>(tile_rows);
    const int32_t* from = sums.values + tile * tile_sums;
    float* totals = sums.totals->values + tile * tile_sums;
    const __m512 row_scale = _mm512_loadu_ps(sums.rows + rows);
    const __m512 row_shift = _mm512_loadu_ps(sums.row_shifts + rows);
#pragma GCC unroll 16
    for (int i = 0; i < tile_rows; ++i) {
      __m512 total = sums.first ? _mm512_setzero_ps() : _mm512_load_ps(totals + i * 16);
      const __m512 scale = _mm512_mul_ps(row_scale, _mm512_set1_ps(sums.weights[weights + i]));
      total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(from + i * 16)), scale, total);
      if constexpr (shifted) {
        total = _mm512_fnmadd_ps(row_shift, _mm512_set1_ps(sums.weight_shifts[weights + i]), total);
      }
      _mm512_store_ps(totals + i * 16, total);
    }
  }
}

// Fetches codes into the second-level cache, some lines at a time: columns [begin, end) of 32 ·
// panels rows from `row` on. Without it memory would rest while rows pass.
class CodesAhead {
 public:
  CodesAhead() = default;
  CodesAhead(const PackedMatrix& matrix, int64_t row, int64_t panels, int64_t begin, int64_t end)
      : matrix_(&matrix),
        panel_(row / panel_rows),
        last_(std::min(matrix.panels(), panel_ + panels * matrix_panels)) {
    const int64_t column_bytes = matrix.panel_bytes() / matrix.padded_columns();
    begin_ = at_ = begin * column_bytes;
    end_ = std::min(end * column_bytes, matrix.panel_bytes());
  }
  int64_t lines() const { return std::max<int64_t>(0, last_ - panel_) * (end_ - begin_) / line; }
  void fetch(int64_t lines) {
    for (; lines > 0 && panel_ < last_; --lines) {
      __builtin_prefetch(matrix_->panel(panel_) + at_, 0, 2);  // 2: the second-level cache
      at_ += line;
      if (at_ < end_) continue;
      at_ = begin_;
      ++panel_;
    }
  }

 private:
  static constexpr int64_t line = 64;
  const PackedMatrix* matrix_ = nullptr;
  int64_t panel_ = 0, last_ = 0;  // of the matrix
  int64_t begin_ = 0, end_ = 0, at_ = 0;
};

// Multiplies one span after the other, and scales each while the next one is multiplied.
class Pipeline {
 public:
  Pipeline(const MatmulWork& work, const Bf16Kernel& kernel, bool shifted)
      : work_(work), kernel_(kernel), shifted_(shifted) {
    kernel_.begin();
  }
  ~Pipeline() {
    finish();
    kernel_.end();
  }
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // The place for the next sums, which the caller fills in but for their values.
  SpanSums& next() { return sums_[waiting_ == &sums_[0] ? 1 : 0]; }

  void multiply(const std::byte* weights, const std::byte* rows, int64_t steps) {
    SpanSums& sums = next();
    finish_writing();
    (sums.tiles == 2 ? multiply_span<2> : multiply_span<1>)(weights, rows, steps, sums.values);
    finish();
    waiting_ = &sums;
  }

  // Afterwards nothing waits.
  void finish() {
    if (waiting_ == nullptr) return;
    const SpanSums& sums = *waiting_;
    if (sums.tiles == 2) {
      (shifted_ ? add_scaled<2, true> : add_scaled<2, false>)(sums);
    } else {
      (shifted_ ? add_scaled<1, true> : add_scaled<1, false>)(sums);
    }
    if (sums.last) write_bf16_sums(work_, *sums.totals);
    waiting_ = nullptr;
  }

 private:
  const MatmulWork& work_;
  const Bf16Kernel& kernel_;
  const bool shifted_;
  SpanSums sums_[2];
  SpanSums* waiting_ = nullptr;
};

// Some columns of a task and some of k, for all of its rows.
struct BlockOfWeights {
  int64_t column, column_end;
  int64_t k_begin, k_end;
};

class Task {
 public:
  Task(const PackedWork& product, const Bf16Kernel& kernel, Spans spans, const BlockTask& task,
       const std::byte* packed_a, float* row_scales, std::byte* packed_w)
      : work_(product.work),
        matrix_(*product.matrix),
        spans_(spans),
        task_(task),
        packed_a_(packed_a),
        row_scales_(row_scales),
        packed_w_(packed_w),
        step_(block_step(blocks, work_.k)),
        lease_(static_cast<size_t>(panels_at_once * spans.count(step_) * 2 * panel) *
               sizeof(float)),
        pipeline_(work_, kernel,
                  matrix_.zeros(0) != nullptr || matrix_.zero() != common_zero(matrix_.kind())) {}

  void run() {
    for (BlockOfWeights block = first(task_.column_begin); block.column < task_.column_end;) {
      const BlockOfWeights next = after(block);
      const int64_t panels = divide_up(next.column_end - next.column, panel);
      CodesAhead ahead;
      if (next.column < task_.column_end) {
        ahead = CodesAhead(matrix_, next.column, panels, next.k_begin, next.k_end);
      }
      multiply(block, ahead);
      block = next;
    }
  }

 private:
  BlockOfWeights first(int64_t column) const {
    return {column, std::min(task_.column_end, column + panels_at_once * panel), 0,
            std::min(work_.k, step_)};
  }
  BlockOfWeights after(BlockOfWeights block) const {
    if (block.k_end == work_.k) return first(block.column + panels_at_once * panel);
    return {block.column, block.column_end, block.k_end, std::min(work_.k, block.k_end + step_)};
  }

  void multiply(const BlockOfWeights& block, CodesAhead& ahead) {
    const int64_t count = spans_.count(block.k_end - block.k_begin);
    const int64_t places = count * divide_up(block.column_end - block.column, 2 * panel) *
                           divide_up(task_.row_end - task_.row_begin, 2 * panel);
    const int64_t lines = divide_up(ahead.lines(), places);
    pipeline_.finish();  // before scales are written anew
    for (int64_t row = task_.row_begin; row < task_.row_end; row += 2 * panel) {
      for (int64_t column = block.column; column < block.column_end; column += 2 * panel) {
        turn_ ^= 1;
        for (int64_t span = 0; span < count; ++span) {
          ahead.fetch(lines);
          multiply_square(block, row, column, span);
        }
      }
    }
  }

  // One span of up to two panels of weights and two of rows: what one reads for the first time, the
  // next finds in the first-level cache.
  void multiply_square(const BlockOfWeights& block, int64_t first_row, int64_t first_column,
                       int64_t span) {
    const int64_t all_spans = spans_.count(work_.k);
    const int64_t count = spans_.count(block.k_end - block.k_begin);
    const int64_t row_span = block.k_begin / spans_.width + span;
    const int64_t panel_bytes = round_up(work_.k, widest_span) / spans_.width * spans_.bytes();
    for (int side = 0; side < 4; ++side) {
      const int64_t row = first_row + side % 2 * panel, column = first_column + side / 2 * panel;
      if (row >= task_.row_end || column >= block.column_end) continue;
      const int64_t index = (column - block.column) / panel;
      std::byte* weights = packed_w_ + index * count * spans_.bytes();
      const PanelScales scales = scales_at(lease_.as<float>(), index, count);
      const PanelScales row_scales =
          scales_at(row_scales_, (task_.first_row + row) / panel, all_spans);
      if (row == task_.row_begin && span == 0) {
        pack_byte_weights(matrix_, column, spans_, block.k_begin, block.k_end, weights, scales);
      }
      Bf16Sums& totals = totals_[turn_][side];
      if (span == 0) begin_totals(block, row, column, totals);
      SpanSums& sums = pipeline_.next();
      sums.rows = row_scales.scales + row_span * panel;
      sums.row_shifts = row_scales.shifts + row_span * panel;
      sums.weights = scales.scales + span * panel;
      sums.weight_shifts = scales.shifts + span * panel;
      sums.totals = &totals;
      sums.first = span == 0;
      sums.last = span + 1 == count;
      sums.tiles = totals.rows <= tile_rows ? 1 : 2;
      pipeline_.multiply(weights + span * spans_.bytes(),
                         packed_a_ + row / panel * panel_bytes + row_span * spans_.bytes(),
                         spans_.steps);
    }
  }

  void begin_totals(const BlockOfWeights& block, int64_t row, int64_t column,
                    Bf16Sums& totals) const {
    totals.row = task_.first_row + row;
    totals.rows = std::min(panel, task_.row_end - row);
    totals.column = totals.begin = column;
    totals.end = task_.column_end;
    totals.first = block.k_begin == 0;
    for (int64_t r = 0; r < totals.rows; ++r) {
      const float* out = work_.out + (totals.row + r) * work_.out_stride + column;
      for (int64_t c = 0; c < panel; c += 16) __builtin_prefetch(out + c, 1);
    }
  }

  const MatmulWork& work_;
  const PackedMatrix& matrix_;
  const Spans spans_;
  const BlockTask task_;
  const std::byte* packed_a_;
  float* row_scales_;
  std::byte* packed_w_;
  const int64_t step_;
  const ScratchLease lease_;  // what the packed weights' sums are multiplied with
  Bf16Sums totals_[2][4];
  int turn_ = 0;
  Pipeline pipeline_;
};

// `Value` has as many bytes as a value takes in a panel.
template <typename Value>
void run(const Context& context, const PackedWork& product, Spans spans) {
  const MatmulWork& work = product.work;
  const Bf16Kernel& kernel = *amx_bf16_kernel();
  const int64_t all_spans = spans.count(work.k);
  const ScratchLease lease(static_cast<size_t>(divide_up(work.m, panel) * all_spans * 2 * panel) *
                           sizeof(float));
  auto* scales = lease.as<float>();
  run_blocks<Value>(
      context, work, blocks,
      [&](int64_t row, int64_t count, Value* to) {
        pack_byte_rows(work, row, count, spans, reinterpret_cast<std::byte*>(to),
                       scales_at(scales, row / panel, all_spans));
      },
      [&](const BlockTask& task, const Value* packed_a, Value* scratch) {
        Task(product, kernel, spans, task, reinterpret_cast<const std::byte*>(packed_a), scales,
             reinterpret_cast<std::byte*>(scratch))
            .run();
      });
}

bool processor_multiplies_bytes() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned byte_products = 1u << 25;
  return (d & byte_products) != 0 && __builtin_cpu_supports("avx512vnni") != 0;
}

}  // namespace

bool packed_amx_int8_available() {
  static const bool there = amx_bf16_kernel() != nullptr && processor_multiplies_bytes();
  return there;
}

void packed_amx_int8(const Context& context, const PackedWork& product) {
  const Spans spans = Spans::of(*product.matrix);
  spans.width < byte_tile_k ? run<int16_t>(context, product, spans)
                            : run<int8_t>(context, product, spans);
}

}  // namespace kinora::cpu

#else

namespace kinora::cpu {

bool packed_amx_int8_available() { return false; }
void packed_amx_int8(const Context&, const PackedWork&) {}

}  // namespace kinora::cpu

#endif

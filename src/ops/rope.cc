#include "ops/rope.h"

#include <algorithm>
#include <cmath>

#include "ops/checks.h"
#include "ops/cpu_kernels.h"
#include "ops/cuda_kernels.h"
#include "ops/elementwise.h"
#include "ops/packed_rows.h"
#include "ops/rows.h"

namespace kinora {
namespace {

// positions [rows, axes]; column i turns by axis column_axes[i] with frequencies[i].
RopeTable make_table(const Context& context, const cuda::RopeColumns& columns) {
  const auto width = static_cast<int64_t>(columns.frequencies.size());
  const int64_t rows = static_cast<int64_t>(columns.positions.size()) / columns.axes;
  RopeTable table{Tensor(DType::f32, {rows, width}, context.device),
                  Tensor(DType::f32, {rows, width}, context.device)};
  if (!context.device.is_cpu()) {
    cuda::rope_table(context, columns, table.cos, table.sin);
    return table;
  }
  float* cos = table.cos.data<float>();
  float* sin = table.sin.data<float>();
  // A sine costs some fifty elements of plain work.
  for_row_ranges(context, rows, width * 50, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t i = 0; i < width; ++i) {
        const auto column = static_cast<size_t>(i);
        const auto place = static_cast<size_t>(row * columns.axes + columns.column_axes[column]);
        const double turn =
            static_cast<double>(columns.positions[place]) * columns.frequencies[column];
        cos[row * width + i] = static_cast<float>(std::cos(turn) * columns.factor);
        sin[row * width + i] = static_cast<float>(std::sin(turn) * columns.factor);
      }
    }
  });
  return table;
}

template <size_t axes>
std::span<const int64_t> flat(std::span<const std::array<int64_t, axes>> positions) {
  static_assert(sizeof(std::array<int64_t, axes>) == axes * sizeof(int64_t));
  return {positions.empty() ? nullptr : positions[0].data(), positions.size() * axes};
}

// What keys and values are kept in.
bool is_row_type(const Context& context, DType type) {
  return type == DType::f32 || type == DType::bf16 || rows_are_packed(type) ||
         (context.device.is_cpu() && type == DType::f16);
}

}  // namespace

std::vector<double> rope_inverse_frequencies(int64_t d, double base) {
  std::vector<double> values(static_cast<size_t>(d / 2));
  for (int64_t i = 0; i < d / 2; ++i) {
    const double exponent = static_cast<double>(2 * i) / static_cast<double>(d);
    values[static_cast<size_t>(i)] = static_cast<float>(1.0 / std::pow(base, exponent));
  }
  return values;
}

RopeTable rope_table(const Context& context, std::span<const double> inverse_frequencies,
                     std::span<const int64_t> positions, double factor) {
  const std::vector<int32_t> axes(inverse_frequencies.size(), 0);
  return make_table(context, {positions, inverse_frequencies, axes, 1, factor});
}

RopeTable mrope_table(const Context& context, std::span<const double> inverse_frequencies,
                      std::span<const std::array<int64_t, 3>> positions,
                      std::span<const int32_t> column_axes, double factor) {
  const OpChecks checks(context, "mrope_table", {});
  checks.that(
      column_axes.size() == inverse_frequencies.size() &&
          std::ranges::all_of(column_axes, [](int32_t axis) { return axis >= 0 && axis < 3; }),
      "one of three axes for each frequency");
  return make_table(context, {flat(positions), inverse_frequencies, column_axes, 3, factor});
}

RopeTable vision_rope_table(const Context& context, std::span<const double> inverse_frequencies,
                            std::span<const std::array<int64_t, 2>> positions) {
  const size_t quarter = inverse_frequencies.size();
  std::vector<double> frequencies(inverse_frequencies.begin(), inverse_frequencies.end());
  frequencies.insert(frequencies.end(), inverse_frequencies.begin(), inverse_frequencies.end());
  std::vector<int32_t> axes(2 * quarter, 0);
  std::fill(axes.begin() + static_cast<int64_t>(quarter), axes.end(), 1);
  return make_table(context, {flat(positions), frequencies, axes, 2, 1.0});
}

void apply_rope(const Context& context, ConstTensorView cos, ConstTensorView sin, TensorView x) {
  const OpChecks checks(context, "apply_rope", {{"cos", cos}, {"sin", sin}, {"x", x}});
  checks.f32("cos", cos);
  checks.f32("sin", sin);
  checks.activation("x", x);
  checks.rank("x", x, 3, 3);
  checks.that(x.size(2) % 2 == 0, "a head must have an even number of dimensions");
  const Shape expected{x.size(0), x.size(2) / 2};
  checks.shape("cos", cos, expected);
  checks.shape("sin", sin, expected);
  context.device.is_cpu() ? cpu::apply_rope(context, cos, sin, x)
                          : cuda::apply_rope(context, cos, sin, x);
}

void rerotate(const Context& context, std::span<const double> inverse_frequencies,
              std::span<const int32_t> column_axes,
              std::span<const std::array<int32_t, 3>> differences, TensorView x) {
  const OpChecks checks(context, "rerotate", {{"x", x}});
  checks.rank("x", x, 3, 3);
  checks.that(is_row_type(context, x.dtype()), "keys must be f32, bf16, 8 bits or, on a CPU, f16");
  checks.that(static_cast<int64_t>(differences.size()) == x.size(0), "one difference for each row");
  checks.that(static_cast<int64_t>(inverse_frequencies.size()) * 2 == head_size_of(x) &&
                  column_axes.size() == inverse_frequencies.size(),
              "a frequency and an axis for each pair of columns");
  const auto turn = [&](TensorView rows) {
    if (!context.device.is_cpu() && rows.size(2) / 2 <= cuda::most_turned_pairs) {
      return cuda::rerotate(context, inverse_frequencies, column_axes, differences, rows);
    }
    std::vector<std::array<int64_t, 3>> turns;
    for (const auto& [t, h, w] : differences) turns.push_back({t, h, w});
    const std::span<const std::array<int64_t, 3>> all = turns;
    apply_rope(context, make_table(context, {flat(all), inverse_frequencies, column_axes, 3, 1.0}),
               rows);
  };
  if (x.dtype() == DType::f32 || (x.dtype() == DType::bf16 && !context.device.is_cpu())) {
    return turn(x);
  }
  Tensor wide(DType::f32, {x.size(0), x.size(1), head_size_of(x)}, x.device());
  widen_rows(context, x, wide);
  turn(wide.view());
  store_rows(context, wide, x);
}

void rope_split(const Context& context, ConstTensorView cos, ConstTensorView sin,
                ConstTensorView qkv, TensorView queries, TensorView keys, TensorView values) {
  const OpChecks checks(context, "rope_split",
                        {{"cos", cos},
                         {"sin", sin},
                         {"qkv", qkv},
                         {"queries", queries},
                         {"keys", keys},
                         {"values", values}});
  checks.activation("qkv", qkv);
  checks.rank("qkv", qkv, 2, 2);
  checks.rank("queries", queries, 3, 3);
  checks.rank("keys", keys, 3, 3);
  const int64_t rows = qkv.size(0), heads = queries.size(1), d = queries.size(2);
  const int64_t kv_heads = keys.size(1);
  checks.that(d % 2 == 0, "a head must have an even number of dimensions");
  checks.that(queries.dtype() == qkv.dtype(), "queries must have the type of qkv");
  checks.that(is_row_type(context, keys.dtype()) && values.dtype() == keys.dtype(),
              "keys and values must both be f32, bf16, 8 bits or, on a CPU, f16");
  checks.shape("qkv", qkv, {rows, (heads + 2 * kv_heads) * d});
  checks.shape("queries", queries, {rows, heads, d});
  checks.shape("keys", keys, {rows, kv_heads, stored_columns(keys.dtype(), d)});
  checks.shape("values", values, keys.shape());
  checks.shape("cos", cos, {rows, d / 2});
  checks.shape("sin", sin, {rows, d / 2});
  if (!context.device.is_cpu()) {
    if (!rows_are_packed(keys.dtype())) {
      return cuda::rope_split(context, cos, sin, qkv, queries, keys, values);
    }
    Tensor turned(DType::f32, {rows, kv_heads, d}, qkv.device());
    Tensor same(DType::f32, {rows, kv_heads, d}, qkv.device());
    cuda::rope_split(context, cos, sin, qkv, queries, turned, same);
    store_rows(context, turned, keys);
    return store_rows(context, same, values);
  }
  if (keys.dtype() == DType::f32) {
    return cpu::rope_split(context, cos, sin, qkv, queries, keys, values);
  }
  const auto part = [&](int64_t first, int64_t count) {
    const ConstTensorView columns = qkv.columns(first * d, count * d);
    return ConstTensorView(columns.raw(), qkv.dtype(), Shape{rows, count, d},
                           ConstTensorView::Strides{qkv.stride(0), d, 1}, qkv.device());
  };
  Tensor turned(DType::f32, {rows, kv_heads, d});
  convert(context, part(0, heads), queries);
  convert(context, part(heads, kv_heads), turned);
  cpu::apply_rope(context, cos, sin, queries);
  cpu::apply_rope(context, cos, sin, turned);
  store_rows(context, turned, keys);
  store_rows(context, part(heads + kv_heads, kv_heads), values);
}

}  // namespace kinora

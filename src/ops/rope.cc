#include "ops/rope.h"

#include <cmath>

#include "ops/checks.h"
#include "ops/cpu_kernels.h"
#include "ops/rows.h"

namespace kinora {
namespace {

// angle(row, i) → tables, on the host and then moved to the context's device.
template <class Angle>
RopeTable make_table(const Context& context, int64_t rows, int64_t columns, double factor,
                     const Angle& angle) {
  Tensor cos(DType::f32, {rows, columns}), sin(DType::f32, {rows, columns});
  float* cos_data = cos.data<float>();
  float* sin_data = sin.data<float>();
  // A sine costs some fifty elements of plain work.
  for_row_ranges(context, rows, columns * 50, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t i = 0; i < columns; ++i) {
        const double turn = angle(row, i);
        cos_data[row * columns + i] = static_cast<float>(std::cos(turn) * factor);
        sin_data[row * columns + i] = static_cast<float>(std::sin(turn) * factor);
      }
    }
  });
  return {cos.to(context.device), sin.to(context.device)};
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
  const auto rows = static_cast<int64_t>(positions.size());
  const auto columns = static_cast<int64_t>(inverse_frequencies.size());
  return make_table(context, rows, columns, factor, [&](int64_t row, int64_t i) {
    return static_cast<double>(positions[static_cast<size_t>(row)]) *
           inverse_frequencies[static_cast<size_t>(i)];
  });
}

RopeTable mrope_table(const Context& context, std::span<const double> inverse_frequencies,
                      std::span<const std::array<int64_t, 3>> positions,
                      const std::array<int64_t, 3>& sections, double factor) {
  const OpChecks checks(Context(*context.threads), "mrope_table", {});
  const auto rows = static_cast<int64_t>(positions.size());
  const auto columns = static_cast<int64_t>(inverse_frequencies.size());
  checks.that(sections[0] >= 0 && sections[1] >= 0 && sections[2] >= 0 &&
                  sections[0] + sections[1] + sections[2] == columns,
              "the sections must add up to the number of frequencies");
  return make_table(context, rows, columns, factor, [&](int64_t row, int64_t i) {
    const size_t axis = i < sections[0] ? 0 : i < sections[0] + sections[1] ? 1 : 2;
    return static_cast<double>(positions[static_cast<size_t>(row)][axis]) *
           inverse_frequencies[static_cast<size_t>(i)];
  });
}

RopeTable vision_rope_table(const Context& context, std::span<const double> inverse_frequencies,
                            std::span<const std::array<int64_t, 2>> positions) {
  const auto rows = static_cast<int64_t>(positions.size());
  const auto quarter = static_cast<int64_t>(inverse_frequencies.size());
  return make_table(context, rows, 2 * quarter, 1.0, [&](int64_t row, int64_t i) {
    const size_t axis = i < quarter ? 0 : 1;
    const int64_t frequency = axis == 0 ? i : i - quarter;
    return static_cast<double>(positions[static_cast<size_t>(row)][axis]) *
           inverse_frequencies[static_cast<size_t>(frequency)];
  });
}

void apply_rope(const Context& context, ConstTensorView cos, ConstTensorView sin, TensorView x) {
  const OpChecks checks(context, "apply_rope", {{"cos", cos}, {"sin", sin}, {"x", x}});
  checks.f32("cos", cos);
  checks.f32("sin", sin);
  checks.f32("x", x);
  checks.rank("x", x, 3, 3);
  checks.that(x.size(2) % 2 == 0, "a head must have an even number of dimensions");
  const Shape expected{x.size(0), x.size(2) / 2};
  checks.shape("cos", cos, expected);
  checks.shape("sin", sin, expected);
  cpu::apply_rope(context, cos, sin, x);
}

}  // namespace kinora

// Walking over the rows of strided views, in parallel. A row is the innermost dimension, which is
// always contiguous. Used by the CPU side of the ops.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/context.h"
#include "base/tensor.h"

namespace kinora {

// Elements that make a piece of work worth handing to another thread.
constexpr int64_t elements_per_piece = 16 * 1024;

// Where each row of a view starts, in elements.
class RowOffsets {
 public:
  RowOffsets() = default;
  explicit RowOffsets(const ConstTensorView& view) : outer_(std::max(0, view.rank() - 1)) {
    width_ = view.rank() == 0 ? 1 : view.size(view.rank() - 1);
    for (int axis = 0; axis < outer_; ++axis) {
      sizes_[static_cast<size_t>(axis)] = view.size(axis);
      strides_[static_cast<size_t>(axis)] = view.stride(axis);
      rows_ *= view.size(axis);
    }
  }
  int64_t rows() const { return rows_; }
  int64_t width() const { return width_; }
  int64_t operator[](int64_t row) const {
    int64_t offset = 0;
    for (int axis = outer_ - 1; axis > 0; --axis) {
      const auto at = static_cast<size_t>(axis);
      offset += row % sizes_[at] * strides_[at];
      row /= sizes_[at];
    }
    return offset + row * strides_[0];
  }

 private:
  std::array<int64_t, Shape::max_rank> sizes_{};
  std::array<int64_t, Shape::max_rank> strides_{};
  int outer_ = 0;
  int64_t rows_ = 1;
  int64_t width_ = 0;
};

// Calls work(begin, end) over ranges of rows of `width` elements each.
template <class Work>
void for_row_ranges(const Context& context, int64_t rows, int64_t width, const Work& work,
                    int64_t elements = elements_per_piece) {
  const int64_t grain = std::max<int64_t>(1, elements / std::max<int64_t>(1, width));
  context.threads->parallel_for(rows, grain, work);
}

// Calls work(offsets, count) over runs of contiguous elements of views with one shape: whole pieces
// where all are contiguous, else row by row. offsets[i] is where the run starts in views[i].
template <size_t views_count, class Work>
void for_each_run(const Context& context, const std::array<ConstTensorView, views_count>& views,
                  const Work& work, int64_t elements = elements_per_piece) {
  // Every piece has offsets of its own: pieces run at once on one copy of the function.
  if (std::all_of(views.begin(), views.end(), [](const auto& view) { return view.contiguous(); })) {
    context.threads->parallel_for(views[0].elements(), elements, [&](int64_t begin, int64_t end) {
      std::array<int64_t, views_count> offsets;
      offsets.fill(begin);
      work(offsets, end - begin);
    });
    return;
  }
  std::array<RowOffsets, views_count> rows;
  for (size_t i = 0; i < views_count; ++i) rows[i] = RowOffsets(views[i]);
  const auto some_rows = [&](int64_t begin, int64_t end) {
    std::array<int64_t, views_count> offsets;
    for (int64_t row = begin; row < end; ++row) {
      for (size_t i = 0; i < views_count; ++i) offsets[i] = rows[i][row];
      work(offsets, rows[0].width());
    }
  };
  for_row_ranges(context, rows[0].rows(), rows[0].width(), some_rows, elements);
}

inline float widen(float value) { return value; }
inline float widen(bf16 value) { return value.to_float(); }
inline float widen(f16 value) { return value.to_float(); }

// Calls body(T()) with the stored type that a floating-point dtype names.
template <class Body>
auto with_float_type(DType type, const Body& body) {
  switch (type) {
    case DType::bf16:
      return body(bf16());
    case DType::f16:
      return body(f16());
    default:
      return body(float());
  }
}

}  // namespace kinora

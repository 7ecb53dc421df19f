// What launching the Hopper kernel needs: tensor maps of rows, and the variant for a plan's lists.
// A file for each head size, since every variant takes long to compile.
#pragma once

#include "attention/cuda/hopper_kernel.cuh"
#include "base/buffer.h"
#include "ops/tensor_maps_cuda.h"

namespace kinora::hopper {

inline cuuint64_t count(int64_t value) { return static_cast<cuuint64_t>(value); }

inline uint32_t halves_of(const ConstTensorView& view) {
  return static_cast<uint32_t>(view.size(2) / 64);
}

// rows [n, kv heads, columns] as (64 columns, rows, halves, kv heads): a box is some rows of one
// head, each half swizzled as the tensor cores want it. Rows beyond the last are read as zeros.
inline CUtensorMap describe_rows(const ConstTensorView& view, uint32_t box_rows,
                                 uint32_t box_halves) {
  const cuuint64_t sizes[4] = {64, count(view.size(0)), halves_of(view), count(view.size(1))};
  const cuuint64_t strides[3] = {count(view.stride(0) * 2), 128, count(view.stride(1) * 2)};
  const cuuint32_t box[4] = {64, box_rows, box_halves, 1};
  return describe(view.raw(), 4, sizes, strides, box);
}

// Whole rows, a block of keys.
inline CUtensorMap describe_rows(const ConstTensorView& view) {
  return describe_rows(view, block_keys, halves_of(view));
}

// The same rows by phase and step: a box is 128 rows that lie `stride` apart.
inline StrideMap describe_stride(const ConstTensorView& view, int32_t stride) {
  const StrideLayout layout(static_cast<int32_t>(view.size(0)), stride);
  const int64_t row = view.stride(0) * 2;
  const auto phases = [&](int64_t first, int64_t phase_count, int64_t steps) {
    const cuuint64_t sizes[5] = {64, count(steps), count(phase_count), halves_of(view),
                                 count(view.size(1))};
    const cuuint64_t strides[4] = {count(stride * row), count(row), 128, count(view.stride(1) * 2)};
    const cuuint32_t box[5] = {64, block_keys, 1, halves_of(view), 1};
    return describe(view.raw() + first * row, 5, sizes, strides, box);
  };
  // A map of nothing cannot be made and is not used: the other one takes its place.
  StrideMap map;
  if (layout.longer > 0) map.longer = phases(0, layout.longer, int64_t{layout.steps} + 1);
  if (layout.steps > 0) map.shorter = phases(layout.longer, stride - layout.longer, layout.steps);
  if (layout.longer == 0) map.longer = map.shorter;
  if (layout.steps == 0) map.shorter = map.longer;
  return map;
}

// Maps for strides that only the device knows, [heads].
inline std::shared_ptr<Buffer> describe_strides(const Context& context, const RowSet& rows,
                                                const int32_t* strides, int32_t heads) {
  const auto one = [](const ConstTensorView& view) {
    const cuuint64_t row = count(view.stride(0) * 2);
    const cuuint64_t sizes[5] = {64, 1, 1, halves_of(view), count(view.size(1))};
    const cuuint64_t pitches[4] = {row, row, 128, count(view.stride(1) * 2)};
    const cuuint32_t box[5] = {64, block_keys, 1, halves_of(view), 1};
    return describe(view.raw(), 5, sizes, pitches, box);
  };
  const StrideTemplate base{one(rows.keys),
                            one(rows.values),
                            reinterpret_cast<const char*>(rows.keys.raw()),
                            reinterpret_cast<const char*>(rows.values.raw()),
                            rows.keys.stride(0) * 2,
                            rows.values.stride(0) * 2,
                            static_cast<int32_t>(rows.keys.size(0))};
  auto maps = Buffer::allocate(context.device, static_cast<size_t>(heads) * sizeof(HeadStrideMaps));
  cuda::launch({dim3(static_cast<unsigned int>(heads), 2, 2), 32, 0, cuda::enter(context)},
               "describing attention rows", make_stride_maps<>, base, strides,
               reinterpret_cast<HeadStrideMaps*>(maps->data()));
  return maps;
}

template <typename V, typename A>
void launch_variant(const Context& context, void (*kernel)(A), const A& arguments, int jobs) {
  constexpr size_t bytes = sizeof(Shared<V>) + 1024;
  const cudaStream_t stream = cuda::enter(context);
  cuda::check(
      cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                           cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
      "preparing attention");
  const int blocks = std::min(jobs, cuda::multiprocessors(context.device.index));
  cuda::launch({static_cast<unsigned int>(blocks), threads, bytes, stream}, "attention", kernel,
               arguments);
}

// launch() for heads of so many columns.
template <int Columns>
void launch_columns(const Context& context, const cuda_attention::Problem& problem,
                    const RowSet& rows, const ListKinds& lists, const ConstTensorView& key_columns,
                    const ConstTensorView& value_columns) {
  const int jobs = problem.plan.job_count;
  const Arguments arguments{describe_rows(rows.keys), describe_rows(rows.values), problem};
  if (lists.pieces) {
    // Without columns any other map does: it is not used.
    const bool columns = key_columns.raw() != nullptr;
    PieceArguments more{arguments,
                        describe_rows(rows.keys, piece_keys, 1),
                        describe_rows(rows.values, piece_keys, 1),
                        describe_rows(rows.keys, 2 * piece_keys, 1),
                        describe_rows(rows.values, 2 * piece_keys, 1),
                        columns ? describe_rows(key_columns) : arguments.keys,
                        columns ? describe_rows(value_columns) : arguments.values,
                        nullptr,
                        static_cast<int32_t>(rows.keys.size(0))};
    if (lists.head_strides == nullptr) {
      using Pieces = Variant<Traits{.columns = Columns, .pieces = true}>;
      launch_variant<Pieces>(context, attend_pieces<Pieces>, more, jobs);
    } else {
      using PiecesAndGrids = Variant<Traits{.columns = Columns, .strided = true, .pieces = true}>;
      const auto maps = describe_strides(context, rows, lists.head_strides, problem.target.heads);
      more.strides = reinterpret_cast<const HeadStrideMaps*>(maps->data());
      launch_variant<PiecesAndGrids>(context, attend_pieces<PiecesAndGrids>, more, jobs);
    }
  } else if (lists.rows || !lists.strides.empty()) {
    StridedArguments more{arguments, {}, {}, static_cast<int32_t>(rows.keys.size(0))};
    for (size_t i = 0; i < lists.strides.size(); ++i) {
      more.keys[i] = describe_stride(rows.keys, lists.strides[i]);
      more.values[i] = describe_stride(rows.values, lists.strides[i]);
    }
    if (lists.rows) {
      using Rows = Variant<Traits{.columns = Columns, .gather = true}>;
      launch_variant<Rows>(context, attend_strided<Rows>, more, jobs);
    } else {
      using Strided = Variant<Traits{.columns = Columns, .strided = true}>;
      launch_variant<Strided>(context, attend_strided<Strided>, more, jobs);
    }
  } else if (problem.scores != nullptr) {
    using Measuring = Variant<Traits{.columns = Columns, .measure = true}>;
    launch_variant<Measuring>(context, attend<Measuring>, arguments, jobs);
  } else {
    using Plain = Variant<Traits{.columns = Columns}>;
    launch_variant<Plain>(context, attend<Plain>, arguments, jobs);
  }
}

// Of heads of 64 columns (runner_hopper_narrow.cu).
void launch_narrow(const Context& context, const cuda_attention::Problem& problem,
                   const RowSet& rows, const ListKinds& lists, const ConstTensorView& key_columns,
                   const ConstTensorView& value_columns);

}  // namespace kinora::hopper

// What a space needs in device memory: its lists, and the rows of one modality side by side.
#include "attention/cuda/lines/line_space.h"
#include "base/cuda_support.h"
#include "ops/rows_cuda.h"

namespace kinora::cuda_attention {
namespace {

// out[i] = rows[list[i]], `units` of one unit for each kv head.  grid: any
template <typename Unit>
__global__ void copy_listed(const Unit* rows, int64_t row_stride, int64_t head_stride,
                            const int32_t* list, int64_t count, int32_t heads, int32_t units,
                            Unit* out) {
  const int64_t total = count * heads * units;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < total;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t place = i / units;
    const int64_t row = list[place / heads];
    out[i] = rows[row * row_stride + place % heads * head_stride + i % units];
  }
}

Tensor listed_rows(const Context& context, const ConstTensorView& rows, const Tensor& list,
                   int64_t count) {
  Tensor out(rows.dtype(), {count, rows.size(1), rows.size(2)}, context.device);
  const cudaStream_t stream = cuda::enter(context);
  const auto copy = [&](auto unit) {
    using Unit = decltype(unit);
    const int64_t size = dtype_size(rows.dtype());
    const auto in_units = [&](int64_t elements) {
      return elements * size / static_cast<int64_t>(sizeof(Unit));
    };
    const auto units = static_cast<int32_t>(in_units(rows.size(2)));
    const auto heads = static_cast<int32_t>(rows.size(1));
    cuda::launch({cuda::strided_blocks(context, count * heads * units, 256), 256, 0, stream},
                 "gathering the rows of a modality", copy_listed<Unit>,
                 reinterpret_cast<const Unit*>(rows.raw()), in_units(rows.stride(0)),
                 in_units(rows.stride(1)), reinterpret_cast<const int32_t*>(list.view().raw()),
                 count, heads, units, reinterpret_cast<Unit*>(out.view().raw()));
  };
  if (cuda::takes_packs(rows, 16 / dtype_size(rows.dtype()))) {
    copy(uint4{});
  } else if (dtype_size(rows.dtype()) == 4) {
    copy(uint32_t{});
  } else {
    copy(uint16_t{});
  }
  return out;
}

}  // namespace

void upload(const Context& context, LineSpace& space) {
  const auto send = [&](Tensor& to, const auto& from) {
    if (!from.empty()) to = cuda::upload(context, std::span(std::as_const(from)));
  };
  send(space.device_queries, space.queries);
  send(space.device_limits, space.limits);
  send(space.device_tiles, space.tiles);
  send(space.device_rows, space.row_list);
}

RowSet rows_of(const Context& context, const LineSpace& space, const RowSet& memory, Tensor& keys,
               Tensor& values) {
  RowSet rows = memory;
  rows.times = {};
  const auto begin = static_cast<size_t>(space.row_begin);
  const auto count = static_cast<size_t>(space.row_count);
  if (space.row_list.empty()) {
    rows.keys = memory.keys.rows(space.row_begin, space.row_count);
    rows.values = memory.values.rows(space.row_begin, space.row_count);
    rows.ordinals = memory.ordinals.subspan(begin, count);
    rows.modalities = memory.modalities.subspan(begin, count);
    if (memory.weighted()) rows.weights = memory.weights.rows(space.row_begin, space.row_count);
  } else {
    keys = listed_rows(context, memory.keys, space.device_rows, space.row_count);
    values = listed_rows(context, memory.values, space.device_rows, space.row_count);
    rows.keys = keys;
    rows.values = values;
    rows.modalities = {};
  }
  if (!space.row_ordinals.empty()) rows.ordinals = space.row_ordinals;
  return rows;
}

}  // namespace kinora::cuda_attention

#include <algorithm>

#include "base/cuda_support.h"
#include "memory/row_ops/move_rows.h"

namespace kinora::cuda {
namespace {

template <typename Unit>
struct UnitCopies {
  const Unit* from[2];
  Unit* to[2];
};

// One block per row and list.
template <typename Unit>
__global__ void gather_units(UnitCopies<Unit> copies, const int32_t* kept, int64_t units) {
  const Unit* from = copies.from[blockIdx.y] + kept[blockIdx.x] * units;
  Unit* to = copies.to[blockIdx.y] + blockIdx.x * units;
  for (int64_t i = threadIdx.x; i < units; i += blockDim.x) to[i] = from[i];
}

// In units of 16 bytes, or words, where rows are whole ones: the host's memory is far, and few
// large reads fill the way to it. Only rows of odd heads in 8 bits are no whole words.
void gather(cudaStream_t stream, const char* what, std::span<const RowCopy> copies,
            int64_t row_bytes, ConstTensorView kept) {
  const dim3 grid(static_cast<unsigned int>(kept.elements()),
                  static_cast<unsigned int>(copies.size()));
  const auto start = [&]<typename Unit>(Unit) {
    UnitCopies<Unit> typed{};
    for (size_t i = 0; i < copies.size(); ++i) {
      typed.from[i] = reinterpret_cast<const Unit*>(copies[i].from);
      typed.to[i] = reinterpret_cast<Unit*>(copies[i].to);
    }
    launch({grid, 64, 0, stream}, what, gather_units<Unit>, typed, device_data<int32_t>(kept),
           row_bytes / static_cast<int64_t>(sizeof(Unit)));
  };
  auto places = static_cast<uintptr_t>(row_bytes);
  for (const RowCopy& copy : copies) {
    places |= reinterpret_cast<uintptr_t>(copy.from) | reinterpret_cast<uintptr_t>(copy.to);
  }
  if (places % 16 == 0) return start(uint4());
  places % 4 == 0 ? start(uint32_t()) : start(uint8_t());
}

// Through a second place: blocks run in any order, and a row may lie where another goes.
void move_up(Device device, cudaStream_t stream, std::byte* rows, int64_t row_bytes,
             ConstTensorView kept) {
  const int64_t count = kept.elements();
  if (count == 0) return;
  Tensor gathered(DType::u8, {count * row_bytes}, device);
  const RowCopy copy{rows, gathered.view().raw()};
  gather(stream, "move_rows_up", {&copy, 1}, row_bytes, kept);
  check(cudaMemcpyAsync(rows, gathered.view().raw(), static_cast<size_t>(gathered.bytes()),
                        cudaMemcpyDeviceToDevice, stream),
        "moving rows");
}

template <typename Unit>
struct UnitLists {
  static constexpr size_t most = 128;
  Unit* rows[most];
  int32_t kept[most_moved_together];
  int32_t count;
};

// A thread moves its column of all rows, in order: what it overwrites it has read before.
// grid: (columns, lists)
template <typename Unit>
__global__ void move_columns(const __grid_constant__ UnitLists<Unit> lists, int64_t units) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (column >= units) return;
  Unit* rows = lists.rows[blockIdx.y] + column;
  for (int32_t i = 0; i < lists.count; ++i) rows[i * units] = rows[lists.kept[i] * units];
}

}  // namespace

void move_lists_up(const Context& context, std::span<std::byte* const> lists, int64_t row_bytes,
                   std::span<const int32_t> kept) {
  constexpr unsigned int threads = 64;
  const cudaStream_t stream = enter(context);
  const auto start = [&]<typename Unit>(Unit) {
    const int64_t units = row_bytes / static_cast<int64_t>(sizeof(Unit));
    UnitLists<Unit> some;
    std::copy(kept.begin(), kept.end(), some.kept);
    some.count = static_cast<int32_t>(kept.size());
    for (size_t first = 0; first < lists.size(); first += some.most) {
      const size_t count = std::min(some.most, lists.size() - first);
      for (size_t i = 0; i < count; ++i) some.rows[i] = reinterpret_cast<Unit*>(lists[first + i]);
      launch(
          {dim3(blocks_for(units, threads), static_cast<unsigned int>(count)), threads, 0, stream},
          "moving rows", move_columns<Unit>, some, units);
    }
  };
  auto places = static_cast<uintptr_t>(row_bytes);
  for (const std::byte* rows : lists) places |= reinterpret_cast<uintptr_t>(rows);
  if (places % 16 == 0) return start(uint4());
  places % 4 == 0 ? start(uint32_t()) : start(uint8_t());
}

void move_rows_up(int device, std::byte* rows, int64_t row_bytes, std::span<const int32_t> kept) {
  if (kept.empty()) return;
  Tensor places(DType::i32, {static_cast<int64_t>(kept.size())}, Device::cuda(device));
  check(cudaSetDevice(device), "selecting a GPU");
  check(cudaMemcpyAsync(places.view().raw(), kept.data(), kept.size_bytes(), cudaMemcpyHostToDevice,
                        nullptr),
        "copying to a GPU");
  move_up(Device::cuda(device), nullptr, rows, row_bytes, places);
}

void move_rows_up(const Context& context, std::byte* rows, int64_t row_bytes,
                  ConstTensorView kept) {
  move_up(context.device, enter(context), rows, row_bytes, kept);
}

void copy_rows(const Context& context, std::span<const RowCopy> copies, int64_t row_bytes,
               std::span<const int32_t> places) {
  if (places.empty()) return;
  cudaStream_t stream = enter(context);
  Tensor list(DType::i32, {static_cast<int64_t>(places.size())}, context.device);
  check(cudaMemcpyAsync(list.view().raw(), places.data(), places.size_bytes(),
                        cudaMemcpyHostToDevice, stream),
        "copying to a GPU");
  gather(stream, "copy_rows", copies, row_bytes, list);
}

}  // namespace kinora::cuda

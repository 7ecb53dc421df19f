#include "base/cuda_support.h"
#include "memory/move_rows.h"

namespace kinora::cuda {
namespace {

// One block per row.
template <typename Unit>
__global__ void gather_units(const Unit* rows, const int32_t* kept, int64_t units, Unit* target) {
  const Unit* from = rows + kept[blockIdx.x] * units;
  Unit* to = target + blockIdx.x * units;
  for (int64_t i = threadIdx.x; i < units; i += blockDim.x) to[i] = from[i];
}

// In units of 16 bytes, or words, where rows are whole ones: the host's memory is far, and few
// large reads fill the way to it. Only rows of odd heads in 8 bits are no whole words.
void gather(cudaStream_t stream, const char* what, const std::byte* rows, int64_t row_bytes,
            ConstTensorView kept, std::byte* target) {
  const Launch how{static_cast<unsigned int>(kept.elements()), 64, 0, stream};
  const auto start = [&]<typename Unit>(Unit) {
    launch(how, what, gather_units<Unit>, reinterpret_cast<const Unit*>(rows),
           device_data<int32_t>(kept), row_bytes / static_cast<int64_t>(sizeof(Unit)),
           reinterpret_cast<Unit*>(target));
  };
  const auto places = reinterpret_cast<uintptr_t>(rows) | reinterpret_cast<uintptr_t>(target) |
                      static_cast<uintptr_t>(row_bytes);
  if (places % 16 == 0) return start(uint4());
  places % 4 == 0 ? start(uint32_t()) : start(uint8_t());
}

// Through a second place: blocks run in any order, and a row may lie where another goes.
void move_up(Device device, cudaStream_t stream, std::byte* rows, int64_t row_bytes,
             ConstTensorView kept) {
  const int64_t count = kept.elements();
  if (count == 0) return;
  Tensor gathered(DType::u8, {count * row_bytes}, device);
  gather(stream, "move_rows_up", rows, row_bytes, kept, gathered.view().raw());
  check(cudaMemcpyAsync(rows, gathered.view().raw(), static_cast<size_t>(gathered.bytes()),
                        cudaMemcpyDeviceToDevice, stream),
        "moving rows");
}

}  // namespace

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

void copy_rows(const Context& context, const std::byte* rows, int64_t row_bytes,
               std::span<const int32_t> places, std::byte* to) {
  if (places.empty()) return;
  cudaStream_t stream = enter(context);
  Tensor list(DType::i32, {static_cast<int64_t>(places.size())}, context.device);
  check(cudaMemcpyAsync(list.view().raw(), places.data(), places.size_bytes(),
                        cudaMemcpyHostToDevice, stream),
        "copying to a GPU");
  gather(stream, "copy_rows", rows, row_bytes, list, to);
}

}  // namespace kinora::cuda

#include "base/cuda_support.h"
#include "memory/move_rows.h"

namespace kinora::cuda {
namespace {

// One block per row; rows are whole 4-byte words.
__global__ void gather_words(const uint32_t* rows, const int32_t* kept, int64_t words,
                             uint32_t* target) {
  const uint32_t* from = rows + kept[blockIdx.x] * words;
  uint32_t* to = target + blockIdx.x * words;
  for (int64_t i = threadIdx.x; i < words; i += blockDim.x) to[i] = from[i];
}

// Through a second place: blocks run in any order, and a row may lie where another goes.
void gather(Device device, cudaStream_t stream, std::byte* rows, int64_t row_bytes,
            ConstTensorView kept) {
  if (row_bytes % 4 != 0) throw Error(ErrorKind::internal, "rows on a GPU are whole words");
  const int64_t count = kept.elements();
  if (count == 0) return;
  Tensor gathered(DType::u8, {count * row_bytes}, device);
  launch({static_cast<unsigned int>(count), 128, 0, stream}, "move_rows_up", gather_words,
         reinterpret_cast<const uint32_t*>(rows), device_data<int32_t>(kept), row_bytes / 4,
         device_data<uint32_t>(gathered.view()));
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
  gather(Device::cuda(device), nullptr, rows, row_bytes, places);
}

void move_rows_up(const Context& context, std::byte* rows, int64_t row_bytes,
                  ConstTensorView kept) {
  gather(context.device, enter(context), rows, row_bytes, kept);
}

void copy_rows(const Context& context, const std::byte* rows, int64_t row_bytes,
               std::span<const int32_t> places, std::byte* to) {
  if (row_bytes % 4 != 0) throw Error(ErrorKind::internal, "rows on a GPU are whole words");
  if (places.empty()) return;
  cudaStream_t stream = enter(context);
  Tensor list(DType::i32, {static_cast<int64_t>(places.size())}, context.device);
  check(cudaMemcpyAsync(list.view().raw(), places.data(), places.size_bytes(),
                        cudaMemcpyHostToDevice, stream),
        "copying to a GPU");
  launch({static_cast<unsigned int>(places.size()), 128, 0, stream}, "copy_rows", gather_words,
         reinterpret_cast<const uint32_t*>(rows), device_data<int32_t>(list.view()), row_bytes / 4,
         reinterpret_cast<uint32_t*>(to));
}

}  // namespace kinora::cuda

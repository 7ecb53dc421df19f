#include "base/cuda_support.h"
#include "memory/move_rows.h"

namespace kinora::cuda {
namespace {

// A block a row; rows are whole 4-byte words.
__global__ void gather_words(const uint32_t* rows, const int32_t* kept, int64_t words,
                             uint32_t* target) {
  const uint32_t* from = rows + kept[blockIdx.x] * words;
  uint32_t* to = target + blockIdx.x * words;
  for (int64_t i = threadIdx.x; i < words; i += blockDim.x) to[i] = from[i];
}

}  // namespace

// Through a second place: blocks run in any order, and a row may lie where another goes.
void move_rows_up(int device, std::byte* rows, int64_t row_bytes, std::span<const int32_t> kept) {
  if (kept.empty()) return;
  if (row_bytes % 4 != 0) throw Error(ErrorKind::internal, "rows on a GPU are whole words");
  const auto count = static_cast<int64_t>(kept.size());
  const size_t bytes = kept.size() * static_cast<size_t>(row_bytes);
  Tensor places(DType::i32, {count}, Device::cuda(device));
  Tensor gathered(DType::u8, {static_cast<int64_t>(bytes)}, Device::cuda(device));
  check(cudaSetDevice(device), "selecting a GPU");
  check(cudaMemcpyAsync(places.view().raw(), kept.data(), kept.size_bytes(), cudaMemcpyHostToDevice,
                        nullptr),
        "copying to a GPU");
  launch({static_cast<unsigned int>(count), 128, 0, nullptr}, "move_rows_up", gather_words,
         reinterpret_cast<const uint32_t*>(rows), device_data<int32_t>(places.view()),
         row_bytes / 4, device_data<uint32_t>(gathered.view()));
  check(cudaMemcpyAsync(rows, gathered.view().raw(), bytes, cudaMemcpyDeviceToDevice, nullptr),
        "moving rows");
}

}  // namespace kinora::cuda

#include "attention/cuda/decode_cuda.h"

#include <algorithm>

#include "attention/cuda/decode_few_cuda.cuh"
#include "attention/cuda/decode_kernel_cuda.cuh"
#include "attention/cuda/decode_simple_cuda.cuh"
#include "base/cuda_support.h"

namespace kinora {
namespace {

using namespace cuda_attention;

constexpr int64_t most_tokens = 64;
constexpr int64_t most_row_tiles = 128;
constexpr int64_t most_head_size = 256;
constexpr int most_splits = 512;

size_t counter_bytes(int64_t heads) {
  return static_cast<size_t>(heads * most_row_tiles) * sizeof(unsigned int);
}

void require(bool holds, const char* what) {
  if (!holds) throw Error(ErrorKind::internal, std::string("decode_attention: ") + what);
}

void check_work(const DecodeAttention& work) {
  const ConstTensorView& q = work.queries;
  require(q.rank() == 3 && (q.dtype() == DType::bf16 || q.dtype() == DType::f32),
          "queries must be [m, heads, d] bf16 or f32");
  require(q.size(0) >= 1 && q.size(0) <= most_tokens, "1 to 64 tokens at a time");
  require(q.size(2) >= 1 && q.size(2) <= most_head_size, "head sizes go up to 256");
  require(work.kv_heads >= 1 && q.size(1) % work.kv_heads == 0, "heads must share kv heads evenly");
  require(work.out.shape() == q.shape() &&
              (work.out.dtype() == DType::bf16 || work.out.dtype() == DType::f32),
          "the output must have the queries' shape");
  require(work.row_type == DType::bf16 || work.row_type == DType::f32, "rows must be bf16 or f32");
  require(work.layer != nullptr && work.scratch != nullptr, "needs rows and scratch");
  require(work.splits >= 1 && work.splits <= most_splits, "1 to 512 parts");
}

template <int HeadSize, int RowWarps>
void launch_rows(cudaStream_t stream, const DecodeArguments& arguments, int splits) {
  constexpr size_t bytes = decode_shared_bytes<HeadSize>;
  const int pairs = arguments.tokens * (arguments.heads / arguments.kv_heads);
  const auto tiles = cuda::blocks_for(pairs, 16 * RowWarps);
  splits = std::max(1, splits / static_cast<int>(tiles));  // tiles keep the device busy too
  cuda::check(
      cudaFuncSetAttribute(reinterpret_cast<const void*>(decode_rows<HeadSize, RowWarps>),
                           cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
      "preparing decode attention");
  cuda::launch_early({dim3(static_cast<unsigned int>(splits),
                           static_cast<unsigned int>(arguments.kv_heads), tiles),
                      decode_warps * 32, bytes, stream},
                     "decode attention", decode_rows<HeadSize, RowWarps>, arguments);
  if (RowWarps > 1 && splits > 1) {
    cuda::launch(
        {dim3(static_cast<unsigned int>(pairs), static_cast<unsigned int>(arguments.kv_heads)), 128,
         join_shared_bytes(1, splits), stream},
        "joining decode attention", join_pairs<>, arguments, splits, HeadSize);
  }
}

template <int HeadSize>
void launch_few(cudaStream_t stream, const DecodeArguments& arguments, int splits) {
  constexpr size_t bytes = few_shared_bytes<HeadSize>;
  cuda::check(
      cudaFuncSetAttribute(reinterpret_cast<const void*>(decode_few<HeadSize>),
                           cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
      "preparing decode attention");
  cuda::launch_early({dim3(static_cast<unsigned int>(std::min(splits, few_parts)),
                           static_cast<unsigned int>(arguments.kv_heads)),
                      few_warps * 32, bytes, stream},
                     "decode attention", decode_few<HeadSize>, arguments);
}

template <int HeadSize>
void launch_tensor(cudaStream_t stream, const DecodeArguments& arguments, int splits) {
  const int pairs = arguments.tokens * (arguments.heads / arguments.kv_heads);
  if (pairs <= few_pairs) return launch_few<HeadSize>(stream, arguments, splits);
  if (pairs <= 16) return launch_rows<HeadSize, 1>(stream, arguments, splits);
  if (pairs <= 32) return launch_rows<HeadSize, 2>(stream, arguments, splits);
  if (pairs <= 64) return launch_rows<HeadSize, 4>(stream, arguments, splits);
  launch_rows<HeadSize, 8>(stream, arguments, splits);
}

// Whether the kernels for bf16 rows take the work and the card has the shared memory they need.
bool runs_on_tensor_cores(const Context& context, const DecodeAttention& work) {
  const ConstTensorView& q = work.queries;
  const bool few = q.size(0) * (q.size(1) / work.kv_heads) <= few_pairs;
  const size_t wide = few ? few_shared_bytes<128> : decode_shared_bytes<128>;
  const size_t narrow = few ? few_shared_bytes<64> : decode_shared_bytes<64>;
  return work.row_type == DType::bf16 && (q.size(2) == 128 || q.size(2) == 64) &&
         q.stride(0) % 2 == 0 && q.stride(1) % 2 == 0 &&
         (q.size(2) == 128 ? wide : narrow) <= cuda::most_shared_memory(context);
}

}  // namespace

bool decode_turns(const Context& context, const DecodeAttention& work) {
  const ConstTensorView& q = work.queries;
  return q.size(0) * (q.size(1) / work.kv_heads) <= few_pairs &&
         runs_on_tensor_cores(context, work);
}

int decode_splits(const Context& context, int kv_heads, int64_t most_rows) {
  const int64_t processors = cuda::multiprocessors(context.device.index);
  const int64_t shares = std::max<int64_t>(1, (most_rows + decode_share - 1) / decode_share);
  return static_cast<int>(
      std::clamp<int64_t>(processors / kv_heads, 1, std::min<int64_t>(shares, most_splits)));
}

size_t decode_scratch_bytes(int64_t tokens, int64_t heads, int64_t head_size, int splits) {
  const int64_t floats = int64_t{splits} * tokens * heads * (head_size + 2);
  return counter_bytes(heads) + static_cast<size_t>(floats) * sizeof(float);
}

void decode_attention(const Context& context, const DecodeAttention& work) {
  check_work(work);
  const ConstTensorView& q = work.queries;
  const int64_t head_size = q.size(2);
  const int64_t pairs = q.size(0) * q.size(1);
  DecodeArguments arguments;
  arguments.queries = q.raw();
  arguments.query_stride = q.stride(0);
  arguments.query_head_stride = q.stride(1);
  if (work.unturned.qkv.raw() != nullptr) {
    require(decode_turns(context, work) && work.unturned.qkv.dtype() == q.dtype(),
            "cannot turn the rows of such work");
    arguments.unturned = work.unturned.qkv.raw();
    arguments.unturned_stride = work.unturned.qkv.stride(0);
    arguments.cos = cuda::device_data<float>(work.unturned.cos);
    arguments.sin = cuda::device_data<float>(work.unturned.sin);
  }
  arguments.layer = work.layer;
  arguments.out = work.out.raw();
  arguments.out_stride = work.out.stride(0);
  arguments.out_head_stride = work.out.stride(1);
  arguments.tree_mask = work.tree_mask;
  arguments.arrived = static_cast<unsigned int*>(work.scratch);
  arguments.part_out =
      reinterpret_cast<float*>(static_cast<std::byte*>(work.scratch) + counter_bytes(q.size(1)));
  arguments.part_max = arguments.part_out + int64_t{work.splits} * pairs * head_size;
  arguments.part_sum = arguments.part_max + int64_t{work.splits} * pairs;
  arguments.factor = work.scale * log2_e;
  arguments.tokens = static_cast<int32_t>(q.size(0));
  arguments.heads = static_cast<int32_t>(q.size(1));
  arguments.kv_heads = work.kv_heads;
  arguments.queries_f32 = q.dtype() == DType::f32;
  arguments.out_f32 = work.out.dtype() == DType::f32;
  const cudaStream_t stream = cuda::enter(context);
  if (runs_on_tensor_cores(context, work)) {
    head_size == 128 ? launch_tensor<128>(stream, arguments, work.splits)
                     : launch_tensor<64>(stream, arguments, work.splits);
  } else {
    const auto tokens = static_cast<unsigned int>(q.size(0));
    const auto heads = static_cast<unsigned int>(q.size(1));
    cuda::launch_early({dim3(static_cast<unsigned int>(work.splits), heads, tokens), 256,
                        join_shared_bytes(1, work.splits), stream},
                       "decode attention", decode_simple<>, arguments,
                       static_cast<int32_t>(head_size), work.row_type == DType::f32);
  }
}

}  // namespace kinora

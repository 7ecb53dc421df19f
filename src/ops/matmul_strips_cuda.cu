#include "ops/matmul_strips_cuda.cuh"

#include "ops/matmul_cuda.h"

namespace kinora::cuda {
namespace {

using namespace strips;

constexpr int64_t least_outputs = 8192;  // below, blocks have too little to do each

bool rows_take_sixteen_bytes(const ConstTensorView& view) {
  return reinterpret_cast<uintptr_t>(view.raw()) % 16 == 0 && view.stride(0) % 8 == 0;
}

int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to; }

constexpr size_t strips_bytes(int warps, int width) {
  return static_cast<size_t>(warps * ring_bytes) + static_cast<size_t>(buffers * width) * row_bytes;
}

}  // namespace

bool strips_fit(const Context& context, const MatmulWork& work, bool gated) {
  const int64_t m = work.out.size(0), n = work.out.size(1), k = work.a.size(1);
  return m > 1 && m <= strips_rows && n * (gated ? 2 : 1) >= least_outputs && n < INT32_MAX / 2 &&
         k > 0 && k % chunk == 0 && work.a.dtype() == DType::bf16 &&
         work.weight.dtype() == DType::bf16 && rows_take_sixteen_bytes(work.a) &&
         rows_take_sixteen_bytes(work.weight) &&
         strips_bytes(most_warps, strips_rows) <= most_shared_memory(context) &&
         has_clusters(context);
}

void matmul_strips(const Context& context, const MatmulWork& work, bool gated) {
  StripsShape shape{};
  shape.a = device_data<__nv_bfloat16>(work.a);
  shape.weight = device_data<__nv_bfloat16>(work.weight);
  shape.bias = work.bias.raw();
  shape.bias_type = work.bias.dtype();
  shape.accumulate = work.accumulate;
  shape.m = static_cast<int>(work.out.size(0));
  shape.n = static_cast<int>(work.out.size(1));
  shape.chunks = static_cast<int>(work.a.size(1) / chunk);
  shape.a_stride = work.a.stride(0);
  shape.weight_stride = work.weight.stride(0);
  shape.out_stride = work.out.stride(0);
  const auto blocks = static_cast<unsigned int>(multiprocessors(context.device.index));
  const int64_t each = round_up(shape.n, blocks), strip = gated ? 8 : 16;
  const bool two = each > most_warps * strip;
  const int64_t of_warp = two ? 2 * strip : strip;
  shape.passes = static_cast<int>(round_up(each, most_warps * of_warp));
  const auto warps = static_cast<int>(round_up(round_up(each, shape.passes), of_warp));
  const int parts = static_cast<int>(blocks) * shape.passes;
  shape.each = shape.n / parts;
  shape.more = shape.n % parts;
  shape.of_warps = 1.0f / static_cast<float>(warps);
  const auto run = [&]<int Width, int Strips, bool Gated, typename Out>(Out) {
    const auto kernel = strips_kernel<Width, Strips, Gated, Out>;
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(strips_bytes(most_warps, Width))),
          "preparing a product");
    launch_early({blocks, static_cast<unsigned int>((warps + row_warps) * 32),
                  strips_bytes(warps, Width), enter(context)},
                 "matmul", kernel, shape, device_data<Out>(work.out));
  };
  with_activation(work.out.dtype(), [&]<typename Out>(Out type) {
    const auto with_width = [&]<int Width>() {
      if (gated && two) return run.template operator()<Width, 2, true>(type);
      if (gated) return run.template operator()<Width, 1, true>(type);
      if (two) return run.template operator()<Width, 2, false>(type);
      run.template operator()<Width, 1, false>(type);
    };
    if (shape.m <= 16) return with_width.template operator()<16>();
    if (shape.m <= 32) return with_width.template operator()<32>();
    with_width.template operator()<48>();
  });
}

}  // namespace kinora::cuda

#include <algorithm>
#include <array>

#include "ops/matmul_cuda.h"
#include "ops/matmul_hopper_cuda.cuh"

namespace kinora::cuda {
namespace {

using hopper::few_chunk;
using hopper::FewRows;
using Encode = decltype(&cuTensorMapEncodeTiled);

// The driver's function, found at run time: programs do not link with the driver. Null where the
// driver is too old.
Encode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                       cudaEnableDefault, &found) != cudaSuccess) {
    cudaGetLastError();
    return nullptr;
  }
  return found == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode>(function) : nullptr;
}

Encode encode() {
  static const Encode found = find_encode();
  return found;
}

bool runs_here(int device) {
  int major = 0;
  cudaFuncAttributes attributes{};
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      major != 9 ||
      cudaFuncGetAttributes(&attributes, hopper::few_rows_kernel<8, false, float>) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  return attributes.binaryVersion == 90 && encode() != nullptr;
}

constexpr int most_devices = 64;

bool runs_on(int device) {
  static const auto known = [] {
    std::array<bool, most_devices> runs{};
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) cudaGetLastError();
    for (int i = 0; i < std::min(count, most_devices); ++i) runs[static_cast<size_t>(i)] = runs_here(i);
    return runs;
  }();
  return device >= 0 && device < most_devices && known[static_cast<size_t>(device)];
}

cuuint64_t count(int64_t value) { return static_cast<cuuint64_t>(value); }
cuuint32_t box(int64_t value) { return static_cast<cuuint32_t>(value); }

CUtensorMap describe(const ConstTensorView& view, cuuint32_t rank, const cuuint64_t* sizes,
                     const cuuint64_t* strides, const cuuint32_t* boxes) {
  const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  CUtensorMap map;
  const CUresult status = encode()(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, rank, const_cast<std::byte*>(view.raw()), sizes,
      strides, boxes, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    throw Error(ErrorKind::internal, "describing a product to the GPU failed with code " +
                                         std::to_string(static_cast<int>(status)));
  }
  return map;
}

// [rows, k] as (64 columns, rows, chunks).
CUtensorMap describe_rows(const ConstTensorView& view, int64_t rows_of_box, int64_t deep) {
  const cuuint64_t sizes[] = {few_chunk, count(view.size(0)), count(view.size(1) / few_chunk)};
  const cuuint64_t strides[] = {count(view.stride(0) * 2), few_chunk * 2};
  const cuuint32_t boxes[] = {few_chunk, box(rows_of_box), box(deep)};
  return describe(view, 3, sizes, strides, boxes);
}

// [2n, k] as (64 columns, 8 rows, gate and up, n / 8 groups, chunks).
CUtensorMap describe_pairs(const ConstTensorView& view, int64_t groups, int64_t deep) {
  const int64_t n = view.size(0) / 2, row = view.stride(0) * 2;
  const cuuint64_t sizes[] = {few_chunk, 8, 2, count(n / 8), count(view.size(1) / few_chunk)};
  const cuuint64_t strides[] = {count(row), count(n * row), count(8 * row), few_chunk * 2};
  const cuuint32_t boxes[] = {few_chunk, 8, 2, box(groups), box(deep)};
  return describe(view, 5, sizes, strides, boxes);
}

int most_m(int64_t m) { return m <= 8 ? 8 : m <= 16 ? 16 : m <= 32 ? 32 : 64; }

// How the outputs and columns are divided: shares of outputs, in passes, over one or two blocks.
struct Division {
  int shares, split, passes, groups, deep;
};

Division divide(const Context& context, const MatmulWork& work, bool gated) {
  const int processors = multiprocessors(context.device.index);
  const int parts = gated ? 2 : 1, most_groups = 18 / parts;
  const auto groups = static_cast<int>((work.out.size(1) + 7) / 8);
  const int64_t chunks = work.a.size(1) / few_chunk;
  const auto shares = [&](int split) { return std::min(groups, processors / split); };
  const auto most = [&](int split) { return (groups + shares(split) - 1) / shares(split); };
  Division result{};
  result.split = !gated && processors >= 2 && most(2) <= most_groups && chunks >= 8 ? 2 : 1;
  result.shares = shares(result.split);
  result.passes = (most(result.split) + most_groups - 1) / most_groups;
  result.groups = groups / (result.shares * result.passes);
  // Few and large stages: handing one over takes a quarter of a microsecond.
  constexpr int large_stage = 26 * 1024;
  const int chunk_bytes = most_m(work.out.size(0)) * few_chunk * 2 +
                          (result.groups + 1) * parts * hopper::few_unit_bytes;
  result.deep = 1;
  while (result.deep < 4 && 2 * result.deep * chunk_bytes <= large_stage) result.deep *= 2;
  return result;
}

template <int MostM, bool gated, typename Out>
void run(const Context& context, const FewRows& work, int shares, Out* out) {
  const auto kernel = hopper::few_rows_kernel<MostM, gated, Out>;
  const auto* function = reinterpret_cast<const void*>(kernel);
  check(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             hopper::few_bytes),
        "preparing a product");
  // Kernels share a multiprocessor only if they want its memory divided in the same way.
  check(cudaFuncSetAttribute(function, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared),
        "preparing a product");
  cudaLaunchAttribute attributes[2]{};
  unsigned int used = 0;
  if (starts_early()) {
    attributes[used].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[used++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (work.split > 1) {
    attributes[used].id = cudaLaunchAttributeClusterDimension;
    attributes[used].val.clusterDim.x = static_cast<unsigned int>(work.split);
    attributes[used].val.clusterDim.y = 1;
    attributes[used++].val.clusterDim.z = 1;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned int>(shares * work.split);
  config.blockDim = hopper::few_threads;
  config.dynamicSmemBytes = hopper::few_bytes;
  config.stream = enter(context);
  config.attrs = attributes;
  config.numAttrs = used;
  check(cudaLaunchKernelEx(&config, kernel, work, out), "matmul");
}

bool starts_at_sixteen_bytes(const ConstTensorView& view) {
  return reinterpret_cast<uintptr_t>(view.raw()) % 16 == 0 && view.stride(0) % 8 == 0;
}

}  // namespace

bool hopper_fits(const Context& context, const MatmulWork& work, bool gated) {
  const int64_t m = work.out.size(0), n = work.out.size(1), k = work.a.size(1);
  return m > 1 && m <= hopper_rows && work.a.dtype() == DType::bf16 &&
         work.weight.dtype() == DType::bf16 && n > 0 && n < INT32_MAX / 64 && k > 0 &&
         k < INT32_MAX / 64 && k % few_chunk == 0 && (!gated || n % 8 == 0) &&
         starts_at_sixteen_bytes(work.a) && starts_at_sixteen_bytes(work.weight) &&
         runs_on(context.device.index);
}

void matmul_hopper(const Context& context, const MatmulWork& work, bool gated) {
  const Division division = divide(context, work, gated);
  const int most = most_m(work.out.size(0));
  FewRows few{};
  for (int more = 0; more < 2; ++more) {
    const int groups = std::max(division.groups + more, 1);
    few.weights[more] = gated ? describe_pairs(work.weight, groups, division.deep)
                              : describe_rows(work.weight, groups * 8, division.deep);
  }
  few.a = describe_rows(work.a, most, division.deep);
  few.bias = work.bias.raw();
  few.bias_type = work.bias.dtype();
  few.accumulate = work.accumulate;
  few.m = static_cast<int>(work.out.size(0));
  few.split = division.split;
  few.passes = division.passes;
  few.groups = division.groups;
  few.deep = division.deep;
  few.n = static_cast<int>(work.out.size(1));
  few.k = static_cast<int>(work.a.size(1));
  few.out_stride = work.out.stride(0);
  with_activation(work.out.dtype(), [&]<typename Out>(Out) {
    Out* out = device_data<Out>(work.out);
    const auto pick = [&]<int MostM>(std::integral_constant<int, MostM>) {
      gated ? run<MostM, true>(context, few, division.shares, out)
            : run<MostM, false>(context, few, division.shares, out);
    };
    switch (most) {
      case 8:
        return pick(std::integral_constant<int, 8>());
      case 16:
        return pick(std::integral_constant<int, 16>());
      case 32:
        return pick(std::integral_constant<int, 32>());
      default:
        return pick(std::integral_constant<int, 64>());
    }
  });
}

}  // namespace kinora::cuda

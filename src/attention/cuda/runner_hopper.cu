#include "attention/cuda/runner_hopper.h"

#include "attention/cuda/hopper_launch.cuh"

namespace kinora::hopper {

bool runs_on(int device) {
  int major = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  if (major != 9) return false;
  cudaFuncAttributes attributes{};
  if (cudaFuncGetAttributes(&attributes, attend<Variant<Traits{}>>) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  return attributes.binaryVersion == 90;
}

void launch(const Context& context, const cuda_attention::Problem& problem, const RowSet& rows,
            ListKinds lists, const ConstTensorView& key_columns,
            const ConstTensorView& value_columns) {
  const auto launch_it = problem.head_size == 64 ? launch_narrow : launch_columns<128>;
  launch_it(context, problem, rows, lists, key_columns, value_columns);
}

}  // namespace kinora::hopper

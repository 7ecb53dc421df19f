// Clusters of blocks on Hopper: how many run at once, and sums sent from block to block.
#pragma once

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>

#include "base/cuda_support.h"

namespace kinora::cuda {

// Clusters of `split` blocks of a kernel, each block with a multiprocessor of its own. They stay
// within a part of the card, so that some multiprocessors may have none.
inline int clusters_at_once(const Context& context, const void* kernel, int split, int threads,
                            size_t shared_bytes) {
  const int processors = multiprocessors(context.device.index);
  if (split == 1) return processors;
  static std::mutex mutex;
  static std::map<std::tuple<int, const void*, int>, int> known;
  const std::lock_guard lock(mutex);
  int& found = known[{context.device.index, kernel, split}];
  if (found > 0) return found;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned int>(split), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned int>(processors / split * split);
  config.blockDim = static_cast<unsigned int>(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  check(cudaOccupancyMaxActiveClusters(&found, kernel, &config), "preparing a product");
  found = std::max(found, 1);
  return found;
}

// Four sums of a lane to block `rank` of the cluster, counted on its barrier.
__device__ __forceinline__ void send_four(uint32_t target, uint32_t barrier, int rank,
                                          const float* v) {
  uint32_t there, there_barrier;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(target), "r"(rank));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(there_barrier)
               : "r"(barrier), "r"(rank));
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(there),
      "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"(there_barrier)
      : "memory");
}

}  // namespace kinora::cuda

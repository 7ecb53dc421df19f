// Attention over a plan on Hopper (sm_90a), head size 64 or 128, bf16 keys and values: a persistent
// kernel of one producer warpgroup, whose warps copy queries, keys and values into shared memory,
// and two consumer warpgroups of 64 rows each, which do all arithmetic. runner_hopper.cu launches
// it.
//
//   S = Q Kᵀ (shared memory × shared memory), P = exp2(c S − c max), O = O · correction + P V
//   (registers × shared memory); f32 everywhere but in P, Q, K, V.
//
// While the tensor cores multiply P(i) with V(i), S(i + 1) is computed and turned into P(i + 1).
#pragma once

#include "attention/cuda/hopper_consumer.cuh"
#include "attention/cuda/hopper_producer.cuh"
#include "attention/cuda/hopper_row_producer.cuh"

namespace kinora::hopper {

// Everything but what differs between the kernels below: load(shared) is the copying warps' work.
template <typename V, class Load>
__device__ inline void attend_with(const Problem& a, const Load& load) {
  extern __shared__ char memory[];
  auto& shared =
      *reinterpret_cast<Shared<V>*>(memory + (1024 - (shared_address(memory) & 1023)) % 1024);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      barrier_init(&shared.full_query[i], 128 - V::copy_warps * 32);
      barrier_init(&shared.empty_query[i], 256 + (V::gather ? V::copy_arrivals : V::copy_warps));
    }
    for (int i = 0; i < V::stages; ++i) {
      barrier_init(&shared.full_key[i], V::copy_arrivals);
      barrier_init(&shared.empty_key[i], 8);
      barrier_init(&shared.full_value[i], V::copy_arrivals);
      barrier_init(&shared.empty_value[i], 8);
    }
    barrier_init_visible();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    registers_fewer<V::producer_registers>();
    if (threadIdx.x >= V::copy_warps * 32) {
      load_queries<V>(a, shared);
    } else {
      load(shared);
    }
  } else {
    registers_more<V::consumer_registers>();
    consume<V>(a, shared);
  }
}

// Other architectures get empty kernels.
template <typename V>
__global__ void __launch_bounds__(threads, 1) attend(const __grid_constant__ Arguments a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  attend_with<V>(a.problem, [&](Shared<V>& shared) {
    if (threadIdx.x % 32 == 0) load_contiguous<V>(a, shared, threadIdx.x == 0);
  });
#endif
}

// Lists with strided or gathered keys.
template <typename V>
__global__ void __launch_bounds__(threads, 1)
    attend_strided(const __grid_constant__ StridedArguments a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  attend_with<V>(a.all.problem, [&](Shared<V>& shared) {
    if constexpr (V::gather) {
      load_any<V>(a, shared);
    } else if (threadIdx.x % 32 == 0) {
      load_strided<V>(a, shared, threadIdx.x == 0);
    }
  });
#endif
}

// A map of every s-th row, yet without a stride, and what it maps.
struct StrideTemplate {
  CUtensorMap keys;  // (64 columns, 1 step, 1 phase, halves, kv heads)
  CUtensorMap values;
  const char* key_data = nullptr;
  const char* value_data = nullptr;
  int64_t key_row = 0;  // bytes from row to row
  int64_t value_row = 0;
  int32_t row_count = 0;
};

// The maps of heads whose stride the host does not know.  grid: (heads, keys and values, longer and
// shorter), one warp
template <int = 0>
__global__ void make_stride_maps(const __grid_constant__ StrideTemplate a, const int32_t* strides,
                                 HeadStrideMaps* maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ alignas(128) CUtensorMap map;
  const int32_t stride = strides[blockIdx.x];
  if (stride < 2) return;
  const bool keys = blockIdx.y == 0, longer = blockIdx.z == 0;
  const StrideLayout layout(a.row_count, stride);
  const int32_t steps = layout.steps + (longer ? 1 : 0);
  const int32_t phases = longer ? layout.longer : stride - layout.longer;
  if (steps == 0 || phases == 0) return;  // no row is there
  const int lane = static_cast<int>(threadIdx.x);
  static_assert(sizeof(CUtensorMap) == 32 * sizeof(uint32_t));
  reinterpret_cast<uint32_t*>(&map)[lane] =
      reinterpret_cast<const uint32_t*>(keys ? &a.keys : &a.values)[lane];
  __syncwarp();
  if (lane == 0) {
    const int64_t row = keys ? a.key_row : a.value_row;
    set_map_address(&map, (keys ? a.key_data : a.value_data) + (longer ? 0 : layout.longer) * row);
    set_map_size<1>(&map, static_cast<uint32_t>(steps));
    set_map_size<2>(&map, static_cast<uint32_t>(phases));
    set_map_stride<0>(&map, static_cast<uint64_t>(stride * row));
  }
  __syncwarp();
  StrideMap& target = keys ? maps[blockIdx.x].keys : maps[blockIdx.x].values;
  publish_map(longer ? &target.longer : &target.shorter, &map);
#endif
}

// Lists made on the device.
template <typename V>
__global__ void __launch_bounds__(threads, 1)
    attend_pieces(const __grid_constant__ PieceArguments a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  attend_with<V>(a.all.problem,
                 [&](Shared<V>& shared) { load_pieces<V>(a, shared, threadIdx.x < 32); });
#endif
}

}  // namespace kinora::hopper

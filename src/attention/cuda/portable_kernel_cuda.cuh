// Attention over a plan on any card from sm_80 on, bf16 keys and values, head sizes up to 128: a
// block of four warps takes one job of 64 rows, 16 per warp, and walks its list in blocks of 64
// keys while the next block is loaded. Vision towers (head sizes 72, 80) and cards without sm_90a
// use it. Head sizes that are not multiples of 16 are padded with zeros in shared memory only.
#pragma once

#include "attention/cuda/cuda_problem.cuh"
#include "attention/cuda/mma_cuda.cuh"

namespace kinora::cuda_attention {

constexpr int portable_rows = 64;
constexpr int portable_keys = 64;
constexpr int portable_threads = 128;

// Rows of an odd number of 16-byte pieces: loads of eight rows meet no bank twice.
template <int Padded>
struct PortableTile {
  static constexpr int pieces = Padded / 8;
  static constexpr int pitch = (pieces | 1) * 16;
  static constexpr int bytes = portable_keys * pitch;
  // Keys and values twice; the queries use the second pair before it is needed. Then what is
  // compared with limits, and weights.
  static constexpr int shared_bytes = 4 * bytes + 4 * portable_keys * static_cast<int>(sizeof(int));
};

template <int Padded>
__device__ inline uint32_t tile_place(int row, int piece) {
  return static_cast<uint32_t>(row * PortableTile<Padded>::pitch + piece * 16);
}

// Where 80 columns are measured, three blocks a multiprocessor would leave too few registers.
template <int Padded, bool Weighted, bool Measure>
__global__ void __launch_bounds__(portable_threads, Padded <= (Measure ? 64 : 80) ? 3 : 2)
    attend_portable(const __grid_constant__ Problem a) {
  using Tile = PortableTile<Padded>;
  constexpr int steps = Padded / 16;
  extern __shared__ __align__(128) char memory[];
  const uint32_t shared = address_of(memory);
  int* const compare = reinterpret_cast<int*>(memory + 4 * Tile::bytes);        // [2, keys]
  auto* const weights = reinterpret_cast<float*>(compare + 2 * portable_keys);  // [2, keys]

  CudaJob job = a.plan.jobs[blockIdx.x];
  job.head += static_cast<int32_t>(blockIdx.y);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread & 31;
  const int warp = thread >> 5;
  const int column = (lane & 3) * 2;
  const int kv_head = job.head / a.group;
  const int used = a.head_size / 8;  // pieces that hold something
  const auto* keys = static_cast<const __nv_bfloat16*>(a.keys) + kv_head * a.key_head_stride;
  const auto* values = static_cast<const __nv_bfloat16*>(a.values) + kv_head * a.value_head_stride;
  const int32_t blocks = job.blocks;
  const float factor = a.scale * log2_e;
  Cursor<portable_keys> cursor(a.plan, job);

  const auto load = [&](const BlockInfo& info, int stage) {
    const uint32_t key_tile = shared + static_cast<uint32_t>(stage * 2 * Tile::bytes);
    for (int i = thread; i < portable_keys * Tile::pieces; i += portable_threads) {
      const int key = i / Tile::pieces, piece = i % Tile::pieces;
      const int64_t row = cursor.row_of(a.plan, info, key);
      const uint32_t bytes = key < info.valid && piece < used ? 16 : 0;
      const int from = bytes ? piece * 8 : 0;
      copy_piece(key_tile + tile_place<Padded>(key, piece), keys + row * a.key_stride + from,
                 bytes);
      copy_piece(key_tile + Tile::bytes + tile_place<Padded>(key, piece),
                 values + row * a.value_stride + from, bytes);
    }
    if (info.kind == block_listed && thread < portable_keys) {
      compare[stage * portable_keys + thread] = cursor.compared(a.plan, info, thread);
    }
    if (Weighted && thread < portable_keys) {  // in the unit of products of queries and keys
      const float weight = a.weights[cursor.row_of(a.plan, info, thread)];
      weights[stage * portable_keys + thread] = log2f(weight) / factor;
    }
    commit_copies();
  };

  // Queries, through the second stage's buffers.
  {
    char* tile = memory + 2 * Tile::bytes;
    for (int i = thread; i < portable_rows * Tile::pieces; i += portable_threads) {
      const int row = i / Tile::pieces, piece = i % Tile::pieces;
      uint4 packed{};
      if (row < job.rows && piece < used) {
        const RowPlace place = find_row(a.plan, job, row);
        const int64_t at =
            place.query * a.query_stride + place.head * a.query_head_stride + piece * 8;
        if (a.queries_f32) {
          const auto* from =
              reinterpret_cast<const float4*>(static_cast<const float*>(a.queries) + at);
          const float4 low = from[0], high = from[1];
          packed = {pack_bf16(low.x, low.y), pack_bf16(low.z, low.w), pack_bf16(high.x, high.y),
                    pack_bf16(high.z, high.w)};
        } else {
          packed =
              *reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(a.queries) + at);
        }
      }
      *reinterpret_cast<uint4*>(tile + tile_place<Padded>(row, piece)) = packed;
    }
  }
  BlockInfo info = cursor.info();
  if (blocks > 0) load(info, 0);
  __syncthreads();
  uint32_t q[steps][4];
#pragma unroll
  for (int k = 0; k < steps; ++k) {
    load_matrices(q[k], shared + 2 * Tile::bytes +
                            tile_place<Padded>(warp * 16 + (lane & 15), k * 2 + (lane >> 4)));
  }
  int32_t limit[2];       // the rest of a row's place is looked up again at the end
  float* scores[2] = {};  // where those of a block go; null: nowhere
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = warp * 16 + (lane >> 2) + 8 * r;
    limit[r] = 0;
    if (row >= job.rows) continue;
    const RowPlace place = find_row(a.plan, job, row);
    limit[r] = place.limit;
    if constexpr (Measure) {
      scores[r] = a.scores + (int64_t{place.query} * a.target.heads + place.head) * a.score_stride;
    }
  }

  float out[2 * steps][4] = {};
  float max[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};
  for (int32_t block = 0; block < blocks; ++block) {
    const int stage = block & 1;
    __syncthreads();  // the other stage is no longer read
    BlockInfo next{};
    if (block + 1 < blocks) {
      cursor.advance();
      next = cursor.info();
      load(next, stage ^ 1);
      wait_copies<1>();
    } else {
      wait_copies<0>();
    }
    __syncthreads();
    const uint32_t key_tile = shared + static_cast<uint32_t>(stage * 2 * Tile::bytes);
    const uint32_t value_tile = key_tile + Tile::bytes;
    float s[8][4] = {};
#pragma unroll
    for (int k = 0; k < steps; ++k) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        uint32_t b[4];
        load_matrices(b, key_tile + tile_place<Padded>(n * 16 + (lane & 7) + ((lane >> 4) << 3),
                                                       k * 2 + ((lane >> 3) & 1)));
        multiply_add(s[2 * n], q[k], b[0], b[1]);
        multiply_add(s[2 * n + 1], q[k], b[2], b[3]);
      }
    }
    if constexpr (Weighted) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          s[i][j] += weights[stage * portable_keys + i * 8 + column + (j & 1)];
        }
      }
    }
    if (info.kind == block_limited) {
      const int32_t end[2] = {info.end_for(limit[0]), info.end_for(limit[1])};
#pragma unroll
      for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (i * 8 + column + (j & 1) >= end[j >> 1]) s[i][j] = -INFINITY;
        }
      }
    } else if (info.kind == block_listed) {
      const int* rows = compare + stage * portable_keys;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (rows[i * 8 + column + (j & 1)] >= limit[j >> 1]) s[i][j] = -INFINITY;
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float high = max[r];
#pragma unroll
      for (int i = 0; i < 8; ++i) high = fmaxf(high, fmaxf(s[i][2 * r], s[i][2 * r + 1]));
      high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, 1));
      high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, 2));
      const float safe = high == -INFINITY ? 0 : high;
      const float base = safe * factor;
      const float correction = exp2_fast((max[r] - safe) * factor);
      max[r] = high;
      float part = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        s[i][2 * r] = exp2_fast(fmaf(s[i][2 * r], factor, -base));
        s[i][2 * r + 1] = exp2_fast(fmaf(s[i][2 * r + 1], factor, -base));
        part += s[i][2 * r] + s[i][2 * r + 1];
      }
      sum[r] = fmaf(sum[r], correction, part);
      if constexpr (Measure) {  // lanes 0 and 1 of a quad write the two halves of the block
        const int half = lane & 1;
        float measured[2] = {};
#pragma unroll
        for (int i = 0; i < 8; ++i) measured[i / 4] += s[i][2 * r] + s[i][2 * r + 1];
        // A lane gives its neighbour that one's half; then the two pairs of a quad join.
        float own = half == 0 ? measured[0] : measured[1];
        own += __shfl_xor_sync(0xffffffff, half == 0 ? measured[1] : measured[0], 1);
        own += __shfl_xor_sync(0xffffffff, own, 2);
        const int64_t at = 2 * (int64_t{job.first_block} + block) + half;
        if ((lane & 2) == 0 && scores[r] != nullptr && at < a.score_stride) {
          scores[r][at] = log2f(own) + base;
        }
      }
#pragma unroll
      for (int i = 0; i < 2 * steps; ++i) {
        out[i][2 * r] *= correction;
        out[i][2 * r + 1] *= correction;
      }
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const uint32_t p[4] = {
          pack_bf16(s[2 * c][0], s[2 * c][1]), pack_bf16(s[2 * c][2], s[2 * c][3]),
          pack_bf16(s[2 * c + 1][0], s[2 * c + 1][1]), pack_bf16(s[2 * c + 1][2], s[2 * c + 1][3])};
#pragma unroll
      for (int n = 0; n < steps; ++n) {
        uint32_t b[4];
        load_matrices_transposed(
            b, value_tile + tile_place<Padded>(c * 16 + (lane & 15), n * 2 + (lane >> 4)));
        multiply_add(out[2 * n], p, b[0], b[1]);
        multiply_add(out[2 * n + 1], p, b[2], b[3]);
      }
    }
    info = next;
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sum[r] += __shfl_xor_sync(0xffffffff, sum[r], 1);
    sum[r] += __shfl_xor_sync(0xffffffff, sum[r], 2);
    const int row = warp * 16 + (lane >> 2) + 8 * r;
    if (row >= job.rows) continue;
    const auto pair = [&](int i) { return float2{out[i][2 * r], out[i][2 * r + 1]}; };
    const RowPlace place = find_row(a.plan, job, row);
    finish_quad_row<Padded / 8>(a, job, row, place.query, place.head, column, max[r] * a.scale,
                                sum[r], pair);
  }
}

}  // namespace kinora::cuda_attention

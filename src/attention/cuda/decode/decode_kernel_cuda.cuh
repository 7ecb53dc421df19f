// The decode kernel (decode_cuda.h) for bf16 rows: a block reads one part of the rows of one kv
// head once, through tiles of 128 rows in shared memory, for up to 16 · RowWarps (token, head)
// pairs of a sequence. Its eight warps share out pairs and rows. With few pairs the block that
// finishes last for a sequence and kv head joins the parts, otherwise a second kernel does.
#pragma once

#include "attention/cuda/decode/decode_join_cuda.cuh"

namespace kinora::cuda_attention {

constexpr int decode_stages = 3;

template <int HeadSize>
constexpr size_t decode_shared_bytes = size_t{decode_stages} * decode_tile* HeadSize * 2 * 2;
constexpr int decode_parts = 256;  // parts of a pair that fit into it when they are joined
static_assert(decode_parts * (128 + 4) * sizeof(float) <= decode_shared_bytes<128>);
static_assert(decode_parts * (64 + 4) * sizeof(float) <= decode_shared_bytes<64>);

// One stretch of a sequence; all threads of a block. `waited` says whether earlier kernels have
// ended.
template <int HeadSize, int RowWarps>
__device__ inline void attend_rows(const DecodeArguments& a, const Stretch& stretch, bool& waited,
                                   char* memory) {
  constexpr int pieces = HeadSize / 8;
  constexpr int steps = HeadSize / 16;
  constexpr int key_warps = decode_warps / RowWarps;
  constexpr int warp_keys = decode_tile / key_warps;  // of a tile
  constexpr int chunk = warp_keys < 32 ? warp_keys : 32;
  constexpr int tile_rows = 16 * RowWarps;
  constexpr uint32_t tile_bytes = decode_tile * HeadSize * 2;
  static_assert(chunk <= decode_share, "a chunk is of one set");
  const uint32_t shared = address_of(memory);

  const int part = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.y);
  const DeviceSequence& sequence = a.sequences[stretch.sequence];
  const DecodePairs pairs(a, sequence, kv_head);
  const int first_pair = static_cast<int>(blockIdx.z) * tile_rows;
  const int pair_count = min(tile_rows, pairs.count - first_pair);
  if (pair_count <= 0) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread & 31;
  const int row_warp = (thread >> 5) % RowWarps;
  const int key_warp = (thread >> 5) / RowWarps;

  const int32_t begin = stretch.begin, end = stretch.end;
  const int64_t row_stride = int64_t{a.kv_heads} * HeadSize;
  SetCursor source;  // of the rows that are loaded
  const __nv_bfloat16 *keys = nullptr, *values = nullptr;
  const int32_t* list = nullptr;
  int32_t count = 0;

  // Not unrolled: it would be half of the kernel's instructions, and with few rows each runs once.
  const auto load = [&](int32_t tile_begin, int stage) {
    const uint32_t key_tile = shared + static_cast<uint32_t>(stage) * 2 * tile_bytes;
#pragma unroll 1
    for (int share = 0; share < decode_tile; share += decode_share) {
      const int32_t first = tile_begin + share;
      if (first >= end) break;
      if (source.seek(sequence, first)) {
        const DeviceRowSet& set = sequence.sets[source.index];
        keys = static_cast<const __nv_bfloat16*>(set.keys) + kv_head * HeadSize;
        values = static_cast<const __nv_bfloat16*>(set.values) + kv_head * HeadSize;
        list = set.list;
        count = static_cast<int32_t>(set.count);
      }
      const int32_t place = first - source.begin, left = count - place;
#pragma unroll
      for (int i = thread; i < decode_share * pieces; i += decode_warps * 32) {
        const int row = i / pieces, piece = i % pieces;
        const bool inside = row < left;
        int32_t from = inside ? place + row : 0;
        if (list != nullptr) from = list[from];
        const int64_t offset = from * row_stride + piece * 8;
        const uint32_t at = piece_offset<pieces>(share + row, piece);
        copy_piece(key_tile + at, keys + offset, inside ? 16 : 0);
        copy_piece(key_tile + tile_bytes + at, values + offset, inside ? 16 : 0);
      }
    }
    commit_copies();
  };
  // Old rows were there before the kernel that makes this one's queries and new rows.
  const int32_t old_end = waited ? all_rows : old_rows_end(sequence, begin, end);
  const auto wait_once = [&] {
    if (!waited) cuda::wait_for_previous();
    waited = true;
  };
#pragma unroll 1
  for (int stage = 0; stage < decode_stages - 1; ++stage) {
    if (begin + (stage + 1) * decode_tile > old_end) wait_once();
    load(begin + stage * decode_tile, stage);
  }
  wait_once();

  // The queries pass through the last stage, which nobody needs yet.
  const uint32_t query_tile = shared + (decode_stages - 1) * 2 * tile_bytes;
#pragma unroll
  for (int i = thread; i < tile_rows * HeadSize / 2; i += decode_warps * 32) {
    const int row = i / (HeadSize / 2), two = i % (HeadSize / 2);
    uint32_t value = 0;
    if (row < pair_count) {
      const int pair = first_pair + row;
      const int64_t from =
          pairs.token(pair) * a.query_stride + pairs.head(pair) * a.query_head_stride + two * 2;
      if (a.queries_f32) {
        const float2 x =
            *reinterpret_cast<const float2*>(static_cast<const float*>(a.queries) + from);
        value = pack_bf16(x.x, x.y);
      } else {
        value =
            *reinterpret_cast<const uint32_t*>(static_cast<const __nv_bfloat16*>(a.queries) + from);
      }
    }
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(query_tile + piece_offset<pieces>(row, two / 4) +
                                                 static_cast<uint32_t>(two % 4 * 4)),
                 "r"(value)
                 : "memory");
  }
  __syncthreads();
  // This warp's 16 pairs: a lane sees rows lane / 4 and lane / 4 + 8.
  uint32_t q[steps][4];
  int token[2];  // of the sequence
#pragma unroll
  for (int s = 0; s < steps; ++s) load_left<pieces>(q[s], query_tile, row_warp * 16, s, lane);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int pair = row_warp * 16 + (lane >> 2) + 8 * r;
    token[r] = pair < pair_count ? (first_pair + pair) / pairs.group : 0;
  }

  float out[2 * steps][4] = {};
  float max[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};
  SetCursor now;  // of the rows that are multiplied
  int32_t plain_end = 0;
  int stage = 0;
  for (int32_t tile_begin = begin; tile_begin < end; tile_begin += decode_tile) {
    wait_copies<decode_stages - 2>();
    __syncthreads();
    load(tile_begin + (decode_stages - 1) * decode_tile,
         (stage + decode_stages - 1) % decode_stages);
    const uint32_t key_tile = shared + static_cast<uint32_t>(stage) * 2 * tile_bytes;
    const uint32_t value_tile = key_tile + tile_bytes;
    stage = (stage + 1) % decode_stages;
#pragma unroll 1
    for (int at = 0; at < warp_keys; at += chunk) {
      const int first_key = key_warp * warp_keys + at;
      const int32_t first_row = tile_begin + first_key;
      if (first_row >= end) break;
      if (now.seek(sequence, first_row)) plain_end = plain_rows_end(sequence, now);
      const bool plain = first_row + chunk <= plain_end;
      const float weight = plain ? 0 : row_weight(sequence, now, first_row, lane);
      float s[chunk / 8][4] = {};
#pragma unroll
      for (int c = 0; c < chunk / 16; ++c) {
#pragma unroll
        for (int k = 0; k < steps; ++k) {
          multiply_keys16<pieces>(s[2 * c], s[2 * c + 1], q[k], key_tile, first_key + c * 16, k,
                                  lane);
        }
      }
#pragma unroll
      for (int i = 0; i < chunk / 8; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) s[i][j] *= a.factor;
      }
      if (!plain) {
        uint32_t seen[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          seen[r] = rows_seen(sequence, now, first_row, token[r],
                              a.masks[pairs.first_token + token[r]]) >>
                    (lane & 3) * 2;
        }
#pragma unroll
        for (int i = 0; i < chunk / 8; ++i) {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const float more = __shfl_sync(0xffffffff, weight, i * 8 + (lane & 3) * 2 + c);
#pragma unroll
            for (int r = 0; r < 2; ++r) {
              float& x = s[i][2 * r + c];
              x = (seen[r] >> (i * 8 + c) & 1) != 0 ? x + more : -INFINITY;
            }
          }
        }
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float high = max[r];
#pragma unroll
        for (int i = 0; i < chunk / 8; ++i) {
          high = fmaxf(high, fmaxf(s[i][2 * r], s[i][2 * r + 1]));
        }
        high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, 1));
        high = fmaxf(high, __shfl_xor_sync(0xffffffff, high, 2));
        const float base = high == -INFINITY ? 0 : high;
        const float correction = exp2_fast(max[r] - base);
        max[r] = high;
        float part_sum = 0;
#pragma unroll
        for (int i = 0; i < chunk / 8; ++i) {
          s[i][2 * r] = exp2_fast(s[i][2 * r] - base);
          s[i][2 * r + 1] = exp2_fast(s[i][2 * r + 1] - base);
          part_sum += s[i][2 * r] + s[i][2 * r + 1];
        }
        sum[r] = sum[r] * correction + part_sum;
        if (correction != 1) {
#pragma unroll
          for (int i = 0; i < 2 * steps; ++i) {
            out[i][2 * r] *= correction;
            out[i][2 * r + 1] *= correction;
          }
        }
      }
      __syncwarp();
#pragma unroll
      for (int c = 0; c < chunk / 16; ++c) {
        const uint32_t p[4] = {pack_bf16(s[2 * c][0], s[2 * c][1]),
                               pack_bf16(s[2 * c][2], s[2 * c][3]),
                               pack_bf16(s[2 * c + 1][0], s[2 * c + 1][1]),
                               pack_bf16(s[2 * c + 1][2], s[2 * c + 1][3])};
#pragma unroll
        for (int n = 0; n < steps; ++n) {
          multiply_values16<pieces>(out[2 * n], out[2 * n + 1], p, value_tile, first_key + c * 16,
                                    n, lane);
        }
      }
    }
  }
  wait_copies<0>();
  __syncthreads();

  // Warps that shared the keys of a pair join their results through shared memory.
  constexpr int pitch = HeadSize + 8;                 // eight rows of a warp in different banks
  auto* warp_out = reinterpret_cast<float*>(memory);  // [key warps, tile rows, pitch]
  float* warp_max = warp_out + key_warps * tile_rows * pitch;
  float* warp_sum = warp_max + key_warps * tile_rows;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sum[r] += __shfl_xor_sync(0xffffffff, sum[r], 1);
    sum[r] += __shfl_xor_sync(0xffffffff, sum[r], 2);
    const int row = row_warp * 16 + (lane >> 2) + 8 * r;
    const int slot = key_warp * tile_rows + row;
    if (row < pair_count) {
#pragma unroll
      for (int i = 0; i < 2 * steps; ++i) {
        *reinterpret_cast<float2*>(warp_out + slot * pitch + i * 8 + (lane & 3) * 2) =
            float2{out[i][2 * r], out[i][2 * r + 1]};
      }
      if ((lane & 3) == 0) {
        warp_max[slot] = max[r];
        warp_sum[slot] = sum[r];
      }
    }
  }
  __syncthreads();
  const bool only = stretch.parts.count == 1 && a.others.out == nullptr;
  join_warps<key_warps, tile_rows, HeadSize, pitch>(a, pairs, first_pair, pair_count, part, only,
                                                    warp_out, warp_max, warp_sum);
  if constexpr (RowWarps == 1) {  // one tile, or one part
    if (!only &&
        last_to_arrive(a.arrived + stretch.sequence * a.kv_heads + kv_head, stretch.parts.count)) {
      join_through<HeadSize, decode_warps * 32, decode_shared_bytes<HeadSize>>(
          a, pairs, stretch.parts, reinterpret_cast<float*>(memory));
    }
  }
}

// grid: (parts, kv heads, tiles of pairs)
template <int HeadSize, int RowWarps>
__global__ void __launch_bounds__(decode_warps * 32, 1)
    decode_rows(const __grid_constant__ DecodeArguments a) {
  extern __shared__ __align__(128) char memory[];
  __shared__ SequenceStarts starts;
  cuda::let_next_start();
  Walk walk(a, starts, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
  bool waited = false;
  for (Stretch stretch; walk.next(stretch); __syncthreads()) {
    attend_rows<HeadSize, RowWarps>(a, stretch, waited, memory);
  }
  if (!waited) cuda::wait_for_previous();
}

}  // namespace kinora::cuda_attention

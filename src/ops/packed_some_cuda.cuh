// Products of 17 to 64 rows with packed weights, where reading the weights is still most of the
// work but the rows of a are too many for a block to hold. A block takes some strips of sixteen
// rows of the weights, and each of its warps one of them through a ring of its own in shared
// memory: every lane brings its own bytes, turns them into bf16 in registers, which is exact, and
// multiplies them with all rows of a. One more warp brings these rows for the others, 128 columns
// at a time and a few steps ahead. Scales are applied to the sums of 128 columns. Where strips are
// too few for all warps of all multiprocessors, some warps of a block share one and take its
// columns in turns, and the blocks of a cluster take parts of them; all add up at the end.
#pragma once

#include "ops/hopper_instructions.cuh"
#include "ops/packed_few_cuda.cuh"

namespace kinora::cuda::some {

using few::affine_bytes;
using few::Rows;
using few::scale_bytes;

constexpr int chunk = 128;  // columns of a step
constexpr int row_bytes = chunk * 2;
// With strips; the sums of 64 rows leave room for fewer.
template <int width>
constexpr int most_warps = width > 32 ? 14 : 18;

template <PackedKind kind>
using Weights = few::Source<kind, chunk / strip_piece>;

// Pieces of a warp on their way or in use: as few as keep the memory busy, since rows of a wait
// behind all that has been asked for before.
template <PackedKind kind>
constexpr uint32_t ring = kind == PackedKind::int4 ? 4 : 3;
template <PackedKind kind>
constexpr uint32_t piece_bytes = Weights<kind>::vectors * 32 * sizeof(uint4);
// One that a warp has of codes, scales and zero points.
template <PackedKind kind>
constexpr uint32_t slot_bytes = piece_bytes<kind> + 128;
static_assert(affine_bytes <= 128);
// Steps whose rows of a are on their way or in use.
template <int width>
constexpr int buffers = width > 32 ? 6 : 8;

// Where sixteen bytes of a row lie: eight rows of one place meet eight banks.
__device__ __forceinline__ uint32_t place(int row, int sixteen) {
  return static_cast<uint32_t>(row * row_bytes + ((sixteen ^ (row & 7)) << 4));
}

// How the work is divided.
struct Division {
  int passes;  // in which a block takes its strips; one where several warps share a strip
  int strips;  // of a block in a pass, at most
  int parts;   // warps of a block that share a strip
};

// The strips of a block, and which columns of them: pieces [begin, begin + range).
struct Share {
  int first, count;
  int begin, range;
};
template <class Source>
__device__ __forceinline__ Share share_of(const Source& weight, int split) {
  const auto part = [](int all, int which, int parts) {
    return static_cast<int>(int64_t{all} * which / parts);
  };
  const int rank = few::cluster_rank(split);
  const int cluster = static_cast<int>(blockIdx.x) / split;
  const int clusters = static_cast<int>(gridDim.x) / split;
  const int first = part(weight.strips, cluster, clusters);
  const int begin = part(weight.pieces, rank, split);
  return {first, part(weight.strips, cluster + 1, clusters) - first, begin,
          part(weight.pieces, rank + 1, split) - begin};
}

// Asks for the pieces of a warp, one after the other.
template <PackedKind kind>
class Asking {
 public:
  __device__ __forceinline__ Asking(const Weights<kind>& weight, const Share& share,
                                    const Division& division, int strip, int part, uint32_t memory)
      : weight_(weight),
        share_(share),
        division_(division),
        lane_(static_cast<int>(threadIdx.x) % 32),
        part_(part),
        memory_(memory),
        strip_(strip) {
    open_pass();
  }

  __device__ __forceinline__ void next() {
    if (at_ < share_.range) {
      const uint32_t to = memory_ + slot_ * slot_bytes<kind>;
#pragma unroll
      for (uint32_t v = 0; v < Weights<kind>::vectors; ++v) {
        few::copy_own(to + (v * 32 + static_cast<uint32_t>(lane_)) * 16, cursor_.codes + v * 32);
      }
      if (cursor_.affine != nullptr) {
        few::copy_own(to + piece_bytes<kind> + static_cast<uint32_t>(lane_) * 16, cursor_.affine);
      }
      at_ += division_.parts;
      if (at_ < share_.range) {
        cursor_.codes += division_.parts * static_cast<int>(Weights<kind>::vectors * 32);
        cursor_.in_group += division_.parts;
        while (cursor_.in_group >= weight_.group_pieces) {
          cursor_.in_group -= weight_.group_pieces;
          if (cursor_.affine != nullptr) cursor_.affine += cursor_.affine_step(lane_);
        }
      } else if (--passes_ > 0) {
        strip_ += division_.strips;
        open_pass();
      }
    }
    if (++slot_ == ring<kind>) slot_ = 0;
    asm volatile("cp.async.commit_group;" ::: "memory");
  }

 private:
  // A strip that does not exist is the block's last.
  __device__ __forceinline__ void open_pass() {
    at_ = part_;
    cursor_.start(weight_, share_.first + min(strip_, share_.count - 1), share_.begin + part_,
                  lane_);
  }

  const Weights<kind>& weight_;
  const Share& share_;
  const Division& division_;
  const int lane_, part_;
  const uint32_t memory_;
  few::Cursor<Weights<kind>> cursor_;
  int strip_, at_ = 0, passes_ = division_.passes;
  uint32_t slot_ = 0;
};

// out ← four sums of a lane: rows 2 · (lane % 4) and the next of tile `tile` of a, outputs lane / 4
// and eight more of a strip.
__device__ __forceinline__ void write_sums(const Rows& shape, bool paired, int strip, int tile,
                                           int lane, const float (&sum)[4]) {
  const int column = strip * (paired ? 8 : 16) + lane / 4;
  const auto biased = [&](float value, int at) {
    return value + bias_of(shape.bias, shape.bias_type, at);
  };
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int row = tile * few::tile_rows + lane % 4 * 2 + j;
    if (row >= shape.m || column >= shape.n) continue;
    if (paired) {
      const float gate = biased(sum[j], column), up = biased(sum[j + 2], shape.n + column);
      few::write_out(shape, row, column, gate / (1.0f + __expf(-gate)) * up);
    } else {
      few::write_out(shape, row, column, biased(sum[j], column));
      if (column + 8 < shape.n) {
        few::write_out(shape, row, column + 8, biased(sum[j + 2], column + 8));
      }
    }
  }
}

// width: rows of a, 32 or 64.
template <PackedKind kind, int width>
__global__ void __launch_bounds__((most_warps<width> + 1) * 32, 1)
    some_rows_kernel(const __grid_constant__ Weights<kind> weight,
                     const __grid_constant__ Rows shape,
                     const __grid_constant__ Division division) {
#if __CUDA_ARCH__ >= 900
  constexpr int tiles = width / few::tile_rows;
  constexpr uint32_t buffer_bytes = width * row_bytes;
  extern __shared__ __align__(256) char memory[];  // rows of a, then the rings of the warps
  __shared__ uint64_t full[buffers<width>], empty[buffers<width>];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int warps = static_cast<int>(blockDim.x) / 32 - 1;
  const uint32_t rows = hopper::shared_address(memory);
  const Share share = share_of(weight, shape.split);
  if (thread == 0) {
    for (int i = 0; i < buffers<width>; ++i) {
      hopper::barrier_init(&full[i], 32);
      hopper::barrier_init(&empty[i], static_cast<uint32_t>(division.strips));
    }
    hopper::barrier_init_visible();
  }
  __syncthreads();
  let_next_start();

  const bool alone = division.parts == 1 && shape.split == 1;
  float sum[tiles][4] = {};
  if (warp == warps) {
    wait_for_previous();
    int piece = 0, buffer = 0;
    uint32_t phase = 0;
    for (int step = 0; step < division.passes * share.range; ++step) {
      if (step >= buffers<width>) hopper::barrier_wait<false>(&empty[buffer], phase ^ 1);
      const int column = (share.begin + piece) * chunk + lane % 16 * 8;
      const __nv_bfloat16* from = shape.a + (column < shape.k ? column : 0);
      const uint32_t bytes = column < shape.k ? 16 : 0;  // zeros beyond the last column
      const uint32_t to = rows + static_cast<uint32_t>(buffer) * buffer_bytes;
#pragma unroll 4
      for (int row = lane / 16; row < shape.m; row += 2) {
        asm volatile(
            "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + place(row, lane % 16)),
            "l"(from + row * shape.a_stride), "r"(bytes)
            : "memory");
      }
      hopper::arrive_when_copied(&full[buffer]);
      if (++buffer == buffers<width>) {
        buffer = 0;
        phase ^= 1;
      }
      if (++piece == share.range) piece = 0;
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
  } else {
    const int part = warp / division.strips;
    int strip = warp - part * division.strips;
    const uint32_t own = rows + buffers<width> * buffer_bytes +
                         static_cast<uint32_t>(warp) * ring<kind> * slot_bytes<kind>;
    Asking<kind> asking(weight, share, division, strip, part, own);
#pragma unroll 1
    for (uint32_t i = 0; i < ring<kind>; ++i) asking.next();
    uint32_t slot = own, phase = 0;
    int buffer = part;  // with at most as many parts as buffers
    const auto next_buffer = [&] {
      buffer += division.parts;
      if (buffer < buffers<width>) return;
      buffer -= buffers<width>;
      phase ^= 1;
    };
#pragma unroll 1
    for (int pass = 0; pass < division.passes; ++pass) {
#pragma unroll 1
      for (int step = part; step < share.range; step += division.parts) {
        asm volatile("cp.async.wait_group %0;" ::"n"(ring<kind> - 1) : "memory");
        __syncwarp();  // scales are copied by other lanes
        const uint32_t aside = slot + piece_bytes<kind>;
        const float2 scales = few::load_two(aside + static_cast<uint32_t>(lane / 4 * 8));
        uint32_t zeros = weight.zero;
        if (Weights<kind>::offset && weight.zeros != nullptr) {
          zeros = few::load_word(aside + scale_bytes + static_cast<uint32_t>(lane / 4 * 4));
        }
        hopper::barrier_wait<false>(&full[buffer], phase);
        // Of the lane's row in the first columns; to others it is a few flipped bits.
        const uint32_t a = rows + static_cast<uint32_t>(buffer) * buffer_bytes +
                           place(lane / 16 * 8 + lane % 8, lane / 8 % 2);
        // At most 32 rows at a time: the sums of more leave too few registers.
        constexpr int some = 4;
#pragma unroll
        for (int first = 0; first < tiles; first += some) {
          float part_sum[some][4] = {};
#pragma unroll
          for (int columns = 0; columns < chunk; columns += strip_piece) {
            constexpr int vectors = lane_vectors<kind>;
            uint32_t words[4 * vectors], right[piece_steps][some / 2][4];
#pragma unroll
            for (int v = 0; v < vectors; ++v) {
              few::load_vector(
                  words + v * 4,
                  slot + static_cast<uint32_t>(((columns / strip_piece * vectors + v) * 32 + lane) *
                                               16));
            }
#pragma unroll
            for (int i = 0; i < piece_steps; ++i) {
#pragma unroll
              for (int t = 0; t < some / 2; ++t) {
                load_four(right[i][t], (a ^ static_cast<uint32_t>((columns / 16 + i) * 32)) +
                                           static_cast<uint32_t>((first / 2 + t) * 16 * row_bytes));
              }
            }
#pragma unroll
            for (int i = 0; i < piece_steps; ++i) {
              uint32_t left[4];
              widen_codes<kind>(left, words + i * vectors, zeros);
#pragma unroll
              for (int t = 0; t < some / 2; ++t) {
                const auto& two = right[i][t];
                cuda::multiply(part_sum[2 * t], left, two[0], two[1]);
                cuda::multiply(part_sum[2 * t + 1], left, two[2], two[3]);
              }
            }
          }
#pragma unroll
          for (int t = 0; t < some; ++t) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              sum[first + t][j] =
                  fmaf(j < 2 ? scales.x : scales.y, part_sum[t][j], sum[first + t][j]);
            }
          }
        }
        __syncwarp();  // all have read what comes in next
        if (lane == 0) hopper::barrier_arrive(&empty[buffer]);
        next_buffer();
        slot += slot_bytes<kind>;
        if (slot == own + ring<kind> * slot_bytes<kind>) slot = own;
        asking.next();
      }
      if (!alone) break;
      if (pass == 0) wait_for_previous();  // who reads `out` may still run
#pragma unroll
      for (int t = 0; t < tiles; ++t) {
        if (strip < share.count) {
          write_sums(shape, weight.paired, share.first + strip, t, lane, sum[t]);
        }
        sum[t][0] = sum[t][1] = sum[t][2] = sum[t][3] = 0;
      }
      strip += division.strips;
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
  }
  if (alone) return;

  // [parts, strips, tiles, 32] of four sums, where rows and rings were.
  __syncthreads();
  auto* sums = reinterpret_cast<float4*>(memory);
  if (warp < warps) {
#pragma unroll
    for (int t = 0; t < tiles; ++t) {
      sums[(warp * tiles + t) * 32 + lane] =
          make_float4(sum[t][0], sum[t][1], sum[t][2], sum[t][3]);
    }
  }
  few::meet_cluster(shape.split);
  wait_for_previous();  // who reads `out` may still run
  const int rank = few::cluster_rank(shape.split);
  const int all = share.count * tiles, each = (all + shape.split - 1) / shape.split;
  const int until = min(all, (rank + 1) * each);
  for (int i = rank * each + warp; i < until; i += warps + 1) {
    float total[4] = {};
    for (int r = 0; r < shape.split; ++r) {
      const float4* from = few::of_block(sums, r, shape.split) + i * 32 + lane;
      for (int part = 0; part < division.parts; ++part) {
        const float4 some = from[part * division.strips * tiles * 32];
        total[0] += some.x;
        total[1] += some.y;
        total[2] += some.z;
        total[3] += some.w;
      }
    }
    write_sums(shape, weight.paired, share.first + i / tiles, i % tiles, lane, total);
  }
  few::leave_cluster(shape.split);  // not while others read its sums
#endif
}

}  // namespace kinora::cuda::some

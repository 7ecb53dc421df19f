#include "attention/cuda/decode/decode_cuda.h"

#include <algorithm>

#include "attention/cuda/decode/decode_few_cuda.cuh"
#include "attention/cuda/decode/decode_kernel_cuda.cuh"
#include "attention/cuda/decode/decode_many.h"
#include "attention/cuda/decode/decode_mass_cuda.cuh"
#include "attention/cuda/decode/decode_packed.h"
#include "attention/cuda/decode/decode_simple_cuda.cuh"
#include "base/cuda_support.h"

namespace kinora {
namespace {

using namespace cuda_attention;

constexpr int64_t most_head_size = 256;
constexpr int most_splits = 512;
constexpr int many_pairs_at_least = 64;  // from here on warpgroup products pay

void require(bool holds, const char* what) {
  if (!holds) throw Error(ErrorKind::internal, std::string("decode_attention: ") + what);
}

void check_shapes(const DecodeAttention& work) {
  const ConstTensorView& q = work.queries;
  require(q.rank() == 3 && (q.dtype() == DType::bf16 || q.dtype() == DType::f32),
          "queries must be [tokens, heads, d] bf16 or f32");
  require(q.size(0) >= 1 && q.size(0) <= most_decode_tokens, "1 to 64 tokens at a time");
  require(q.size(2) >= 1 && q.size(2) <= most_head_size, "head sizes go up to 256");
  require(work.kv_heads >= 1 && q.size(1) % work.kv_heads == 0, "heads must share kv heads evenly");
  require(
      work.row_type == DType::bf16 || work.row_type == DType::f32 || rows_are_packed(work.row_type),
      "rows must be bf16, f32 or of 8 bits");
  require(work.splits >= 1 && work.splits <= most_splits, "1 to 512 parts");
  require(work.sequence_count >= 1 && work.sequence_count <= most_decode_sequences,
          "1 to 64 sequences at a time");
  require(work.most_tokens_per_sequence >= 1 && work.most_tokens_per_sequence <= q.size(0),
          "a sequence has at least one token and no more than all");
}

void check_work(const DecodeAttention& work) {
  check_shapes(work);
  require(work.out.shape() == work.queries.shape() &&
              (work.out.dtype() == DType::bf16 || work.out.dtype() == DType::f32),
          "the output must have the queries' shape");
  require(work.sequences != nullptr && work.masks != nullptr && work.scratch != nullptr,
          "needs sequences, masks and scratch");
}

// Pairs of a kv head and sequence, at most.
int pairs_of(const DecodeAttention& work) {
  return work.most_tokens_per_sequence * static_cast<int>(work.queries.size(1) / work.kv_heads);
}

enum class Kernel { simple, few, rows, many, packed };

// Queries that the kernel for warpgroups can read.
bool fits_many(const Context& context, const DecodeAttention& work) {
  const ConstTensorView& q = work.queries;
  return q.size(2) == 128 && q.stride(0) % 8 == 0 && q.stride(1) % 8 == 0 &&
         reinterpret_cast<uintptr_t>(q.raw()) % 16 == 0 && hopper::runs_many_on(context);
}

// Which kernel takes the work; those for bf16 rows and rows of 8 bits need more shared memory than
// some cards have.
Kernel choose(const Context& context, const DecodeAttention& work) {
  const ConstTensorView& q = work.queries;
  const bool wide = q.size(2) == 128;
  if (work.row_type == DType::f32 || (!wide && q.size(2) != 64) || q.stride(0) % 2 != 0 ||
      q.stride(1) % 2 != 0) {
    return Kernel::simple;
  }
  if (rows_are_packed(work.row_type)) {
    return runs_packed_on(context, q.size(2)) ? Kernel::packed : Kernel::simple;
  }
  const int pairs = pairs_of(work);
  const size_t room = cuda::most_shared_memory(context);
  if (pairs <= few_pairs) {
    return (wide ? few_shared_bytes<128> : few_shared_bytes<64>) <= room ? Kernel::few
                                                                         : Kernel::simple;
  }
  // One part: so few rows that starting a warpgroup takes longer than reading them.
  if (pairs >= many_pairs_at_least && work.splits > 1 && fits_many(context, work)) {
    return Kernel::many;
  }
  return (wide ? decode_shared_bytes<128> : decode_shared_bytes<64>) <= room ? Kernel::rows
                                                                             : Kernel::simple;
}

// How a kernel that leaves joining to join_pairs cuts its pairs.
PairTiles cut_rows(int pairs, int splits, int tile_rows) {
  PairTiles tiles;
  tiles.rows = tile_rows;
  tiles.full = (pairs + tile_rows - 1) / tile_rows;
  tiles.parts = std::max(1, splits / tiles.full);  // tiles keep the device busy too
  return tiles;
}

// Slots of partial results that a pair may have.
int slots_of(Kernel kernel, const DecodeAttention& work) {
  if (kernel == Kernel::few) return work.splits + 1;  // of the longer heads of decode_few
  if (kernel != Kernel::many) return work.splits;
  const PairTiles tiles = hopper::cut_many(pairs_of(work), work.splits);
  return 2 * std::max(tiles.parts, tiles.last_parts);
}

// The parts of scratch memory of work that shares rows: for the sequences' own rows, for what they
// share, and for what is known of the own rows until both are joined.
struct SharedScratch {
  size_t shared = 0;  // bytes from the start
  size_t out = 0;     // [tokens, heads, d] f32
  size_t max = 0;     // [tokens, heads] f32
  size_t sum = 0;
  size_t bytes = 0;
};

size_t counter_bytes(int64_t heads) {
  return static_cast<size_t>(heads * std::max(most_decode_tokens, most_decode_sequences)) *
         sizeof(unsigned int);
}

template <int HeadSize>
void launch_join(cudaStream_t stream, const DecodeArguments& arguments, const PairTiles& tiles) {
  const auto pairs = arguments.tokens * (arguments.heads / arguments.kv_heads);
  // Few pairs of many parts: a warp alone would wait for its parts longer than for all else.
  constexpr int most_pairs_alone = 512, many_slots = 16;
  const int slots = std::max(tiles.parts, tiles.last_parts) * (tiles.halves ? 2 : 1);
  const bool alone = slots > many_slots && pairs * arguments.kv_heads <= most_pairs_alone;
  cuda::launch_early({dim3(cuda::blocks_for(pairs, alone ? 1 : join_warps_per_block),
                           static_cast<unsigned int>(arguments.kv_heads)),
                      join_warps_per_block * 32, 0, stream},
                     "joining decode attention",
                     alone ? join_pairs<HeadSize, join_warps_per_block> : join_pairs<HeadSize, 1>,
                     arguments, tiles);
}

template <int HeadSize, int RowWarps>
void launch_rows(cudaStream_t stream, const DecodeArguments& arguments, int pairs, int splits) {
  constexpr size_t bytes = decode_shared_bytes<HeadSize>;
  const PairTiles tiles = cut_rows(pairs, std::min(splits, decode_parts), 16 * RowWarps);
  cuda::check(
      cudaFuncSetAttribute(reinterpret_cast<const void*>(decode_rows<HeadSize, RowWarps>),
                           cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
      "preparing decode attention");
  cuda::launch_early(
      {dim3(static_cast<unsigned int>(tiles.parts), static_cast<unsigned int>(arguments.kv_heads),
            static_cast<unsigned int>(tiles.full)),
       decode_warps * 32, bytes, stream},
      "decode attention", decode_rows<HeadSize, RowWarps>, arguments);
  if (RowWarps == 1) return;  // it joins its parts itself
  if (tiles.parts > 1 || arguments.others.out != nullptr) {
    launch_join<HeadSize>(stream, arguments, tiles);
  }
}

// Every multiprocessor gets a block: those without one would take two of the next kernel, whose
// blocks are meant to have one each, and leave others without. That costs a third of its speed.
template <int HeadSize>
void launch_few(const Context& context, DecodeArguments arguments, int splits) {
  constexpr size_t bytes = few_shared_bytes<HeadSize>;
  arguments.parts = std::min(splits, few_parts - 1);
  const int blocks = arguments.parts * arguments.kv_heads;
  const int left = cuda::multiprocessors(context.device.index) - blocks;
  arguments.longer_heads = left > 0 && left < arguments.kv_heads ? left : 0;
  cuda::check(
      cudaFuncSetAttribute(reinterpret_cast<const void*>(decode_few<HeadSize>),
                           cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
      "preparing decode attention");
  cuda::launch_early({static_cast<unsigned int>(blocks + arguments.longer_heads), few_warps * 32,
                      bytes, cuda::enter(context)},
                     "decode attention", decode_few<HeadSize>, arguments);
}

template <int HeadSize>
void launch_tensor(const Context& context, const DecodeArguments& arguments, int pairs,
                   int splits) {
  const bool joins_others = arguments.others.out != nullptr;
  if (pairs <= few_pairs && !joins_others) return launch_few<HeadSize>(context, arguments, splits);
  const cudaStream_t stream = cuda::enter(context);
  // One part has nothing to join: more tiles let more multiprocessors work.
  if ((pairs <= 16 || splits == 1) && !joins_others)
    return launch_rows<HeadSize, 1>(stream, arguments, pairs, splits);
  if (pairs <= 32) return launch_rows<HeadSize, 2>(stream, arguments, pairs, splits);
  if (pairs <= 64) return launch_rows<HeadSize, 4>(stream, arguments, pairs, splits);
  launch_rows<HeadSize, 8>(stream, arguments, pairs, splits);
}

RowReader reader_of(const DecodeAttention& work) {
  return {work.row_type, static_cast<int32_t>(work.queries.size(2))};
}

void launch_simple(cudaStream_t stream, const DecodeArguments& arguments,
                   const DecodeAttention& work) {
  cuda::launch_early(
      {dim3(static_cast<unsigned int>(work.splits), static_cast<unsigned int>(arguments.heads),
            static_cast<unsigned int>(arguments.tokens)),
       decode_warps * 32, join_shared_bytes(1, work.splits), stream},
      "decode attention", decode_simple<>, arguments, reader_of(work));
}

void launch_mass(const Context& context, cudaStream_t stream, const DecodeArguments& arguments,
                 const MassLayers& layers, int count, const DecodeAttention& work, bool tensor) {
  const auto blocks =
      static_cast<unsigned int>(cuda::multiprocessors(context.device.index) * mass_blocks);
  const cuda::Launch how{dim3(blocks, static_cast<unsigned int>(count)), mass_warps * 32, 0,
                         stream};
  if (!tensor) {
    return cuda::launch_early(how, "attention mass", decode_mass_simple<>, arguments, layers,
                              reader_of(work));
  }
  const auto start = [&]<typename Row>(Row) {
    cuda::launch_early(how, "attention mass",
                       work.queries.size(2) == 128 ? decode_mass<128, Row> : decode_mass<64, Row>,
                       arguments, layers);
  };
  if (rows_are_packed(work.row_type)) return cuda::with_codes(work.row_type, start);
  start(__nv_bfloat16());
}

DecodeArguments arguments_of(const DecodeAttention& work, int slots) {
  const ConstTensorView& q = work.queries;
  const int64_t pairs = q.size(0) * q.size(1);
  DecodeArguments arguments;
  arguments.queries = q.raw();
  arguments.query_stride = q.stride(0);
  arguments.query_head_stride = q.stride(1);
  if (work.unturned.qkv.raw() != nullptr) {
    arguments.unturned = work.unturned.qkv.raw();
    arguments.unturned_stride = work.unturned.qkv.stride(0);
    arguments.cos = cuda::device_data<float>(work.unturned.cos);
    arguments.sin = cuda::device_data<float>(work.unturned.sin);
    arguments.keep_queries = work.unturned.keep_queries;
    const HeadNorms& norms = work.unturned.norms;
    if (norms.query.raw() != nullptr) {
      arguments.query_norm = cuda::device_data<float>(norms.query);
      arguments.key_norm = cuda::device_data<float>(norms.key);
      arguments.norm_epsilon = norms.epsilon;
    }
  }
  arguments.sequences = work.sequences;
  arguments.masks = work.masks;
  arguments.out = work.out.raw();
  arguments.out_stride = work.out.stride(0);
  arguments.out_head_stride = work.out.stride(1);
  arguments.state_max = work.state_max;
  arguments.state_sum = work.state_sum;
  arguments.arrived = static_cast<unsigned int*>(work.scratch);
  arguments.part_out =
      reinterpret_cast<float*>(static_cast<std::byte*>(work.scratch) + counter_bytes(q.size(1)));
  arguments.part_max = arguments.part_out + int64_t{slots} * pairs * q.size(2);
  arguments.part_sum = arguments.part_max + int64_t{slots} * pairs;
  arguments.factor = work.scale * log2_e;
  arguments.sequence_count = work.sequence_count;
  arguments.tokens = static_cast<int32_t>(q.size(0));
  arguments.heads = static_cast<int32_t>(q.size(1));
  arguments.kv_heads = work.kv_heads;
  arguments.queries_f32 = q.dtype() == DType::f32;
  arguments.out_f32 = work.out.dtype() == DType::f32;
  return arguments;
}

void launch(const Context& context, const DecodeAttention& work, const DecodeArguments& arguments,
            Kernel kernel) {
  const cudaStream_t stream = cuda::enter(context);
  const int pairs = pairs_of(work);
  if (kernel == Kernel::simple) {
    launch_simple(stream, arguments, work);
  } else if (kernel == Kernel::packed) {
    const PairTiles tiles = cut_packed(pairs, work.splits);
    const bool joined =
        launch_packed(context, arguments, tiles, work.queries.size(2), work.row_type);
    if (joined) return;
    work.queries.size(2) == 128 ? launch_join<128>(stream, arguments, tiles)
                                : launch_join<64>(stream, arguments, tiles);
  } else if (kernel == Kernel::many) {
    const PairTiles tiles = hopper::cut_many(pairs, work.splits);
    hopper::launch_many(context, arguments, tiles);
    launch_join<128>(stream, arguments, tiles);
  } else if (work.queries.size(2) == 128) {
    launch_tensor<128>(context, arguments, pairs, work.splits);
  } else {
    launch_tensor<64>(context, arguments, pairs, work.splits);
  }
}

// The work as it is without what is shared, and what is shared as work of its own.
DecodeAttention without_shared(const DecodeAttention& work) {
  DecodeAttention rest = work;
  rest.shared = {};
  return rest;
}
DecodeAttention of_shared(const DecodeAttention& work) {
  DecodeAttention shared = without_shared(work);
  shared.sequences = work.shared.groups;
  shared.sequence_count = work.shared.count;
  shared.most_tokens_per_sequence = work.shared.most_tokens_per_group;
  shared.unturned = {};
  return shared;
}

// However few pairs a group has, its rows are many: the kernel for warpgroups reads fastest.
Kernel choose_shared(const Context& context, const DecodeAttention& shared) {
  return fits_many(context, shared) ? Kernel::many : choose(context, shared);
}

size_t scratch_bytes(const DecodeAttention& work, Kernel kernel) {
  const ConstTensorView& q = work.queries;
  const int64_t floats = slots_of(kernel, work) * q.size(0) * q.size(1) * (q.size(2) + 2);
  return counter_bytes(q.size(1)) + static_cast<size_t>(floats) * sizeof(float);
}

SharedScratch shared_scratch(const Context& context, const DecodeAttention& work) {
  const auto aligned = [](size_t bytes) { return (bytes + 255) / 256 * 256; };
  const auto pairs = static_cast<size_t>(work.queries.size(0) * work.queries.size(1));
  SharedScratch at;
  const DecodeAttention own = without_shared(work), shared = of_shared(work);
  at.shared = aligned(scratch_bytes(own, choose(context, own)));
  at.out = at.shared + aligned(scratch_bytes(shared, choose_shared(context, shared)));
  at.max = at.out + aligned(pairs * static_cast<size_t>(work.queries.size(2)) * sizeof(float));
  at.sum = at.max + aligned(pairs * sizeof(float));
  at.bytes = at.sum + pairs * sizeof(float);
  return at;
}

// The sequences' own rows first, whose kernel also turns the queries; then what they share, joined
// with the former.
void attend_shared(const Context& context, const DecodeAttention& work) {
  require(decode_shares(context, work), "cannot share the rows of such work");
  const SharedScratch at = shared_scratch(context, work);
  auto* scratch = static_cast<std::byte*>(work.scratch);
  const auto floats = [&](size_t offset) { return reinterpret_cast<float*>(scratch + offset); };
  DecodeAttention own = without_shared(work);
  own.out = TensorView(scratch + at.out, DType::f32, work.queries.shape(), work.out.device());
  own.state_max = floats(at.max);
  own.state_sum = floats(at.sum);
  own.unturned.keep_queries = own.unturned.qkv.raw() != nullptr;
  decode_attention(context, own);

  DecodeAttention shared = of_shared(work);
  shared.scratch = scratch + at.shared;
  check_shapes(shared);
  const Kernel kernel = choose_shared(context, shared);
  DecodeArguments arguments = arguments_of(shared, slots_of(kernel, shared));
  arguments.others = {floats(at.out), floats(at.max), floats(at.sum), work.sequences,
                      work.sequence_count};
  launch(context, shared, arguments, kernel);
}

}  // namespace

bool decode_turns(const Context& context, const DecodeAttention& work) {
  return choose(context, without_shared(work)) == Kernel::few;
}

bool decode_shares(const Context& context, const DecodeAttention& work) {
  const size_t bytes =
      work.queries.size(2) == 128 ? decode_shared_bytes<128> : decode_shared_bytes<64>;
  return work.row_type == DType::bf16 && choose(context, without_shared(work)) != Kernel::simple &&
         bytes <= cuda::most_shared_memory(context);
}

int decode_splits(const Context& context, int kv_heads, int64_t most_rows) {
  const int64_t processors = cuda::multiprocessors(context.device.index);
  const int64_t shares = std::max<int64_t>(1, (most_rows + decode_share - 1) / decode_share);
  return static_cast<int>(
      std::clamp<int64_t>(processors / kv_heads, 1, std::min<int64_t>(shares, most_splits)));
}

size_t decode_scratch_bytes(const Context& context, const DecodeAttention& work) {
  check_shapes(work);
  if (work.shared.count > 0) return shared_scratch(context, work).bytes;
  return scratch_bytes(work, choose(context, work));
}

void decode_attention(const Context& context, const DecodeAttention& work) {
  check_work(work);
  if (work.shared.count > 0) return attend_shared(context, work);
  const Kernel kernel = choose(context, work);
  require(work.unturned.qkv.raw() == nullptr ||
              (kernel == Kernel::few && work.unturned.qkv.dtype() == work.queries.dtype()),
          "cannot turn the rows of such work");
  const HeadNorms& norms = work.unturned.norms;
  require((norms.query.raw() == nullptr) == (norms.key.raw() == nullptr),
          "queries and keys are both normed or neither is");
  launch(context, work, arguments_of(work, slots_of(kernel, work)), kernel);
}

void add_decode_mass(const Context& context, std::span<const DecodeAttention> layers) {
  if (layers.empty()) return;
  const DecodeAttention& first = layers[0];
  const bool tensor = choose(context, first) != Kernel::simple;
  const DecodeArguments arguments = arguments_of(first, slots_of(choose(context, first), first));
  const cudaStream_t stream = cuda::enter(context);
  MassLayers some;
  int count = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    const DecodeAttention& work = layers[i];
    check_work(work);
    require(work.state_max != nullptr && work.state_sum != nullptr,
            "the mass of rows needs the softmax state");
    require(work.queries.shape() == first.queries.shape() &&
                work.queries.stride(0) == first.queries.stride(0) &&
                work.queries.stride(1) == first.queries.stride(1) &&
                work.sequence_count == first.sequence_count && work.masks == first.masks,
            "layers must have one shape");
    some.of[count++] = {work.queries.raw(), work.sequences, work.state_max, work.state_sum};
    if (count < most_mass_layers && i + 1 < layers.size()) continue;
    launch_mass(context, stream, arguments, some, count, first, tensor);
    count = 0;
  }
}

}  // namespace kinora

#include "attention/cuda/mass_cuda.h"

#include <algorithm>
#include <cstring>

#include "attention/cuda/decode/decode_cuda.h"
#include "attention/cuda/device_rows.h"
#include "base/error.h"

namespace kinora::cuda_attention {
namespace {

// Queries [first, first + tokens) as the new tokens of a sequence: later rows do not exist yet.
struct Piece {
  std::vector<RowSet> sets;
  std::vector<std::vector<int32_t>> serves;

  Piece(const QueryView& queries, std::span<const RowSet> all, int64_t first, int64_t tokens)
      : sets(all.begin(), all.end()), serves(all.size()) {
    for (size_t i = 0; i < sets.size(); ++i) {
      if (sets[i].serves.empty()) continue;
      for (const int32_t query : sets[i].serves) {
        if (query < first || query >= first + tokens) continue;
        serves[i].push_back(static_cast<int32_t>(query - first));
      }
      sets[i].serves = serves[i];
    }
    const int64_t later = queries.count() - first - tokens;
    RowSet& own = sets.back();
    const auto group = queries.ordinals;
    if (own.listed() || own.count() < queries.count() ||
        !std::equal(group.begin(), group.end(), own.ordinals.end() - std::ssize(group))) {
      throw Error(ErrorKind::internal, "the newest rows are the last of the last row set");
    }
    own.keys = own.keys.rows(0, own.keys.size(0) - later);
    own.values = own.values.rows(0, own.values.size(0) - later);
    own.ordinals = own.ordinals.first(own.ordinals.size() - static_cast<size_t>(later));
  }
};

}  // namespace

void add_mass(const Context& context, int layer, const QueryView& queries,
              std::span<const RowSet> sets, float scale, int64_t counted, RowMass& mass) {
  const ConstTensorView& q = queries.queries;
  if (!queries.parents.empty() && (counted > most_decode_tokens || counted < queries.count())) {
    throw Error(ErrorKind::internal, "the mass of a token tree is wanted whole, of 64 tokens");
  }
  const auto kv_heads = static_cast<int>(sets[0].keys.size(1));
  int64_t rows = 0;
  for (const RowSet& set : sets) rows += set.count();
  Tensor state(DType::f32, {2, most_decode_tokens, q.size(1)}, context.device);
  auto* room = state.data<float>();
  for (int64_t first = queries.count() - counted; first < queries.count();
       first += most_decode_tokens) {
    const int64_t tokens = std::min<int64_t>(most_decode_tokens, queries.count() - first);
    const Piece piece(queries, sets, first, tokens);
    DeviceSequence sequence = device_sequence(piece.sets, 0, static_cast<int32_t>(tokens));
    for (size_t i = 0; i < sets.size(); ++i) {  // one that serves none of them serves nobody
      if (!sets[i].serves.empty() && piece.serves[i].empty()) sequence.sets[i].serves = 0;
    }
    ask_mass(context, layer, piece.sets, mass, sequence);
    const std::vector<uint64_t> masks = token_masks(tokens, queries.parents);
    std::vector<std::byte> table(sizeof(sequence) + masks.size() * sizeof(uint64_t));
    std::memcpy(table.data(), &sequence, sizeof(sequence));
    std::memcpy(table.data() + sizeof(sequence), masks.data(), masks.size() * sizeof(uint64_t));
    Tensor there(DType::u8, {std::ssize(table)}, context.device);
    copy_bytes(there.view().raw(), context.device, table.data(), Device::cpu(), table.size());

    Tensor out(q.dtype(), {tokens, q.size(1), q.size(2)}, context.device);
    DecodeAttention work;
    work.queries = q.rows(first, tokens);
    work.sequences = reinterpret_cast<const DeviceSequence*>(there.view().raw());
    work.most_tokens_per_sequence = static_cast<int>(tokens);
    work.row_type = sets[0].keys.dtype();
    work.kv_heads = kv_heads;
    work.splits = decode_splits(context, kv_heads, rows);
    work.scale = scale;
    work.out = out;
    work.masks = reinterpret_cast<const uint64_t*>(there.view().raw() + sizeof(sequence));
    work.state_max = room;
    work.state_sum = room + most_decode_tokens * q.size(1);
    Tensor scratch = Tensor::zeros(
        DType::u8, {static_cast<int64_t>(decode_scratch_bytes(context, work))}, context.device);
    work.scratch = scratch.view().raw();
    decode_attention(context, work);
    add_decode_mass(context, {&work, 1});
    synchronize(context);  // the tensors go
  }
}

}  // namespace kinora::cuda_attention

#include "memory/row_store.h"

#include <limits>
#include <numeric>
#include <string>

#include "base/error.h"
#include "memory/move_rows.h"

namespace kinora {

namespace {

// Rows that one layer may come to hold on a GPU; addresses cost nothing until they are used.
constexpr int64_t most_gpu_rows = int64_t{1} << 24;

}  // namespace

RowStore::RowStore(const RowLayout& layout, Device device)
    : layout_(layout),
      device_(device),
      row_bytes_(dtype_size(layout.dtype) * int64_t{layout.kv_heads} * layout.head_size) {
  if (layout.layers <= 0 || layout.kv_heads <= 0 || layout.head_size <= 0) {
    throw Error(ErrorKind::internal, "a row store needs layers, heads and a head size");
  }
  if (layout.dtype != DType::f32 && layout.dtype != DType::bf16) {
    throw Error(ErrorKind::unsupported, "keys and values are kept as f32 or bf16, not as " +
                                            std::string(dtype_name(layout.dtype)));
  }
  const auto limit = static_cast<size_t>(most_gpu_rows * row_bytes_);
  layers_.resize(static_cast<size_t>(layout.layers));
  for (Layer& layer : layers_) {
    layer.keys = Growable(device, limit);
    layer.values = Growable(device, limit);
  }
}

RowStore::Layer& RowStore::layer_at(int layer) const {
  Layer& found = layers_.at(static_cast<size_t>(layer));
  settle(found);
  return found;
}

void RowStore::settle(Layer& layer) const {
  if (layer.arriving == nullptr || layer.arriving->count == 0) return;
  Arriving& arriving = *layer.arriving;
  arriving.copied.wait();
  const auto* indexes = reinterpret_cast<const int32_t*>(arriving.indexes.data());
  for (size_t i = 0; i < arriving.count; ++i) {
    const int32_t ordinal = arriving.group_begin + indexes[i];
    layer.ordinals[arriving.first + i] = ordinal;
    layer.modalities[arriving.first + i] = tokens_[static_cast<size_t>(ordinal)].modality;
  }
  arriving.count = 0;
}

int32_t RowStore::begin_group(std::span<const TokenInfo> tokens) {
  if (tokens.empty()) throw Error(ErrorKind::internal, "a group holds at least one token");
  if (tokens_.size() + tokens.size() > size_t{std::numeric_limits<int32_t>::max()}) {
    throw Error(ErrorKind::resource, "a session holds at most 2^31 - 1 tokens");
  }
  group_begin_ = token_count();
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  group_ordinals_.resize(tokens.size());
  std::iota(group_ordinals_.begin(), group_ordinals_.end(), static_cast<int32_t>(group_begin_));
  group_modalities_.resize(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) group_modalities_[i] = tokens[i].modality;
  return static_cast<int32_t>(group_begin_);
}

RowStore::NewRows RowStore::append(int layer) {
  Layer& target = layer_at(layer);
  const auto count = static_cast<int64_t>(group_ordinals_.size());
  if (count == 0 || (!target.ordinals.empty() && target.ordinals.back() >= group_begin_)) {
    throw Error(ErrorKind::internal, "a layer appends every group once");
  }
  const auto before = static_cast<int64_t>(target.ordinals.size());
  const auto bytes = static_cast<size_t>((before + count) * row_bytes_);
  target.keys.resize(bytes);
  target.values.resize(bytes);
  target.ordinals.insert(target.ordinals.end(), group_ordinals_.begin(), group_ordinals_.end());
  target.modalities.insert(target.modalities.end(), group_modalities_.begin(),
                           group_modalities_.end());
  const Shape shape{count, layout_.kv_heads, layout_.head_size};
  return {TensorView(target.keys.data() + before * row_bytes_, layout_.dtype, shape, device_),
          TensorView(target.values.data() + before * row_bytes_, layout_.dtype, shape, device_)};
}

RowsView RowStore::rows(int layer) const {
  const Layer& source = layer_at(layer);
  const Shape shape{static_cast<int64_t>(source.ordinals.size()), layout_.kv_heads,
                    layout_.head_size};
  return {ConstTensorView(source.keys.data(), layout_.dtype, shape, device_),
          ConstTensorView(source.values.data(), layout_.dtype, shape, device_), source.ordinals,
          source.modalities};
}

int64_t RowStore::row_count(int layer) const {
  return static_cast<int64_t>(layers_.at(static_cast<size_t>(layer)).ordinals.size());
}

size_t RowStore::first_of_group(const Layer& layer) const {
  const size_t group = group_ordinals_.size();
  const size_t total = layer.ordinals.size();
  if (total < group || group == 0 || layer.ordinals[total - group] != group_begin_) {
    throw Error(ErrorKind::internal, "only the newest group, whole, can be pruned");
  }
  return total - group;
}

void RowStore::retain(int layer, std::span<const int32_t> kept) {
  Layer& target = layer_at(layer);
  const size_t group = group_ordinals_.size();
  const size_t first = first_of_group(target);
  size_t next = first;
  int32_t previous = -1;
  for (const int32_t index : kept) {
    if (index <= previous || static_cast<size_t>(index) >= group) {
      throw Error(ErrorKind::internal, "rows to keep must be increasing and inside the group");
    }
    previous = index;
    const size_t from = first + static_cast<size_t>(index);
    target.ordinals[next] = target.ordinals[from];
    target.modalities[next] = target.modalities[from];
    ++next;
  }
  const size_t offset = first * static_cast<size_t>(row_bytes_);
  move_rows_up(device_, target.keys.data() + offset, row_bytes_, kept);
  move_rows_up(device_, target.values.data() + offset, row_bytes_, kept);
  target.ordinals.resize(next);
  target.modalities.resize(next);
  target.keys.resize(next * static_cast<size_t>(row_bytes_));
  target.values.resize(next * static_cast<size_t>(row_bytes_));
}

void RowStore::retain_there(const Context& context, int layer, const Tensor& kept) {
  Layer& target = layer_at(layer);
  const size_t first = first_of_group(target);
  const auto count = static_cast<size_t>(kept.elements());
  if (kept.dtype() != DType::i32 || kept.device() != device_ || count > group_ordinals_.size()) {
    throw Error(ErrorKind::internal, "indexes of rows to keep lie where the rows are");
  }
  const size_t offset = first * static_cast<size_t>(row_bytes_);
  cuda::move_rows_up(context, target.keys.data() + offset, row_bytes_, kept);
  cuda::move_rows_up(context, target.values.data() + offset, row_bytes_, kept);
  if (target.arriving == nullptr) target.arriving = std::make_unique<Arriving>(device_);
  Arriving& arriving = *target.arriving;
  if (arriving.indexes.size() < count * sizeof(int32_t)) {
    arriving.indexes = PinnedBuffer(group_ordinals_.size() * sizeof(int32_t));
  }
  copy_async(context, arriving.indexes.data(), kept.view().raw(), count * sizeof(int32_t));
  arriving.copied.record(context);
  arriving.first = first;
  arriving.count = count;
  arriving.group_begin = static_cast<int32_t>(group_begin_);
  const size_t rows = first + count;
  target.ordinals.resize(rows);
  target.modalities.resize(rows);
  target.keys.truncate(rows * static_cast<size_t>(row_bytes_));
  target.values.truncate(rows * static_cast<size_t>(row_bytes_));
}

std::span<const int32_t> RowStore::group_ordinals() const { return group_ordinals_; }
std::span<const Modality> RowStore::group_modalities() const { return group_modalities_; }

RowStore::Mark RowStore::mark() const {
  Mark mark{token_count(), {}};
  for (const Layer& layer : layers_)
    mark.rows.push_back(static_cast<int64_t>(layer.ordinals.size()));
  return mark;
}

void RowStore::rewind(const Mark& mark) {
  if (mark.rows.size() != layers_.size() || mark.tokens > token_count()) {
    throw Error(ErrorKind::internal, "a mark of another session, or of a moment already undone");
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    settle(layers_[i]);
    const auto rows = static_cast<size_t>(mark.rows[i]);
    // A layer may lack rows of a group that was interrupted, never rows from before the mark.
    if (rows > layers_[i].ordinals.size()) {
      throw Error(ErrorKind::internal, "a mark of a moment already undone");
    }
    layers_[i].ordinals.resize(rows);
    layers_[i].modalities.resize(rows);
    layers_[i].keys.resize(rows * static_cast<size_t>(row_bytes_));
    layers_[i].values.resize(rows * static_cast<size_t>(row_bytes_));
  }
  tokens_.resize(static_cast<size_t>(mark.tokens));
  group_ordinals_.clear();
  group_modalities_.clear();
  group_begin_ = mark.tokens;
}

int64_t RowStore::bytes() const {
  int64_t total = 0;
  for (const Layer& layer : layers_) {
    total += static_cast<int64_t>(layer.keys.size() + layer.values.size());
  }
  return total;
}

}  // namespace kinora

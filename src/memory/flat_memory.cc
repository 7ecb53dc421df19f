#include "memory/flat_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "base/error.h"
#include "memory/policies.h"
#include "memory/row_ops/move_rows.h"

namespace kinora {
namespace {

// Rows that one block may come to hold on a GPU; addresses cost nothing until they are used.
constexpr int64_t most_gpu_rows = int64_t{1} << 24;

// Shared blocks that a layer may have: with its own that is as much as the decode graph reads.
constexpr size_t most_frozen = most_row_sets - 1;

}  // namespace

FlatMemory::FlatMemory(const RowLayout& layout, Device device, const Retention& retention,
                       RowTiers tiers)
    : layout_(layout),
      device_(device),
      retention_(retention),
      row_bytes_(layout.row_bytes()),
      tiers_(tiers) {
  if (layout.layers <= 0 || layout.kv_heads <= 0 || layout.head_size <= 0) {
    throw Error(ErrorKind::internal, "a memory needs layers, heads and a head size");
  }
  const bool everywhere =
      layout.dtype == DType::f32 || layout.dtype == DType::bf16 || rows_are_packed(layout.dtype);
  if (!everywhere && !(device.is_cpu() && layout.dtype == DType::f16)) {
    throw Error(
        ErrorKind::unsupported,
        fmt::format("keys and values are kept as f32, bf16, int8 or fp8{}, not as {}",
                    device.is_cpu() ? ", or as f16" : " on a GPU", row_type_name(layout.dtype)));
  }
  layers_.resize(static_cast<size_t>(layout.layers));
  for (int layer = 0; layer < layout.layers; ++layer) {
    if (!keeps_state(layer)) continue;
    layers_[static_cast<size_t>(layer)].state = std::make_shared<Tensor>(
        Tensor::zeros(DType::u8, Shape{layout.bytes_of_state(layer)}, device));
  }
}

MemoryPolicy flat_policy() {
  MemoryPolicy policy;
  policy.info = {"flat", "all rows that retention left, in the order of their tokens"};
  policy.make = [](std::span<const GivenSetting> given, const MemoryOptions& options) {
    match_settings(given, {});
    return std::make_unique<FlatMemory>(options.layout, options.device, options.retention);
  };
  return policy;
}

std::shared_ptr<FlatMemory::Block> FlatMemory::new_block(int64_t likely_rows) const {
  const auto limit = static_cast<size_t>(most_gpu_rows * row_bytes_);
  const auto likely = static_cast<size_t>(likely_rows * row_bytes_);
  auto block = std::make_shared<Block>();
  block->keys = Growable(device_, limit, likely);
  block->values = Growable(device_, limit, likely);
  return block;
}

FlatMemory::Block& FlatMemory::own_block(Layer& layer) {
  if (layer.parts.empty() || layer.parts.back().frozen) {
    layer.parts.push_back({new_block(), 0, false});
  }
  return *layer.parts.back().block;
}

FlatMemory::Layer& FlatMemory::layer_at(int layer) const {
  Layer& found = layers_.at(static_cast<size_t>(layer));
  settle(found);
  return found;
}

void FlatMemory::settle(Layer& layer) const {
  if (layer.arriving == nullptr || layer.arriving->count == 0) return;
  Arriving& arriving = *layer.arriving;
  arriving.copied.wait();
  Block& block = *layer.parts.back().block;
  const auto* places = reinterpret_cast<const int32_t*>(arriving.places.data());
  for (size_t i = 0; i < arriving.count; ++i) {
    const int32_t ordinal = arriving.group_begin + places[i];
    const TokenInfo& token = tokens_[static_cast<size_t>(ordinal)];
    block.ordinals[arriving.first + i] = ordinal;
    block.modalities[arriving.first + i] = token.modality;
    block.times[arriving.first + i] = static_cast<float>(token.time);
  }
  arriving.count = 0;
}

// Probes leave no rows; their tokens go when all layers are through with them.
void FlatMemory::forget_probes() {
  if (probes_ == 0) return;
  for (Layer& layer : layers_) settle(layer);
  tokens_.truncate(tokens_.size() - static_cast<size_t>(probes_));
  probes_ = 0;
}

std::span<const Position> FlatMemory::begin(const Context& context, const MemoryGroup& group) {
  const size_t count = group.tokens.size();
  if (count == 0) throw Error(ErrorKind::internal, "a group holds at least one token");
  if (group.probes < 0 || static_cast<size_t>(group.probes) >= count ||
      (!group.parents.empty() && group.parents.size() != count)) {
    throw Error(ErrorKind::internal, "a group's probes and parents are among its tokens");
  }
  for (size_t i = 0; i < group.parents.size(); ++i) {
    if (group.parents[i] < -1 || group.parents[i] >= static_cast<int32_t>(i)) {
      throw Error(ErrorKind::internal, "a parent comes before its children");
    }
  }
  forget_probes();
  if (tiers_.host > 0 || (tiers_.gpu > 0 && !device_.is_cpu())) {
    const bool frames =
        std::any_of(group.tokens.begin(), group.tokens.end(),
                    [](const auto& token) { return token.modality != Modality::text; });
    const auto put_some_away = [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) put_away(layers_[static_cast<size_t>(i)], frames);
    };
    // All layers have one file, and many threads are quick at making pinned memory.
    const bool alone = device_.is_cpu() || tiers_.host > 0;
    alone ? put_some_away(0, layout_.layers)
          : context.threads->parallel_for(layout_.layers, 1, put_some_away);
    if (!alone) make_room_ahead();
  }
  if (tokens_.size() + count > size_t{std::numeric_limits<int32_t>::max()}) {
    throw Error(ErrorKind::resource, "a session holds at most 2^31 - 1 tokens");
  }
  group_begin_ = token_count();
  probes_ = group.probes;
  tokens_.append(group.tokens);
  parents_.assign(group.parents.begin(), group.parents.end());
  group_ordinals_.resize(count);
  std::iota(group_ordinals_.begin(), group_ordinals_.end(), static_cast<int32_t>(group_begin_));
  group_modalities_.resize(count);
  positions_.resize(count);
  visual_ = false;
  for (size_t i = 0; i < count; ++i) {
    group_modalities_[i] = group.tokens[i].modality;
    positions_[i] = group.tokens[i].position;
    visual_ |= group.tokens[i].modality != Modality::text;
  }
  for (Layer& layer : layers_) layer.nodes.clear();
  return positions_;
}

bool FlatMemory::prunes_group() const { return probes_ > 0 || (visual_ && retention_.prunes()); }

NewRows FlatMemory::append(int layer) {
  Layer& target = layer_at(layer);
  if (keeps_state(layer)) throw Error(ErrorKind::internal, "a layer with a state has no rows");
  const auto count = static_cast<int64_t>(group_ordinals_.size());
  const bool there = std::any_of(target.parts.begin(), target.parts.end(), [&](const Part& part) {
    return part.rows > 0 &&
           part.block->ordinals[static_cast<size_t>(part.rows) - 1] >= group_begin_;
  });
  if (count == 0 || there) {
    throw Error(ErrorKind::internal, "a layer appends every group once");
  }
  Block& block = own_block(target);
  Part& part = target.parts.back();
  const int64_t before = part.rows;
  const auto bytes = static_cast<size_t>((before + count) * row_bytes_);
  block.keys.resize(bytes);
  block.values.resize(bytes);
  block.ordinals.insert(block.ordinals.end(), group_ordinals_.begin(), group_ordinals_.end());
  block.modalities.insert(block.modalities.end(), group_modalities_.begin(),
                          group_modalities_.end());
  for (const int32_t ordinal : group_ordinals_) {
    block.times.push_back(static_cast<float>(tokens_[static_cast<size_t>(ordinal)].time));
  }
  part.rows += count;
  const Shape shape = layout_.shape(count);
  return {TensorView(block.keys.data() + before * row_bytes_, layout_.dtype, shape, device_),
          TensorView(block.values.data() + before * row_bytes_, layout_.dtype, shape, device_)};
}

QueryView FlatMemory::queries() const {
  return {ConstTensorView(), group_ordinals_, group_modalities_, parents_};
}

void FlatMemory::read(const Context&, int layer, const QueryView&, std::vector<RowSet>& out) {
  for (const Part& part : layer_at(layer).parts) {
    if (part.rows == 0) continue;
    const Block& block = *part.block;
    const auto rows = static_cast<size_t>(part.rows);
    const Shape shape = layout_.shape(part.rows);
    out.push_back({ConstTensorView(block.key_bytes(), layout_.dtype, shape, block.device()),
                   ConstTensorView(block.value_bytes(), layout_.dtype, shape, block.device()),
                   std::span(block.ordinals).first(rows),
                   std::span(block.modalities).first(rows),
                   std::span(block.times).first(rows),
                   ConstTensorView(),
                   {}});
  }
}

void FlatMemory::after(const Context& context, int layer, const QueryView& queries) {
  if (prunes_group() && !keeps_state(layer)) prune(context, layer, queries);
}

void FlatMemory::prune(const Context& context, int layer, const QueryView& queries) {
  Block& block = own_block(layer_at(layer));
  const int64_t first = first_of_group(block);
  const int64_t count = static_cast<int64_t>(group_modalities_.size()) - probes_;
  const Shape shape = layout_.shape(count);
  const ConstTensorView keys(block.keys.data() + first * row_bytes_, layout_.dtype, shape, device_);
  const ConstTensorView values(block.values.data() + first * row_bytes_, layout_.dtype, shape,
                               device_);
  ConstTensorView question;
  if (probes_ > 0 && retention_.needs_question()) question = queries.queries.rows(count, probes_);
  const auto modalities = std::span(group_modalities_).first(static_cast<size_t>(count));
  const KeptRows kept = keep_best(context, retention_, keys, values, modalities, question);
  if (kept.there.defined()) return retain_there(context, layer, kept.there);
  if (kept.places.size() < group_modalities_.size()) retain(layer, kept.places);
}

// Whatever the layer pruned of it, the newest group's rows are the last of the own block.
int64_t FlatMemory::first_of_group(const Block& block) const {
  const size_t group = group_ordinals_.size(), total = block.ordinals.size();
  if (total < group || group == 0 || block.ordinals[total - group] != group_begin_) {
    throw Error(ErrorKind::internal, "only the newest group, whole, can be pruned");
  }
  return static_cast<int64_t>(total - group);
}

void FlatMemory::resize(Part& part, int64_t rows) {
  Block& block = *part.block;
  const auto count = static_cast<size_t>(rows);
  block.ordinals.resize(count);
  block.modalities.resize(count);
  block.times.resize(count);
  block.keys.resize(count * static_cast<size_t>(row_bytes_));
  block.values.resize(count * static_cast<size_t>(row_bytes_));
  part.rows = rows;
}

// Keeps what is known of the rows that stay; the rows themselves have not moved yet. Gives back
// where the group's first row is.
int64_t FlatMemory::keep_known(Layer& layer, std::span<const int32_t> kept) {
  Block& block = own_block(layer);
  const size_t group = group_ordinals_.size();
  const int64_t first = first_of_group(block);
  auto next = static_cast<size_t>(first);
  int32_t previous = -1;
  for (const int32_t place : kept) {
    if (place <= previous || static_cast<size_t>(place) >= group) {
      throw Error(ErrorKind::internal, "rows to keep must be increasing and inside the group");
    }
    previous = place;
    const size_t from = static_cast<size_t>(first) + static_cast<size_t>(place);
    block.ordinals[next] = block.ordinals[from];
    block.modalities[next] = block.modalities[from];
    block.times[next] = block.times[from];
    ++next;
  }
  return first;
}

namespace {

// Rows that stay at the front of the group are where they belong.
bool must_move(std::span<const int32_t> kept) {
  return !kept.empty() && kept.back() != static_cast<int32_t>(kept.size()) - 1;
}

}  // namespace

void FlatMemory::retain(int layer, std::span<const int32_t> kept) {
  Layer& target = layer_at(layer);
  const int64_t first = keep_known(target, kept);
  if (must_move(kept)) {
    Block& block = *target.parts.back().block;
    move_rows_up(device_, block.keys.data() + first * row_bytes_, row_bytes_, kept);
    move_rows_up(device_, block.values.data() + first * row_bytes_, row_bytes_, kept);
  }
  resize(target.parts.back(), first + std::ssize(kept));
}

void FlatMemory::retain_there(const Context& context, int layer, const Tensor& kept) {
  Layer& target = layer_at(layer);
  Block& block = own_block(target);
  const auto first = static_cast<size_t>(first_of_group(block));
  const auto count = static_cast<size_t>(kept.elements());
  if (kept.dtype() != DType::i32 || kept.device() != device_ || count > group_ordinals_.size()) {
    throw Error(ErrorKind::internal, "places of rows to keep lie where the rows are");
  }
  const size_t offset = first * static_cast<size_t>(row_bytes_);
  cuda::move_rows_up(context, block.keys.data() + offset, row_bytes_, kept);
  cuda::move_rows_up(context, block.values.data() + offset, row_bytes_, kept);
  if (target.arriving == nullptr) target.arriving = std::make_unique<Arriving>(device_);
  Arriving& arriving = *target.arriving;
  if (arriving.places.size() < count * sizeof(int32_t)) {
    arriving.places = PinnedBuffer(group_ordinals_.size() * sizeof(int32_t));
  }
  copy_async(context, arriving.places.data(), kept.view().raw(), count * sizeof(int32_t));
  arriving.copied.record(context);
  arriving.first = first;
  arriving.count = count;
  arriving.group_begin = static_cast<int32_t>(group_begin_);
  const size_t rows = first + count;
  block.ordinals.resize(rows);
  block.modalities.resize(rows);
  block.times.resize(rows);
  block.keys.truncate(rows * static_cast<size_t>(row_bytes_));
  block.values.truncate(rows * static_cast<size_t>(row_bytes_));
  target.parts.back().rows = static_cast<int64_t>(rows);
}

void FlatMemory::accept(const Context& context, std::span<const int32_t> tokens) {
  if (probes_ > 0) throw Error(ErrorKind::internal, "a group with probes is accepted whole");
  std::vector<std::byte*> lists;  // of rows that move, in all layers
  for (int layer = 0; layer < layout_.layers; ++layer) {
    Layer& target = layer_at(layer);
    if (keeps_state(layer)) {
      if (tokens.empty() || target.nodes.empty()) continue;
      state(layer, tokens.back());
      target.state = std::make_shared<Tensor>(target.nodes[static_cast<size_t>(tokens.back())]);
      target.state_shared = false;
      target.nodes.clear();
      continue;
    }
    const int64_t first = keep_known(target, tokens);
    Block& block = *target.parts.back().block;
    for (size_t i = 0; i < tokens.size(); ++i) {
      block.ordinals[static_cast<size_t>(first) + i] =
          static_cast<int32_t>(group_begin_) + static_cast<int32_t>(i);
    }
    lists.push_back(block.keys.data() + first * row_bytes_);
    lists.push_back(block.values.data() + first * row_bytes_);
  }
  if (must_move(tokens) && device_ == context.device) {
    move_rows_up(context, lists, row_bytes_, tokens);
  } else if (must_move(tokens)) {
    for (std::byte* rows : lists) move_rows_up(device_, rows, row_bytes_, tokens);
  }
  for (int layer = 0; layer < layout_.layers; ++layer) {
    if (keeps_state(layer)) continue;
    Part& part = layers_[static_cast<size_t>(layer)].parts.back();
    resize(part, first_of_group(*part.block) + std::ssize(tokens));
  }
  const auto begin = static_cast<size_t>(group_begin_);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const TokenInfo kept = tokens_[begin + static_cast<size_t>(tokens[i])];
    tokens_.replace(begin + i, kept);
    group_modalities_[i] = group_modalities_[static_cast<size_t>(tokens[i])];
  }
  tokens_.truncate(begin + tokens.size());
  group_ordinals_.resize(tokens.size());
  group_modalities_.resize(tokens.size());
  parents_.clear();
}

TensorView FlatMemory::state(int layer, int32_t node) {
  Layer& target = layer_at(layer);
  if (!keeps_state(layer)) throw Error(ErrorKind::internal, "a layer with rows has no state");
  if (node < 0) {
    if (target.state_shared) {
      target.state = std::make_shared<Tensor>(target.state->clone());
      target.state_shared = false;
    }
    return target.state->view();
  }
  if (target.nodes.empty()) target.nodes.resize(group_ordinals_.size());
  Tensor& found = target.nodes.at(static_cast<size_t>(node));
  if (!found.defined()) {
    const int32_t parent = parents_.empty() ? node - 1 : parents_[static_cast<size_t>(node)];
    // A parent comes first; without rows of its own its state is the one before the group.
    const bool known = parent >= 0 && target.nodes[static_cast<size_t>(parent)].defined();
    found = known ? target.nodes[static_cast<size_t>(parent)].clone() : target.state->clone();
  }
  return found.view();
}

MemoryMark FlatMemory::mark() const {
  MemoryMark mark{token_count(), {}, nullptr};
  std::shared_ptr<States> states;
  mark.rows.reserve(layers_.size());
  for (Layer& layer : layers_) {
    int64_t rows = 0;
    for (const Part& part : layer.parts) rows += part.rows;
    mark.rows.push_back(rows);
    if (layer.state == nullptr) continue;
    if (states == nullptr) states = std::make_shared<States>();
    states->layers.resize(mark.rows.size());
    states->layers.back() = layer.state;
    layer.state_shared = true;
  }
  mark.more = std::move(states);
  return mark;
}

// Forgets all rows beyond the first `rows`. A frozen block stays whole for those who share it.
void FlatMemory::cut(Layer& layer, int64_t rows) {
  int64_t before = 0;
  size_t kept = 0;
  for (; kept < layer.parts.size() && (before < rows || kept == 0); ++kept) {
    Part& part = layer.parts[kept];
    const int64_t here = std::min(part.rows, rows - before);
    if (part.frozen) {
      part.rows = here;
    } else {
      resize(part, here);
    }
    before += here;
  }
  layer.parts.resize(kept);
  if (before < rows) throw Error(ErrorKind::internal, "a mark of a moment already undone");
}

void FlatMemory::rewind(const MemoryMark& mark) {
  if (mark.rows.size() != layers_.size() || mark.tokens > token_count()) {
    throw Error(ErrorKind::internal, "a mark of another session, or of a moment already undone");
  }
  // Only this class makes marks with rows for this many layers, and with states.
  const auto* states = static_cast<const States*>(mark.more.get());
  for (size_t i = 0; i < layers_.size(); ++i) {
    settle(layers_[i]);
    // A layer may lack rows of a group that was interrupted, never rows from before the mark.
    cut(layers_[i], mark.rows[i]);
    layers_[i].nodes.clear();
    if (layers_[i].state == nullptr || states == nullptr) continue;
    layers_[i].state = states->layers.at(i);
    layers_[i].state_shared = true;
  }
  tokens_.truncate(static_cast<size_t>(mark.tokens));
  probes_ = 0;
  group_ordinals_.clear();
  group_modalities_.clear();
  parents_.clear();
  group_begin_ = mark.tokens;
}

void FlatMemory::Block::describe(const Block& from, int64_t first, int64_t count) {
  const auto append = [&](auto& to, const auto& list) {
    to.insert(to.end(), list.begin() + first, list.begin() + first + count);
  };
  append(ordinals, from.ordinals);
  append(modalities, from.modalities);
  append(times, from.times);
}

void FlatMemory::Block::forget_first(int64_t count) {
  const auto shift = [&](auto& list) { list.erase(list.begin(), list.begin() + count); };
  shift(ordinals);
  shift(modalities);
  shift(times);
}

// Parts from `first` on become one block of rows on the memory's device.
void FlatMemory::join(Layer& layer, size_t first) {
  int64_t rows = 0;
  for (size_t i = first; i < layer.parts.size(); ++i) rows += layer.parts[i].rows;
  std::shared_ptr<Block> joined = new_block(rows);
  joined->keys.resize(static_cast<size_t>(rows * row_bytes_));
  joined->values.resize(static_cast<size_t>(rows * row_bytes_));
  int64_t at = 0;
  for (size_t i = first; i < layer.parts.size(); ++i) {
    const Part& part = layer.parts[i];
    const Block& from = *part.block;
    const auto bytes = static_cast<size_t>(part.rows * row_bytes_);
    need(part, 0, part.rows);
    copy_bytes(joined->keys.data() + at, device_, from.key_bytes(), from.device(), bytes);
    copy_bytes(joined->values.data() + at, device_, from.value_bytes(), from.device(), bytes);
    at += part.rows * row_bytes_;
    joined->describe(from, 0, part.rows);
  }
  layer.parts.resize(first);
  layer.parts.push_back({std::move(joined), rows, true});
}

// All rows so far become shared. More blocks than a reader takes are joined: first those of rows
// that lie here, since older ones lie elsewhere for lack of room.
void FlatMemory::freeze(Layer& layer) {
  std::erase_if(layer.parts, [](const Part& part) { return part.rows == 0; });
  for (Part& part : layer.parts) part.frozen = true;
  if (layer.parts.size() <= most_frozen) return;
  size_t first = layer.parts.size();
  while (first > 0 && !layer.parts[first - 1].block->saved_keys &&
         layer.parts[first - 1].block->device() == device_) {
    --first;
  }
  if (first < layer.parts.size()) join(layer, first);
  if (layer.parts.size() > most_frozen && device_.is_cpu()) join(layer, 0);
}

std::unique_ptr<Memory> FlatMemory::fork(const MemoryMark& mark) {
  if (mark.rows.size() != layers_.size() || mark.tokens > token_count()) {
    throw Error(ErrorKind::internal, "a mark of another session, or of a moment already undone");
  }
  auto other = std::make_unique<FlatMemory>(layout_, device_, retention_, tiers_);
  other->file_ = file_;
  for (size_t i = 0; i < layers_.size(); ++i) {
    settle(layers_[i]);
    freeze(layers_[i]);
    other->layers_[i].parts = layers_[i].parts;
    other->layers_[i].state = layers_[i].state;
    other->layers_[i].state_shared = layers_[i].state_shared = true;
  }
  other->tokens_ = tokens_.share();
  other->rewind(mark);
  return other;
}

int64_t FlatMemory::row_count(int layer) const {
  int64_t rows = 0;
  for (const Part& part : layers_.at(static_cast<size_t>(layer)).parts) rows += part.rows;
  return rows;
}

bool FlatMemory::all_here() const {
  return device_.is_cpu() || std::all_of(layers_.begin(), layers_.end(), [&](const Layer& layer) {
           return std::all_of(layer.parts.begin(), layer.parts.end(), [&](const Part& part) {
             return part.rows == 0 || part.block->device() == device_;
           });
         });
}

MemoryBytes FlatMemory::bytes() const {
  MemoryBytes bytes;
  const auto tier = [&](Device where) -> int64_t& {
    return where.is_cpu() ? bytes.host : bytes.device;
  };
  for (const Layer& layer : layers_) {
    for (const Part& part : layer.parts) {
      const Block& block = *part.block;
      const int64_t rows = 2 * part.rows * row_bytes_;
      const int64_t read =
          block.saved_keys ? block.saved_keys->resident() + block.saved_values->resident() : rows;
      tier(block.device()) += std::min(rows, read);
      bytes.disk += rows - std::min(rows, read);
      // A block stays frozen when the last fork that shared it is gone.
      if (part.block.use_count() > 1) bytes.shared += 2 * part.rows * row_bytes_;
    }
    if (layer.state != nullptr) tier(device_) += layer.state->bytes();
  }
  return bytes;
}

}  // namespace kinora

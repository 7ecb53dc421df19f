#include "memory/mosaic/cluster_table.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <mutex>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "memory/row_ops/attention_mass.h"
#include "ops/matmul.h"
#include "ops/packed_rows.h"

namespace kinora {
namespace {

// Clusters that new keys meet at a time.
constexpr int64_t most_clusters = 16384;
// Clusters that are collected on the host in one piece. The first ones of a saved memory are more.
constexpr size_t most_staged = 1024;
// Clusters that one block adds up, one after another: a GPU has more blocks than patience.
constexpr int32_t piece_rows = 16;

// Places that a table has room for, and that products go over: in steps of a sixteenth, because
// products of a new size have to be prepared.
int64_t rounded(int64_t places) {
  const auto power = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(places | 1)));
  const int64_t step = std::max<int64_t>(64, power / 16);
  return (places + step - 1) / step * step;
}

// On the context's device. Pageable memory is read before the call returns.
template <typename Number>
Tensor placed(const Context& context, const std::vector<Number>& numbers) {
  Tensor out(dtype_of<Number>::value, {std::max<int64_t>(1, std::ssize(numbers))}, context.device);
  copy_async(context, out.view().raw(), numbers.data(), numbers.size() * sizeof(Number));
  return out;
}

ConstTensorView view_of(const Tensor& tensor) {
  return tensor.defined() ? tensor.view() : ConstTensorView();
}

}  // namespace

ClusterTable::ClusterTable(const RowLayout& layout, Device device, int64_t most_rows)
    : device_(device),
      kv_heads_(layout.kv_heads),
      head_size_(layout.head_size),
      most_rows_(most_rows),
      dtype_(layout.dtype == DType::f32 ? DType::f32 : DType::bf16),
      layers_(static_cast<size_t>(layout.layers)) {}

void ClusterTable::pack(int layer, const MosaicIndex& index) {
  Layer& table = at(layer);
  if (table.stamp == index.stamp(layer)) return;
  const size_t partitions = std::max(index.partitions().size(), table.known.size());
  table.known.resize(partitions);
  table.places.resize(partitions);
  std::vector<int32_t> ids;
  for (size_t p = 0; p < partitions; ++p) {
    const auto partition = static_cast<int32_t>(p);
    const MosaicIndex::Layer& now = index.layer(partition, layer);
    if (now.stamp == table.known[p]) continue;
    auto& places = table.places[p];
    if (!now.changed_since(table.known[p], ids)) {  // of whatever is there or was
      ids.resize(std::max(places.size(), static_cast<size_t>(now.next_id)));
      std::iota(ids.begin(), ids.end(), 0);
    }
    places.resize(std::max(places.size(), static_cast<size_t>(now.next_id)), -1);
    for (const int32_t id : ids) {
      int32_t& place = places[static_cast<size_t>(id)];
      const SemanticCluster* cluster = now.find(id);
      if (cluster == nullptr) {
        if (place < 0) continue;
        table.list.clear(static_cast<size_t>(place));
        table.changed.push_back(place);
        table.free.push_back(std::exchange(place, -1));
        continue;
      }
      if (place >= 0 && table.list.stamps[static_cast<size_t>(place)] == cluster->stamp) continue;
      if (place < 0 && table.free.empty()) {
        place = static_cast<int32_t>(table.list.count());
      } else if (place < 0) {
        place = table.free.back();
        table.free.pop_back();
      }
      table.list.put(static_cast<size_t>(place), partition, looked_at(*cluster));
      table.changed.push_back(place);
    }
    table.known[p] = now.stamp;
  }
  table.stamp = index.stamp(layer);
  std::sort(table.changed.begin(), table.changed.end());
  table.changed.erase(std::unique(table.changed.begin(), table.changed.end()), table.changed.end());
  if (table.changed.empty() || table.changed.size() > most_staged) return;
  if (table.read) table.read->wait();  // what it reads is about to change
  table.old.clear();
  const size_t bytes = staged_bytes(table.changed.size());
  if (table.staged.size() < bytes) table.staged = PinnedBuffer(bytes + bytes / 2);
  stage(table, table.changed, table.staged.data(), nullptr);
}

size_t ClusterTable::staged_bytes(size_t clusters) const {
  return clusters * (7 + 2 * static_cast<size_t>(width())) * sizeof(float);
}

// Seven numbers of each, one kind after another, and then what is known of it.
cuda::StagedClusters ClusterTable::staged_at(const std::byte* bytes, size_t count) {
  const auto* numbers = reinterpret_cast<const int32_t*>(bytes);
  const auto* lengths = reinterpret_cast<const float*>(numbers + 5 * count);
  return {.count = static_cast<int64_t>(count),
          .places = numbers,
          .takers = numbers + count,
          .rows = numbers + 2 * count,
          .partitions = numbers + 3 * count,
          .middles = numbers + 4 * count,
          .lengths = lengths,
          .spreads = lengths + count,
          .means = lengths + 2 * count};
}

cuda::StagedClusters ClusterTable::stage(const Layer& table, std::span<const int32_t> changed,
                                         std::byte* to, const ThreadPool* threads) const {
  const size_t count = changed.size(), row = 2 * static_cast<size_t>(width());
  auto* places = reinterpret_cast<int32_t*>(to);
  int32_t* takers = places + count;
  int32_t* counts = takers + count;
  int32_t* partitions = counts + count;
  int32_t* middles = partitions + count;
  auto* lengths = reinterpret_cast<float*>(middles + count);
  float* spreads = lengths + count;
  float* rows = spreads + count;
  const auto fill = [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const auto place = static_cast<size_t>(changed[i]);
      float* const means = rows + i * row;
      places[i] = changed[i];
      takers[i] = 0;
      counts[i] = table.list.rows[place];
      partitions[i] = table.list.partitions[place];
      middles[i] = table.list.middles[place];
      lengths[i] = 0;
      spreads[i] = 0;
      if (table.list.rows[place] == 0) {
        std::fill_n(means, row, 0.0f);
        continue;
      }
      const SemanticCluster& cluster = *table.list.clusters[place];
      if (cluster.takes_rows(most_rows_)) takers[i] = table.list.partitions[place] + 1;
      const auto length = static_cast<float>(cluster.length);
      lengths[i] = static_cast<float>(cluster.keys.length) * length;
      spreads[i] = cluster.spread();
      for (size_t k = 0; k < row / 2; ++k) means[k] = cluster.keys.mean[k] * length;
      std::copy(cluster.value.begin(), cluster.value.end(), means + row / 2);
    }
  };
  if (threads != nullptr) {
    threads->parallel_for(static_cast<int64_t>(count), 64, fill);
  } else {
    fill(0, static_cast<int64_t>(count));
  }
  return staged_at(to, count);
}

// As when a saved memory is asked for the first time: piece by piece through a buffer that all
// tables share, because making one takes longer than filling it.
void ClusterTable::upload_many(const Context& context, Layer& table) {
  static std::mutex turn;
  static auto& buffer = *new PinnedBuffer;  // outlives CUDA's end
  const std::lock_guard lock(turn);
  const size_t bytes = staged_bytes(most_staged);
  if (buffer.size() < 2 * bytes) buffer = PinnedBuffer(2 * bytes);
  std::array<GpuEvent, 2> read{GpuEvent(device_), GpuEvent(device_)};
  const std::span<const int32_t> all(table.changed);
  for (size_t first = 0, piece = 0; first < all.size(); first += most_staged, ++piece) {
    GpuEvent& done = read[piece % 2];
    if (piece >= 2) done.wait();
    const auto some = all.subspan(first, std::min(most_staged, all.size() - first));
    put(context, table, stage(table, some, buffer.data() + piece % 2 * bytes, context.threads));
    done.record(context);
  }
  synchronize(context);  // others may use the buffer now
  table.old.clear();
}

void ClusterTable::put(const Context& context, Layer& table, const cuda::StagedClusters& staged) {
  cuda::put_clusters(
      context, staged,
      {table.keys.view(), table.values.view(), table.takers.view(), table.lengths.view(),
       table.spreads.view(), table.rows.view(), table.partitions.view(), table.middles.view()});
}

void ClusterTable::grow(const Context& context, Layer& layer, int64_t places) {
  const int64_t before = layer.keys.defined() ? layer.keys.size(0) : 0;
  if (places <= before) return;
  const int64_t capacity = rounded(std::max(places, before + before / 4));
  // What was there goes when the GPU has copied it: `pack` waits for that before the next time.
  const auto larger = [&](Tensor& tensor, DType type, const Shape& shape) {
    Tensor more(type, shape, device_);
    const size_t kept = before > 0 ? static_cast<size_t>(tensor.bytes()) : 0;
    if (kept > 0) copy_async(context, more.view().raw(), tensor.view().raw(), kept);
    clear_async(context, more.view().raw() + kept, static_cast<size_t>(more.bytes()) - kept);
    std::swap(tensor, more);
    if (kept > 0) layer.old.push_back(std::move(more));
  };
  for (Tensor* rows : {&layer.keys, &layer.values}) larger(*rows, dtype_, {capacity, width()});
  for (Tensor* numbers : {&layer.lengths, &layer.spreads}) {
    larger(*numbers, DType::f32, {capacity});
  }
  for (Tensor* numbers : {&layer.takers, &layer.rows, &layer.partitions, &layer.middles}) {
    larger(*numbers, DType::i32, {capacity});
  }
}

int64_t ClusterTable::places_of(const Layer& layer) {
  return layer.list.count() == 0 ? 0 : rounded(static_cast<int64_t>(layer.list.count()));
}

void ClusterTable::upload(const Context& context, int layer) {
  Layer& table = at(layer);
  if (table.changed.empty()) return;
  grow(context, table, static_cast<int64_t>(table.list.count()));
  if (table.changed.size() > most_staged) {
    upload_many(context, table);
  } else {
    put(context, table, staged_at(table.staged.data(), table.changed.size()));
    if (!table.read) table.read = std::make_unique<GpuEvent>(device_);
    table.read->record(context);
  }
  table.changed.clear();
  table.in_order = false;
}

Tensor ClusterTable::nearest(const Context& context, int layer, ConstTensorView keys,
                             const std::vector<int32_t>& partitions) const {
  const Layer& table = layers_[static_cast<size_t>(layer)];
  const int64_t rows = keys.size(0), clusters = places_of(table);
  const Tensor groups = placed(context, partitions);
  const Tensor near = placed(context, std::vector<int32_t>(partitions.size() * 2, -1));
  Tensor found = near.reshaped({rows, 2});
  Tensor best = placed(context, std::vector<float>(partitions.size(), -2.0f));
  Tensor units(dtype_, {rows, width()}, device_);
  cuda::unit_rows(context, keys, units.view());
  for (int64_t first = 0; first < clusters; first += most_clusters) {
    const int64_t some = std::min(most_clusters, clusters - first);
    Tensor products(DType::f32, {rows, some}, device_);
    matmul(context, units, table.keys.view().rows(first, some), products);
    cuda::nearest_clusters(context, products, groups, table.takers.view().rows(first, some),
                           table.lengths.view().rows(first, some), first, best.view(),
                           found.view());
  }
  Tensor products(DType::f32, {rows, rows}, device_);
  matmul(context, units, units, products);
  cuda::nearest_earlier(context, products, groups, found.view());
  return found;
}

std::vector<double> ClusterTable::scores(const Context& context, int layer, ConstTensorView queries,
                                         std::span<const float> log_weights, bool softmax) {
  const Layer& table = at(layer);
  const int64_t count = places_of(table);
  if (count == 0) return {};
  std::vector<float> logs(static_cast<size_t>(count), -INFINITY);
  std::copy(log_weights.begin(), log_weights.end(), logs.begin());
  std::vector<float> spreads = spreads_of(table.list);
  spreads.resize(logs.size());
  std::vector<double> out = attention_mass(context, queries, table.keys.view().rows(0, count),
                                           kv_heads_, logs, softmax, spreads);
  out.resize(table.list.count());
  return out;
}

cuda::ClusterEntries ClusterTable::entries(const Layer& layer, int64_t count) {
  return {layer.rows.view().rows(0, count), layer.partitions.view().rows(0, count),
          layer.middles.view().rows(0, count)};
}

void ClusterTable::bring_into_order(const Context& context, Layer& table) {
  if (table.in_order) return;
  const int64_t count = places_of(table);
  const int64_t partitions = std::ssize(table.list.clusters_of);
  const int32_t newest = *std::max_element(table.list.newest.begin(), table.list.newest.end());
  table.order = Tensor(DType::i32, {2, count}, device_);
  cuda::order_clusters(context, entries(table, count), partitions, int64_t{newest} + 1,
                       table.order.view()[0], table.order.view()[1]);
  // Making pinned memory takes longer than all the rest, so that there is room for more.
  const auto bytes = static_cast<size_t>(table.order.bytes());
  if (table.order_here.size() < bytes) table.order_here = PinnedBuffer(2 * bytes);
  copy_async(context, table.order_here.data(), table.order.view().raw(), bytes);
  table.ordered = count;
  table.in_order = true;
}

ClusterOrder ClusterTable::order(int layer) const {
  const Layer& table = layers_[static_cast<size_t>(layer)];
  const auto* numbers = reinterpret_cast<const int32_t*>(table.order_here.data());
  const auto count = static_cast<size_t>(table.ordered);
  return {{numbers, static_cast<size_t>(table.list.clusters_in_all)}, {numbers + count, count}};
}

namespace {

// Unread rows where they are not all rows, as count_rows wants them.
void append_changed(const UnreadRows& unread, std::vector<int32_t>& numbers) {
  numbers.insert(numbers.end(), unread.changed().begin(), unread.changed().end());
  for (const int32_t place : unread.changed()) {
    numbers.push_back(unread[static_cast<size_t>(place)]);
  }
}

}  // namespace

Tensor ClusterTable::changed_rows(const Context& context, const UnreadRows& unread) {
  if (unread.changed().empty()) return {};
  std::vector<int32_t> numbers;
  append_changed(unread, numbers);
  return placed(context, numbers).reshaped({2, std::ssize(unread.changed())});
}

std::span<const int32_t> ClusterTable::best(const Context& context, int layer,
                                            ConstTensorView queries, bool softmax,
                                            const UnreadRows& unread,
                                            std::span<const int32_t> searched, int64_t most) {
  Layer& table = at(layer);
  const int64_t count = places_of(table), wanted = std::min(count, most);
  if (count == 0) return {};
  bring_into_order(context, table);
  Tensor logs(DType::f32, {count}, device_), found(DType::i32, {wanted}, device_);
  const Tensor changed = changed_rows(context, unread);
  Tensor partitions;
  if (!searched.empty())
    partitions = placed(context, std::vector(searched.begin(), searched.end()));
  cuda::count_rows(context, entries(table, count), {view_of(changed), view_of(partitions)}, true,
                   logs.view());
  const Tensor mass =
      attention_mass_there(context, queries, table.keys.view().rows(0, count), kv_heads_, logs,
                           softmax, table.spreads.view().rows(0, count));
  cuda::best_clusters(context, mass, logs, found.view());
  const auto bytes = static_cast<size_t>(found.bytes());
  if (best_.size() < bytes) best_ = PinnedBuffer(2 * bytes);
  copy_async(context, best_.data(), found.view().raw(), bytes);
  synchronize(context);
  return {reinterpret_cast<const int32_t*>(best_.data()), static_cast<size_t>(wanted)};
}

std::pair<Tensor, Tensor> ClusterTable::means(const Context& context, int layer,
                                              const ClusterGroups& groups,
                                              const UnreadRows& unread) {
  const Layer& table = at(layer);
  const auto count = static_cast<int64_t>(groups.count());
  const Shape shape{count, kv_heads_, head_size_};
  std::pair<Tensor, Tensor> out{Tensor(DType::f32, shape, device_),
                                Tensor(DType::f32, shape, device_)};
  if (count == 0) return out;
  // Ranges, the pieces of each group, and unread rows go there together.
  std::vector<int32_t> numbers, of_groups{0};
  for (size_t g = 0; g < groups.count(); ++g) {
    if (groups.ends[g] == ClusterGroups::alone) {
      numbers.push_back(groups.begins[g]);
      numbers.push_back(ClusterGroups::alone);
    }
    for (int32_t i = groups.begins[g]; i < groups.ends[g]; i += piece_rows) {
      numbers.push_back(i);
      numbers.push_back(std::min(i + piece_rows, groups.ends[g]));
    }
    of_groups.push_back(static_cast<int32_t>(numbers.size() / 2));
  }
  const int64_t pieces = std::ssize(numbers) / 2, changed = std::ssize(unread.changed());
  numbers.insert(numbers.end(), of_groups.begin(), of_groups.end());
  append_changed(unread, numbers);
  const Tensor there = placed(context, numbers);
  const auto part = [&](int64_t first, const Shape& wanted) {
    return ConstTensorView(there.view().rows(first, wanted.elements())).reshaped(wanted);
  };
  Tensor weights(DType::f32, {places_of(table)}, device_);
  cuda::CountedRows counted;
  if (changed > 0) counted.changed = part(2 * pieces + count + 1, {2, changed});
  cuda::count_rows(context, entries(table, weights.size(0)), counted, false, weights.view());
  // Clusters that stand alone need no order.
  const ConstTensorView places = table.order.defined() ? table.order.view()[0] : part(0, {pieces});
  cuda::cluster_means(context,
                      {part(0, {pieces, 2}), places, weights, part(2 * pieces, {count + 1})},
                      table.keys, table.values, out.first.view(), out.second.view());
  return out;
}

int64_t ClusterTable::bytes() const {
  int64_t bytes = 0;
  for (const Layer& layer : layers_) {
    if (!layer.keys.defined()) continue;
    for (const Tensor* tensor :
         {&layer.keys, &layer.values, &layer.takers, &layer.lengths, &layer.spreads, &layer.rows,
          &layer.partitions, &layer.middles, &layer.order}) {
      if (tensor->defined()) bytes += tensor->bytes();
    }
  }
  return bytes;
}

void ClusterTable::want_split(int layer, Wanted cluster) {
  const std::lock_guard lock(wanted_turn_);
  at(layer).wanted.push_back(cluster);
}

std::vector<ClusterTable::Wanted> ClusterTable::take_wanted(int layer) {
  const std::lock_guard lock(wanted_turn_);
  return std::exchange(at(layer).wanted, {});
}

}  // namespace kinora

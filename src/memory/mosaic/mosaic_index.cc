#include "memory/mosaic/mosaic_index.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <unordered_map>
#include <utility>

#include "base/own_copy.h"
#include "memory/row_ops/vectors.h"

namespace kinora {
namespace {

// Frames that differ less than this are one scene, however still the rest of the video is: mean
// squared distance of unit vectors.
constexpr double same_scene = 0.005;
// Rows that differ less than this differ by rounding (bf16 rows of one picture shown twice), and
// splitting them would sort noise.
constexpr double same_row = 1e-5;
constexpr double same_pair = 4 * same_row;  // squared distance of two with this variance
// A row's squared distance from the mean of its cluster, as a share of the variance that the
// cluster may have.
constexpr double farthest = 1.2;

}  // namespace

UnitKey::UnitKey(std::span<const float> key)
    : direction(key.begin(), key.end()), length(make_unit(direction)) {}

void SemanticCluster::add(const MosaicRow& row, const UnitKey& key) {
  const auto before = static_cast<double>(keys.count), total = before + 1;
  keys.add(key.direction);
  length = (before * length + key.length) / total;
  if (value.empty()) value.assign(row.value.size(), 0.0f);
  move_mean(value.data(), row.value.data(), static_cast<float>(1 / total), value.size());
  tokens.push_back(row.token);
}

std::vector<float> SemanticCluster::key() const {
  std::vector<float> out = keys.mean;
  for (float& x : out) x = static_cast<float>(double{x} * length);
  return out;
}

float SemanticCluster::spread() const {
  const auto width = static_cast<double>(keys.mean.size());
  return static_cast<float>(length * std::sqrt(std::max(0.0, keys.variance) / width));
}

MosaicIndex::MosaicIndex(const MosaicRules& rules, int layers)
    : rules_(rules), layers_(static_cast<size_t>(layers)) {}

const SemanticCluster* MosaicIndex::Layer::find(int32_t id) const {
  if (id < 0 || id >= next_id) return nullptr;
  const int32_t place = places[static_cast<size_t>(id)];
  return place < 0 ? nullptr : clusters[static_cast<size_t>(place)].get();
}

bool MosaicIndex::Layer::changed_since(uint64_t earlier, std::vector<int32_t>& ids) const {
  ids.clear();
  const auto first = std::partition_point(changes_.begin(), changes_.end(),
                                          [&](const Change& any) { return any.stamp <= earlier; });
  // A stamp that stands between two changes is one of another copy.
  const uint64_t before = first == changes_.begin() ? changes_after_ : (first - 1)->stamp;
  if (before != earlier) return false;
  for (auto change = first; change != changes_.end(); ++change) ids.push_back(change->id);
  return true;
}

// Who has looked at this many changes ago looks at every cluster.
void MosaicIndex::Layer::forget_old_changes() {
  const size_t most = std::max<size_t>(1024, clusters.size() / 2);
  if (changes_.size() <= 2 * most) return;
  changes_after_ = changes_[changes_.size() - most - 1].stamp;
  const auto kept = std::partition_point(changes_.begin(), changes_.end(), [&](const Change& any) {
    return any.stamp <= changes_after_;
  });
  changes_.erase(changes_.begin(), kept);
}

SemanticCluster& MosaicIndex::Layer::own(size_t place) {
  SemanticCluster& out = own_copy(clusters[place]);
  out.stamp = stamp;
  changes_.push_back({stamp, out.id});
  return out;
}

void MosaicIndex::Layer::put(size_t place, std::shared_ptr<SemanticCluster> cluster) {
  cluster->stamp = stamp;
  changes_.push_back({stamp, cluster->id});
  clusters[place] = std::move(cluster);
}

void MosaicIndex::Layer::add(std::shared_ptr<SemanticCluster> cluster) {
  ++next_id;
  places.push_back(static_cast<int32_t>(clusters.size()));
  clusters.emplace_back();
  put(clusters.size() - 1, std::move(cluster));
}

// The last one takes its place.
void MosaicIndex::Layer::remove(int32_t id) {
  changes_.push_back({stamp, id});
  const int32_t place = std::exchange(places[static_cast<size_t>(id)], -1);
  if (const int32_t last = clusters.back()->id; last != id) {
    clusters[static_cast<size_t>(place)] = std::move(clusters.back());
    places[static_cast<size_t>(last)] = place;
  }
  clusters.pop_back();
}

const MosaicIndex::Layer& MosaicIndex::layer(int32_t partition, int layer) const {
  static const Layer none;
  const auto& all = layers_[static_cast<size_t>(layer)].partitions;
  const auto place = static_cast<size_t>(partition);
  return place < all.size() && all[place] ? *all[place] : none;
}

int32_t MosaicIndex::add_frame(std::span<const float> embedding) {
  std::vector<float> unit(embedding.begin(), embedding.end());
  make_unit(unit);
  all_frames_.add(unit);
  int32_t best = -1;
  double most = -2;
  for (size_t i = 0; i < partitions_.size(); ++i) {
    const double near = partitions_[i]->frames.cosine(unit);
    if (near > most) {
      most = near;
      best = static_cast<int32_t>(i);
    }
  }
  std::shared_ptr<Partition> changed;
  if (best >= 0) {
    const Cohesion& frames = partitions_[static_cast<size_t>(best)]->frames;
    const double limit =
        std::max(same_scene, rules_.visual.threshold(frames.count + 1, all_frames_.variance));
    if (!rules_.sees_frames() || frames.variance_with(unit) <= limit) {
      changed = std::make_shared<Partition>(*partitions_[static_cast<size_t>(best)]);
    }
  }
  if (changed == nullptr) {
    best = static_cast<int32_t>(partitions_.size());
    partitions_.emplace_back();
    changed = std::make_shared<Partition>();
  }
  changed->frames.add(unit);
  partitions_[static_cast<size_t>(best)] = std::move(changed);
  assigned_.push_back(best);
  return best;
}

uint64_t MosaicIndex::next_stamp() {
  static std::atomic<uint64_t> last = 0;
  return ++last;
}

// One that nobody else has: a copy, put in its place, unless it is that already.
MosaicIndex::Layer& MosaicIndex::own(int32_t partition, int layer) {
  LayerIndex& index = layers_[static_cast<size_t>(layer)];
  const auto place = static_cast<size_t>(partition);
  if (place >= index.partitions.size()) index.partitions.resize(place + 1);
  auto& shared = index.partitions[place];
  if (!shared) shared = std::make_shared<Layer>();
  Layer& out = own_copy(shared);
  index.stamp = next_stamp();
  out.forget_old_changes();
  out.stamp = index.stamp;
  return out;
}

void MosaicIndex::open_again(Layer& layer) const {
  layer.open.clear();
  for (size_t i = 0; i < layer.clusters.size(); ++i) {
    if (takes_rows(*layer.clusters[i])) layer.open.push_back(static_cast<int32_t>(i));
  }
}

std::vector<UnitKey> MosaicIndex::count_in(LayerIndex& index,
                                           std::span<const MosaicRow> rows) const {
  std::vector<UnitKey> units;
  units.reserve(rows.size());
  for (const MosaicRow& row : rows) {
    units.emplace_back(row.key);
    index.all_keys.add(units.back().direction);
  }
  index.known = std::max(index.known, rows.back().token + 1);
  return units;
}

void MosaicIndex::add_rows(int layer, int32_t partition, std::span<const MosaicRow> rows,
                           const FetchRows& fetch) {
  if (rows.empty()) return;
  LayerIndex& index = layers_[static_cast<size_t>(layer)];
  const std::vector<UnitKey> units = count_in(index, rows);
  Layer& target = own(partition, layer);
  open_again(target);
  for (size_t i = 0; i < rows.size(); ++i) {
    int32_t best = -1;
    double most = -2;
    for (const int32_t place : target.open) {
      const double near =
          target.clusters[static_cast<size_t>(place)]->keys.cosine(units[i].direction);
      if (near > most) {
        most = near;
        best = place;
      }
    }
    const int32_t before = target.next_id;
    if (best < 0) {
      begin_cluster(index, target, rows[i], units[i], -1);
    } else {
      join(index, target, static_cast<size_t>(best), rows[i], units[i], rows.back().token, fetch);
    }
    // Few rows change which clusters are open.
    const bool same = target.next_id == before && best >= 0 &&
                      takes_rows(*target.clusters[static_cast<size_t>(best)]);
    if (!same) open_again(target);
  }
}

void MosaicIndex::add_near_rows(int layer, int32_t partition, std::span<const MosaicRow> rows,
                                std::span<const NearRow> near, const FetchRows& fetch) {
  if (rows.empty()) return;
  // There is one cluster to join, whatever is near.
  if (rules_.by == ClusterBy::visual) return add_rows(layer, partition, rows, fetch);
  LayerIndex& index = layers_[static_cast<size_t>(layer)];
  const std::vector<UnitKey> units = count_in(index, rows);
  Layer& target = own(partition, layer);
  target.open.clear();
  std::vector<int32_t> joined;  // ids
  // The cluster that was begun because this one was full. What is near was found before the rows
  // came, and where many of them are alike, it is full when the last one's turn has come.
  std::unordered_map<int32_t, int32_t> goes_on_in;
  // Clusters that a cluster was split into meanwhile: rows like its own may have gone there.
  std::unordered_map<int32_t, std::vector<int32_t>> split_off;
  for (size_t i = 0; i < rows.size(); ++i) {
    int32_t best = -1, full = -1;
    double most = -2;
    const auto meet = [&](int32_t id) {
      const int32_t place = target.places[static_cast<size_t>(id)];
      if (place < 0 || !takes_rows(*target.clusters[static_cast<size_t>(place)])) return;
      const double cosine =
          target.clusters[static_cast<size_t>(place)]->keys.cosine(units[i].direction);
      if (cosine <= most) return;
      most = cosine;
      best = place;
    };
    const auto look_at = [&](int32_t id) {
      for (auto next = goes_on_in.find(id); next != goes_on_in.end(); next = goes_on_in.find(id)) {
        id = next->second;
      }
      if (id < 0 || id >= target.next_id) return;
      full = id;
      for (std::vector<int32_t> left{id}; !left.empty();) {
        const int32_t any = left.back();
        left.pop_back();
        meet(any);
        const auto more = split_off.find(any);
        if (more != split_off.end()) {
          left.insert(left.end(), more->second.begin(), more->second.end());
        }
      }
    };
    look_at(near[i].cluster);
    if (near[i].earlier >= 0) look_at(joined[static_cast<size_t>(near[i].earlier)]);
    const int32_t fresh = target.next_id;
    if (best < 0) {
      joined.push_back(begin_cluster(index, target, rows[i], units[i], -1));
      if (full >= 0) goes_on_in[full] = joined.back();
      continue;
    }
    const int32_t id = target.clusters[static_cast<size_t>(best)]->id;
    joined.push_back(join(index, target, static_cast<size_t>(best), rows[i], units[i],
                          rows.back().token, fetch));
    if (target.next_id > fresh) split_off[id].push_back(fresh);
  }
}

int32_t MosaicIndex::begin_cluster(LayerIndex& index, Layer& layer, const MosaicRow& row,
                                   const UnitKey& key, int32_t waits_for) {
  ++index.clusters;
  auto fresh = std::make_shared<SemanticCluster>();
  fresh->add(row, key);
  fresh->id = layer.next_id;
  fresh->waits_for = waits_for;
  const int32_t id = fresh->id;
  layer.add(std::move(fresh));
  return id;
}

int32_t MosaicIndex::join(LayerIndex& index, Layer& layer, size_t place, const MosaicRow& row,
                          const UnitKey& key, int32_t newest, const FetchRows& fetch) {
  const SemanticCluster& cluster = *layer.clusters[place];
  const int32_t id = cluster.id;
  const double limit =
      std::max(same_row, rules_.semantic.threshold(cluster.rows() + 1, index.all_keys.variance));
  const bool too_many = index.clusters * rules_.mean_rows > index.all_keys.count;
  // A variance hardly feels one row more where many are alike: what is shown for a moment would go
  // into a large cluster of what is always there, and be found with all of that or not at all.
  const bool suits = cluster.keys.variance_with(key.direction) <= limit &&
                     cluster.keys.distance(key.direction) <= std::max(same_pair, farthest * limit);
  if (too_many || suits || rules_.by == ClusterBy::visual) {
    layer.own(place).add(row, key);
    return id;
  }
  const bool at_hand = rules_.resident == 0 || newest - cluster.tokens.front() < rules_.resident;
  if (at_hand && split(index, layer, place, {&row, 1}, fetch)) {
    // It is in one of the two.
    const std::vector<int32_t>& first = layer.find(id)->tokens;
    const bool stayed = std::binary_search(first.begin(), first.end(), row.token);
    return stayed ? id : layer.next_id - 1;
  }
  SemanticCluster& marked = layer.own(place);
  marked.loose = true;
  marked.waiting.push_back(layer.next_id);
  return begin_cluster(index, layer, row, key, id);
}

bool MosaicIndex::split(LayerIndex& index, Layer& layer, size_t place,
                        std::span<const MosaicRow> more, const FetchRows& fetch) {
  const std::shared_ptr<const SemanticCluster> old = layer.clusters[place];
  const int32_t id = old->id;
  std::vector<int32_t> tokens = old->tokens;
  std::vector<float> keys, values;
  // Where not even the oldest row is at hand, there is no need to look for the others.
  if (!fetch(std::span(tokens).first(1), keys, values)) return false;
  for (const int32_t one : old->waiting) {
    const std::vector<int32_t>& more_tokens = layer.find(one)->tokens;
    tokens.insert(tokens.end(), more_tokens.begin(), more_tokens.end());
  }
  for (const MosaicRow& row : more) tokens.push_back(row.token);
  std::sort(tokens.begin(), tokens.end());
  if (!fetch(tokens, keys, values)) return false;
  const size_t width = keys.size() / tokens.size();
  std::vector<UnitKey> units;
  std::vector<float> directions;
  for (size_t i = 0; i < tokens.size(); ++i) {
    units.emplace_back(std::span<const float>(keys).subspan(i * width, width));
    directions.insert(directions.end(), units[i].direction.begin(), units[i].direction.end());
  }
  const std::vector<bool> second = split_in_two(directions, width);
  auto one = std::make_shared<SemanticCluster>(), two = std::make_shared<SemanticCluster>();
  for (size_t i = 0; i < tokens.size(); ++i) {
    const MosaicRow row{tokens[i], std::span(keys).subspan(i * width, width),
                        std::span(values).subspan(i * width, width)};
    (second[i] ? *two : *one).add(row, units[i]);
  }
  one->id = id;
  two->id = layer.next_id;
  layer.put(place, std::move(one));
  layer.add(std::move(two));
  for (const int32_t waited : old->waiting) layer.remove(waited);
  index.clusters += 1 - static_cast<int64_t>(old->waiting.size());
  ++index.splits;
  return true;
}

void MosaicIndex::split_loose(int layer, int32_t partition, std::span<const int32_t> ids,
                              const FetchRows& fetch) {
  std::vector<int32_t> loose;
  for (const int32_t id : ids) {
    const SemanticCluster* cluster = this->layer(partition, layer).find(id);
    if (cluster != nullptr && cluster->loose) loose.push_back(id);
  }
  if (loose.empty()) return;
  Layer& target = own(partition, layer);
  for (const int32_t id : loose) {
    const int32_t place = target.places[static_cast<size_t>(id)];
    if (!target.clusters[static_cast<size_t>(place)]->loose) continue;  // named twice
    split(layers_[static_cast<size_t>(layer)], target, static_cast<size_t>(place), {}, fetch);
  }
}

int64_t MosaicIndex::splits() const {
  int64_t splits = 0;
  for (const LayerIndex& layer : layers_) splits += layer.splits;
  return splits;
}

int64_t MosaicIndex::bytes() const {
  size_t bytes = assigned_.size() * sizeof(int32_t);
  for (const auto& partition : partitions_) bytes += partition->frames.mean.size() * sizeof(float);
  for (const LayerIndex& layer : layers_) {
    // A mean key and a mean value of each cluster, and the token of each row.
    const size_t width = layer.all_keys.mean.size();
    bytes += static_cast<size_t>(layer.clusters) * 2 * width * sizeof(float) +
             static_cast<size_t>(layer.all_keys.count) * sizeof(int32_t);
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace kinora

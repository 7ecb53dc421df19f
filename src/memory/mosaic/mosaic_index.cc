#include "memory/mosaic/mosaic_index.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace kinora {
namespace {

// Frames that differ less than this are one scene, however still the rest of the video is: mean
// squared distance of unit vectors.
constexpr double same_scene = 0.005;
// Rows that differ less than this differ by rounding (bf16 rows of one picture shown twice), and
// splitting them would sort noise.
constexpr double same_row = 1e-5;

}  // namespace

UnitKey::UnitKey(std::span<const float> key)
    : direction(key.begin(), key.end()), length(make_unit(direction)) {}

void SemanticCluster::add(const MosaicRow& row, const UnitKey& key) {
  const auto before = static_cast<double>(keys.count), total = before + 1, share = 1 / total;
  keys.add(key.direction);
  length = (before * length + key.length) / total;
  if (value.empty()) value.assign(row.value.size(), 0.0f);
  for (size_t i = 0; i < value.size(); ++i) {
    value[i] =
        static_cast<float>(double{value[i]} + (double{row.value[i]} - double{value[i]}) * share);
  }
  tokens.push_back(row.token);
}

std::vector<float> SemanticCluster::key() const {
  std::vector<float> out = keys.mean;
  for (float& x : out) x = static_cast<float>(double{x} * length);
  return out;
}

MosaicIndex::MosaicIndex(const MosaicRules& rules, int layers)
    : rules_(rules), layers_(static_cast<size_t>(layers)) {}

std::shared_ptr<const MosaicIndex::Layer> MosaicIndex::shared_layer(int32_t partition,
                                                                    int layer) const {
  const auto& all = layers_[static_cast<size_t>(layer)].partitions;
  const auto place = static_cast<size_t>(partition);
  return place < all.size() ? all[place] : nullptr;
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
    if (frames.variance_with(unit) <= limit) {
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

// A copy that nobody else has, put in its place.
MosaicIndex::Layer& MosaicIndex::own(int32_t partition, int layer) {
  auto& all = layers_[static_cast<size_t>(layer)].partitions;
  const auto place = static_cast<size_t>(partition);
  if (place >= all.size()) all.resize(place + 1);
  auto mine = std::make_shared<Layer>(all[place] ? *all[place] : Layer());
  Layer& out = *mine;
  all[place] = std::move(mine);
  return out;
}

void MosaicIndex::open_again(Layer& layer) const {
  layer.open.clear();
  for (size_t i = 0; i < layer.clusters.size(); ++i) {
    if (takes_rows(*layer.clusters[i])) layer.open.push_back(static_cast<int32_t>(i));
  }
}

void MosaicIndex::find_places(Layer& layer) {
  layer.places.assign(static_cast<size_t>(layer.next_id), -1);
  for (size_t i = 0; i < layer.clusters.size(); ++i) {
    layer.places[static_cast<size_t>(layer.clusters[i]->id)] = static_cast<int32_t>(i);
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
    const size_t before = target.clusters.size();
    if (best < 0) {
      begin_cluster(index, target, rows[i], units[i], -1);
    } else {
      join(index, target, static_cast<size_t>(best), rows[i], units[i], rows.back().token, fetch);
    }
    // Few rows change which clusters are open.
    const bool same = target.clusters.size() == before && best >= 0 &&
                      takes_rows(*target.clusters[static_cast<size_t>(best)]);
    if (!same) open_again(target);
  }
}

void MosaicIndex::add_near_rows(int layer, int32_t partition, std::span<const MosaicRow> rows,
                                std::span<const NearRow> near, const FetchRows& fetch) {
  if (rows.empty()) return;
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
  fresh->id = layer.next_id++;
  fresh->waits_for = waits_for;
  const int32_t id = fresh->id;
  layer.places.push_back(static_cast<int32_t>(layer.clusters.size()));
  layer.clusters.push_back(std::move(fresh));
  return id;
}

int32_t MosaicIndex::join(LayerIndex& index, Layer& layer, size_t place, const MosaicRow& row,
                          const UnitKey& key, int32_t newest, const FetchRows& fetch) {
  const SemanticCluster& cluster = *layer.clusters[place];
  const int32_t id = cluster.id;
  const double limit =
      std::max(same_row, rules_.semantic.threshold(cluster.rows() + 1, index.all_keys.variance));
  const bool too_many = index.clusters * rules_.mean_rows > index.all_keys.count;
  if (too_many || cluster.keys.variance_with(key.direction) <= limit) {
    auto changed = std::make_shared<SemanticCluster>(cluster);
    changed->add(row, key);
    layer.clusters[place] = std::move(changed);
    return id;
  }
  const bool at_hand = rules_.resident == 0 || newest - cluster.tokens.front() < rules_.resident;
  if (at_hand && split(index, layer, place, {&row, 1}, fetch)) {
    // It is in one of the two.
    const std::vector<int32_t>& first =
        layer.clusters[static_cast<size_t>(layer.places[static_cast<size_t>(id)])]->tokens;
    const bool stayed = std::binary_search(first.begin(), first.end(), row.token);
    return stayed ? id : layer.next_id - 1;
  }
  auto marked = std::make_shared<SemanticCluster>(cluster);
  marked->loose = true;
  layer.clusters[place] = std::move(marked);
  return begin_cluster(index, layer, row, key, id);
}

bool MosaicIndex::split(LayerIndex& index, Layer& layer, size_t place,
                        std::span<const MosaicRow> more, const FetchRows& fetch) {
  const SemanticCluster& old = *layer.clusters[place];
  const int32_t id = old.id;
  std::vector<int32_t> tokens = old.tokens;
  if (old.loose) {
    for (const auto& cluster : layer.clusters) {
      if (cluster->waits_for != id) continue;
      tokens.insert(tokens.end(), cluster->tokens.begin(), cluster->tokens.end());
    }
  }
  for (const MosaicRow& row : more) tokens.push_back(row.token);
  std::sort(tokens.begin(), tokens.end());
  std::vector<float> keys, values;
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
  const bool waited = old.loose;
  one->id = id;
  two->id = layer.next_id++;
  layer.clusters[place] = std::move(one);
  ++index.clusters;
  if (waited) {
    index.clusters -= static_cast<int64_t>(std::erase_if(
        layer.clusters, [&](const auto& cluster) { return cluster->waits_for == id; }));
  }
  layer.places.push_back(static_cast<int32_t>(layer.clusters.size()));
  layer.clusters.push_back(std::move(two));
  if (waited) find_places(layer);
  ++index.splits;
  return true;
}

void MosaicIndex::split_loose(int layer, int32_t partition, std::span<const int32_t> ids,
                              const FetchRows& fetch) {
  std::vector<int32_t> loose;
  for (const auto& cluster : this->layer(partition, layer).clusters) {
    if (!cluster->loose) continue;
    if (std::find(ids.begin(), ids.end(), cluster->id) != ids.end()) loose.push_back(cluster->id);
  }
  if (loose.empty()) return;
  Layer& target = own(partition, layer);
  for (const int32_t id : loose) {
    const auto at = std::find_if(target.clusters.begin(), target.clusters.end(),
                                 [&](const auto& cluster) { return cluster->id == id; });
    split(layers_[static_cast<size_t>(layer)], target,
          static_cast<size_t>(at - target.clusters.begin()), {}, fetch);
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
    for (const auto& partition : layer.partitions) {
      if (!partition) continue;
      for (const auto& cluster : partition->clusters) {
        bytes += (cluster->keys.mean.size() + cluster->value.size()) * sizeof(float) +
                 cluster->tokens.size() * sizeof(int32_t);
      }
    }
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace kinora

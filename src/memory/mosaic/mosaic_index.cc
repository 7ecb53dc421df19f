#include "memory/mosaic/mosaic_index.h"

#include <algorithm>
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

void SemanticCluster::add(const MosaicRow& row) {
  std::vector<float> unit(row.key.begin(), row.key.end());
  const double norm = make_unit(unit);
  const auto before = static_cast<double>(keys.count), total = before + 1;
  keys.add(unit);
  length = (before * length + norm) / total;
  if (value.empty()) value.assign(row.value.size(), 0.0f);
  for (size_t i = 0; i < value.size(); ++i) {
    value[i] =
        static_cast<float>(double{value[i]} + (double{row.value[i]} - double{value[i]}) / total);
  }
  tokens.push_back(row.token);
}

std::vector<float> SemanticCluster::key() const {
  std::vector<float> out = keys.mean;
  for (float& x : out) x = static_cast<float>(double{x} * length);
  return out;
}

MosaicIndex::MosaicIndex(const MosaicRules& rules, int layers)
    : rules_(rules),
      all_keys_(static_cast<size_t>(layers)),
      known_(static_cast<size_t>(layers), 0) {}

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
    changed->layers.assign(all_keys_.size(), std::make_shared<const Layer>());
  }
  changed->frames.add(unit);
  partitions_[static_cast<size_t>(best)] = std::move(changed);
  assigned_.push_back(best);
  return best;
}

// A copy of the layer that nobody else has, put in its place.
MosaicIndex::Layer& MosaicIndex::own(int32_t partition, int layer) {
  auto& place = partitions_[static_cast<size_t>(partition)];
  auto changed = std::make_shared<Partition>(*place);
  auto mine = std::make_shared<Layer>(*changed->layers[static_cast<size_t>(layer)]);
  Layer& out = *mine;
  changed->layers[static_cast<size_t>(layer)] = std::move(mine);
  place = std::move(changed);
  return out;
}

void MosaicIndex::add_rows(int layer, int32_t partition, std::span<const MosaicRow> rows,
                           const FetchRows& fetch) {
  if (rows.empty()) return;
  Cohesion& all = all_keys_[static_cast<size_t>(layer)];
  for (const MosaicRow& row : rows) {
    std::vector<float> unit(row.key.begin(), row.key.end());
    make_unit(unit);
    all.add(unit);
  }
  Layer& target = own(partition, layer);
  const int32_t newest = rows.back().token;
  for (const MosaicRow& row : rows) insert(target, all.variance, row, newest, fetch);
  known_[static_cast<size_t>(layer)] = newest + 1;
}

void MosaicIndex::insert(Layer& layer, double variance, const MosaicRow& row, int32_t newest,
                         const FetchRows& fetch) {
  std::vector<float> unit(row.key.begin(), row.key.end());
  make_unit(unit);
  size_t best = layer.clusters.size();
  double most = -2;
  for (size_t i = 0; i < layer.clusters.size(); ++i) {
    const SemanticCluster& cluster = *layer.clusters[i];
    if (cluster.rows() >= rules_.cluster_rows || cluster.waits_for >= 0) continue;
    const double near = cluster.keys.cosine(unit);
    if (near > most) {
      most = near;
      best = i;
    }
  }
  const auto begin = [&](int32_t waits_for) {
    auto fresh = std::make_shared<SemanticCluster>();
    fresh->add(row);
    fresh->id = layer.next_id++;
    fresh->waits_for = waits_for;
    layer.clusters.push_back(std::move(fresh));
  };
  if (best == layer.clusters.size()) return begin(-1);
  const SemanticCluster& cluster = *layer.clusters[best];
  const double limit = std::max(same_row, rules_.semantic.threshold(cluster.rows() + 1, variance));
  if (cluster.keys.variance_with(unit) <= limit) {
    auto changed = std::make_shared<SemanticCluster>(cluster);
    changed->add(row);
    layer.clusters[best] = std::move(changed);
    return;
  }
  const bool at_hand = rules_.resident == 0 || newest - cluster.tokens.front() < rules_.resident;
  if (at_hand) return split(layer, best, {&row, 1}, fetch);
  auto marked = std::make_shared<SemanticCluster>(cluster);
  marked->loose = true;
  const int32_t id = marked->id;
  layer.clusters[best] = std::move(marked);
  begin(id);
}

void MosaicIndex::split(Layer& layer, size_t place, std::span<const MosaicRow> more,
                        const FetchRows& fetch) {
  const SemanticCluster& old = *layer.clusters[place];
  const int32_t id = old.id;
  std::vector<int32_t> tokens = old.tokens;
  for (const auto& cluster : layer.clusters) {
    if (cluster->waits_for != id) continue;
    tokens.insert(tokens.end(), cluster->tokens.begin(), cluster->tokens.end());
  }
  for (const MosaicRow& row : more) tokens.push_back(row.token);
  std::sort(tokens.begin(), tokens.end());
  std::vector<float> keys, values;
  fetch(tokens, keys, values);
  const size_t width = keys.size() / tokens.size();
  const auto row_at = [&](size_t i) {
    return MosaicRow{tokens[i], std::span(keys).subspan(i * width, width),
                     std::span(values).subspan(i * width, width)};
  };
  std::vector<float> units = keys;
  for (size_t i = 0; i < tokens.size(); ++i) {
    make_unit(std::span(units).subspan(i * width, width));
  }
  const std::vector<bool> second = split_in_two(units, width);
  auto one = std::make_shared<SemanticCluster>(), two = std::make_shared<SemanticCluster>();
  for (size_t i = 0; i < tokens.size(); ++i) (second[i] ? *two : *one).add(row_at(i));
  one->id = id;
  two->id = layer.next_id++;
  layer.clusters[place] = std::move(one);
  std::erase_if(layer.clusters, [&](const auto& cluster) { return cluster->waits_for == id; });
  layer.clusters.push_back(std::move(two));
  ++splits_;
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
    split(target, static_cast<size_t>(at - target.clusters.begin()), {}, fetch);
  }
}

int64_t MosaicIndex::bytes() const {
  size_t bytes = assigned_.size() * sizeof(int32_t);
  for (const auto& partition : partitions_) {
    bytes += partition->frames.mean.size() * sizeof(float);
    for (const auto& layer : partition->layers) {
      for (const auto& cluster : layer->clusters) {
        bytes += (cluster->keys.mean.size() + cluster->value.size()) * sizeof(float) +
                 cluster->tokens.size() * sizeof(int32_t);
      }
    }
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace kinora

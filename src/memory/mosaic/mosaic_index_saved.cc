// The index of a mosaic memory in a saved file, cluster by cluster.
#include <algorithm>
#include <utility>

#include "memory/mosaic/mosaic_index.h"

namespace kinora {
namespace {

void put(ByteWriter& out, const Cohesion& cohesion) {
  out.put(cohesion.count);
  out.put(cohesion.variance);
  out.put_all(cohesion.mean);
}

Cohesion get_cohesion(ByteReader& in) {
  Cohesion cohesion;
  cohesion.count = in.get<int64_t>();
  cohesion.variance = in.get<double>();
  cohesion.mean = in.all<float>();
  cohesion.measure();
  return cohesion;
}

void put(ByteWriter& out, const SemanticCluster& cluster) {
  put(out, cluster.keys);
  out.put(cluster.length);
  out.put_all(cluster.value);
  out.put_all(cluster.tokens);
  out.put(cluster.id);
  out.put(cluster.waits_for);
  out.put(static_cast<uint8_t>(cluster.loose));
}

SemanticCluster get_cluster(ByteReader& in, int64_t tokens, size_t width) {
  SemanticCluster cluster;
  cluster.keys = get_cohesion(in);
  cluster.length = in.get<double>();
  cluster.value = in.all<float>();
  cluster.tokens = in.all<int32_t>();
  cluster.id = in.get<int32_t>();
  cluster.waits_for = in.get<int32_t>();
  cluster.loose = in.get<uint8_t>() != 0;
  const bool fits = cluster.keys.mean.size() == width && cluster.value.size() == width &&
                    cluster.rows() == static_cast<int64_t>(cluster.tokens.size()) &&
                    !cluster.tokens.empty() && cluster.tokens.front() >= 0 &&
                    cluster.tokens.back() < tokens &&
                    std::is_sorted(cluster.tokens.begin(), cluster.tokens.end());
  if (!fits) in.refuse("holds a cluster of other rows");
  return cluster;
}

}  // namespace

std::string MosaicIndex::pack() const {
  ByteWriter out;
  out.put_all(assigned_);
  put(out, all_frames_);
  out.put(splits());
  for (const LayerIndex& layer : layers_) {
    out.put(layer.known);
    put(out, layer.all_keys);
  }
  out.put(static_cast<uint64_t>(partitions_.size()));
  for (size_t p = 0; p < partitions_.size(); ++p) {
    put(out, partitions_[p]->frames);
    for (size_t i = 0; i < layers_.size(); ++i) {
      const Layer& layer = this->layer(static_cast<int32_t>(p), static_cast<int>(i));
      out.put(layer.next_id);
      out.put(static_cast<uint64_t>(layer.clusters.size()));
      for (const auto& cluster : layer.clusters) put(out, *cluster);
    }
  }
  return out.bytes();
}

void MosaicIndex::unpack(ByteReader& in, int64_t tokens, size_t width) {
  assigned_ = in.all<int32_t>();
  all_frames_ = get_cohesion(in);
  const auto splits = in.get<int64_t>();
  for (LayerIndex& layer : layers_) {
    layer.splits = &layer == layers_.data() ? splits : 0;
    layer.clusters = 0;
    layer.known = in.get<int32_t>();
    layer.all_keys = get_cohesion(in);
    layer.partitions.clear();
    if (layer.known < 0 || layer.known > tokens) in.refuse("knows rows of no token");
  }
  partitions_.clear();
  const auto partitions = in.get<uint64_t>();
  for (uint64_t p = 0; p < partitions; ++p) {
    auto partition = std::make_shared<Partition>();
    partition->frames = get_cohesion(in);
    partitions_.push_back(std::move(partition));
    for (LayerIndex& index : layers_) {
      auto layer = std::make_shared<Layer>();
      layer->next_id = in.get<int32_t>();
      // Every row has begun a cluster at most, and every split of two rows or more another one.
      if (layer->next_id < 0 || layer->next_id > 2 * tokens) in.refuse("counts clusters wrongly");
      const auto clusters = in.get<uint64_t>();
      for (uint64_t c = 0; c < clusters; ++c) {
        layer->clusters.push_back(
            std::make_shared<const SemanticCluster>(get_cluster(in, tokens, width)));
      }
      for (const auto& cluster : layer->clusters) {
        if (cluster->id < 0 || cluster->id >= layer->next_id) in.refuse("holds a cluster twice");
      }
      find_places(*layer);
      index.clusters += static_cast<int64_t>(layer->clusters.size());
      index.partitions.push_back(std::move(layer));
    }
  }
  for (const int32_t partition : assigned_) {
    if (partition < 0 || static_cast<uint64_t>(partition) >= partitions) {
      in.refuse("holds frames of no cluster");
    }
  }
}

}  // namespace kinora

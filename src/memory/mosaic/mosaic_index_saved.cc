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

std::string MosaicIndex::pack_frames() const {
  ByteWriter out;
  out.put_all(assigned_);
  put(out, all_frames_);
  out.put(static_cast<uint64_t>(partitions_.size()));
  for (const auto& partition : partitions_) put(out, partition->frames);
  return out.bytes();
}

std::string MosaicIndex::pack_layer(int layer) const {
  ByteWriter out;
  const LayerIndex& index = layers_[static_cast<size_t>(layer)];
  out.put(index.known);
  out.put(index.splits);
  put(out, index.all_keys);
  for (size_t p = 0; p < partitions_.size(); ++p) {
    const Layer& rows = this->layer(static_cast<int32_t>(p), layer);
    out.put(rows.next_id);
    out.put(static_cast<uint64_t>(rows.clusters.size()));
    for (const auto& cluster : rows.clusters) put(out, *cluster);
  }
  return out.bytes();
}

void MosaicIndex::unpack_frames(ByteReader& in) {
  assigned_ = in.all<int32_t>();
  all_frames_ = get_cohesion(in);
  partitions_.clear();
  const auto partitions = in.get<uint64_t>();
  for (uint64_t p = 0; p < partitions; ++p) {
    auto partition = std::make_shared<Partition>();
    partition->frames = get_cohesion(in);
    partitions_.push_back(std::move(partition));
  }
  for (const int32_t partition : assigned_) {
    if (partition < 0 || static_cast<uint64_t>(partition) >= partitions) {
      in.refuse("holds frames of no cluster");
    }
  }
}

void MosaicIndex::unpack_layer(int layer, ByteReader& in, int64_t tokens, size_t width) {
  LayerIndex& index = layers_[static_cast<size_t>(layer)];
  index.known = in.get<int32_t>();
  index.splits = in.get<int64_t>();
  index.all_keys = get_cohesion(in);
  if (index.known < 0 || index.known > tokens) in.refuse("knows rows of no token");
  index.clusters = 0;
  index.stamp = next_stamp();
  index.partitions.clear();
  for (size_t p = 0; p < partitions_.size(); ++p) {
    auto rows = std::make_shared<Layer>();
    rows->next_id = in.get<int32_t>();
    // Every row has begun a cluster at most, and every split of two rows or more another one.
    if (rows->next_id < 0 || rows->next_id > 2 * tokens) in.refuse("counts clusters wrongly");
    rows->places.assign(static_cast<size_t>(rows->next_id), -1);
    const auto clusters = in.get<uint64_t>();
    std::vector<std::shared_ptr<SemanticCluster>> made;
    for (uint64_t c = 0; c < clusters; ++c) {
      made.push_back(std::make_shared<SemanticCluster>(get_cluster(in, index.known, width)));
      made.back()->stamp = index.stamp;
      const int32_t id = made.back()->id;
      if (id < 0 || id >= rows->next_id || rows->places[static_cast<size_t>(id)] >= 0) {
        in.refuse("holds a cluster twice");
      }
      rows->places[static_cast<size_t>(id)] = static_cast<int32_t>(c);
    }
    rows->clusters.assign(made.begin(), made.end());
    for (const auto& cluster : made) {
      if (cluster->waits_for < 0) continue;
      const SemanticCluster* loose = rows->find(cluster->waits_for);
      if (loose == nullptr || !loose->loose) in.refuse("holds rows that wait for no cluster");
      made[static_cast<size_t>(rows->places[static_cast<size_t>(loose->id)])]->waiting.push_back(
          cluster->id);
    }
    rows->stamp = index.stamp;
    rows->changes_after_ = index.stamp;
    index.clusters += static_cast<int64_t>(rows->clusters.size());
    index.partitions.push_back(std::move(rows));
  }
}

std::vector<int32_t> MosaicIndex::cluster_numbers(int layer) const {
  std::vector<int32_t> numbers(static_cast<size_t>(known(layer)), -1);
  int32_t next = 0;
  for (size_t p = 0; p < partitions_.size(); ++p) {
    for (const auto& cluster : this->layer(static_cast<int32_t>(p), layer).clusters) {
      for (const int32_t token : cluster->tokens) numbers[static_cast<size_t>(token)] = next;
      ++next;
    }
  }
  return numbers;
}

}  // namespace kinora

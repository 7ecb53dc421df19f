// All clusters of one layer of a mosaic index as a question looks at them: what it needs of each,
// side by side, so that thousands are gone through without touching the clusters themselves.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "memory/mosaic/mosaic_index.h"

namespace kinora {

struct ClusterList {
  // By place.
  std::vector<int32_t> partitions, ids;
  std::vector<uint64_t> stamps;
  std::vector<int32_t> rows;     // 0: the place is free
  std::vector<int32_t> middles;  // tokens of the middle rows
  std::vector<int32_t> newest;   // tokens of the newest rows
  std::vector<std::shared_ptr<const SemanticCluster>> clusters;
  // By partition: how many clusters it has, and how many rows these have.
  std::vector<int32_t> clusters_of;
  std::vector<int64_t> rows_of;
  int64_t clusters_in_all = 0;

  size_t count() const { return rows.size(); }
  // Puts a cluster at a place, which may be one behind the last. The list may be all that keeps it,
  // or only look at it (looked_at).
  void put(size_t place, int32_t partition, std::shared_ptr<const SemanticCluster> cluster);
  void clear(size_t place);
};

// Of each cluster of a list; 0 where a place is free.
std::vector<float> spreads_of(const ClusterList& list);

// A pointer that does not keep a cluster, so that its index changes it in place.
inline std::shared_ptr<const SemanticCluster> looked_at(const SemanticCluster& cluster) {
  return {std::shared_ptr<void>(), &cluster};
}

// One after another, partition by partition.
ClusterList list_clusters(const MosaicIndex& index, int layer);

// All clusters of a list by partition, and in each by the tokens of their middle rows.
struct ClusterOrder {
  std::span<const int32_t> places;     // of the clusters, in this order
  std::span<const int32_t> positions;  // by place: where a cluster stands in `places`
};
struct OwnClusterOrder {
  std::vector<int32_t> places, positions;

  explicit OwnClusterOrder(const ClusterList& list);
  ClusterOrder view() const { return {places, positions}; }
};

}  // namespace kinora

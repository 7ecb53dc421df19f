// All clusters of one layer of a mosaic index as a question looks at them: what it needs of each,
// side by side, so that thousands are gone through without touching the clusters themselves.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "memory/mosaic/mosaic_index.h"

namespace kinora {

struct ClusterList {
  std::vector<int32_t> partitions;
  std::vector<int32_t> rows;     // 0: the place is free
  std::vector<float> log_rows;   // their natural logarithms
  std::vector<int32_t> middles;  // tokens of the middle rows
  std::vector<int32_t> newest;   // tokens of the newest rows
  std::vector<std::shared_ptr<const SemanticCluster>> clusters;

  size_t count() const { return rows.size(); }
  // Puts a cluster at a place, which may be one behind the last.
  void put(size_t place, int32_t partition, std::shared_ptr<const SemanticCluster> cluster);
  void clear(size_t place);
};

// One after another, partition by partition.
ClusterList list_clusters(const MosaicIndex& index, int layer);

}  // namespace kinora

#include "memory/mosaic/cluster_list.h"

#include <cmath>
#include <utility>

namespace kinora {

void ClusterList::put(size_t place, int32_t partition,
                      std::shared_ptr<const SemanticCluster> cluster) {
  if (place == count()) {
    partitions.emplace_back();
    rows.emplace_back();
    log_rows.emplace_back();
    middles.emplace_back();
    newest.emplace_back();
    clusters.emplace_back();
  }
  partitions[place] = partition;
  rows[place] = static_cast<int32_t>(cluster->rows());
  log_rows[place] = std::log(static_cast<float>(rows[place]));
  middles[place] = cluster->tokens[cluster->tokens.size() / 2];
  newest[place] = cluster->tokens.back();
  clusters[place] = std::move(cluster);
}

void ClusterList::clear(size_t place) {
  rows[place] = 0;
  log_rows[place] = -INFINITY;
  clusters[place] = nullptr;
}

ClusterList list_clusters(const MosaicIndex& index, int layer) {
  ClusterList list;
  for (int32_t p = 0; p < static_cast<int32_t>(index.partitions().size()); ++p) {
    for (const auto& cluster : index.layer(p, layer).clusters) list.put(list.count(), p, cluster);
  }
  return list;
}

}  // namespace kinora

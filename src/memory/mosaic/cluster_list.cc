#include "memory/mosaic/cluster_list.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace kinora {

void ClusterList::put(size_t place, int32_t partition,
                      std::shared_ptr<const SemanticCluster> cluster) {
  if (place == count()) {
    partitions.emplace_back();
    ids.emplace_back();
    stamps.emplace_back();
    rows.emplace_back();
    middles.emplace_back();
    newest.emplace_back();
    clusters.emplace_back();
  }
  clear(place);
  const auto owner = static_cast<size_t>(partition);
  if (owner >= clusters_of.size()) {
    clusters_of.resize(owner + 1);
    rows_of.resize(owner + 1);
  }
  partitions[place] = partition;
  ids[place] = cluster->id;
  stamps[place] = cluster->stamp;
  rows[place] = static_cast<int32_t>(cluster->rows());
  middles[place] = cluster->tokens[cluster->tokens.size() / 2];
  newest[place] = cluster->tokens.back();
  clusters[place] = std::move(cluster);
  ++clusters_of[owner];
  rows_of[owner] += rows[place];
  ++clusters_in_all;
}

void ClusterList::clear(size_t place) {
  if (rows[place] == 0) return;
  const auto owner = static_cast<size_t>(partitions[place]);
  --clusters_of[owner];
  rows_of[owner] -= rows[place];
  --clusters_in_all;
  rows[place] = 0;
  clusters[place] = nullptr;
}

std::vector<float> spreads_of(const ClusterList& list) {
  std::vector<float> spreads(list.count());
  for (size_t place = 0; place < list.count(); ++place) {
    if (list.rows[place] > 0) spreads[place] = list.clusters[place]->spread();
  }
  return spreads;
}

ClusterList list_clusters(const MosaicIndex& index, int layer) {
  ClusterList list;
  for (int32_t p = 0; p < static_cast<int32_t>(index.partitions().size()); ++p) {
    for (const auto& cluster : index.layer(p, layer).clusters) list.put(list.count(), p, cluster);
  }
  return list;
}

OwnClusterOrder::OwnClusterOrder(const ClusterList& list) : positions(list.count(), -1) {
  for (size_t place = 0; place < list.count(); ++place) {
    if (list.rows[place] > 0) places.push_back(static_cast<int32_t>(place));
  }
  const auto key = [&](int32_t place) {
    const auto at = static_cast<size_t>(place);
    return std::tuple(list.partitions[at], list.middles[at]);
  };
  std::sort(places.begin(), places.end(), [&](int32_t a, int32_t b) { return key(a) < key(b); });
  for (size_t i = 0; i < places.size(); ++i) {
    positions[static_cast<size_t>(places[i])] = static_cast<int32_t>(i);
  }
}

}  // namespace kinora

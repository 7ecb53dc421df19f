// Which clusters of a layer a question reads whole, and which rows stand for those that it does
// not.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "memory/mosaic/cluster_list.h"

namespace kinora {

// Rows of each cluster that a question does not read: of most clusters all.
class UnreadRows {
 public:
  // At first only rows of tokens from `recent` on are read. The list must stay.
  explicit UnreadRows(const ClusterList& list, int32_t recent = none_is_recent);
  static constexpr int32_t none_is_recent = std::numeric_limits<int32_t>::max();

  const ClusterList& list() const { return *list_; }
  int32_t operator[](size_t place) const { return rows_[place]; }
  // Places of clusters of which not all rows are unread, in any order.
  std::span<const int32_t> changed() const { return changed_; }
  int64_t clusters() const { return clusters_; }  // that have unread rows
  std::vector<int64_t> rows_by_partition() const;
  std::vector<int32_t> clusters_by_partition() const;

  // The cluster is read whole.
  void read(size_t place);

 private:
  const ClusterList* list_;
  std::vector<int32_t> rows_;
  std::vector<int32_t> changed_;
  int64_t clusters_;
};

// Gives further places of clusters, best first, and nothing where there are no more.
using NextClusters = std::function<std::span<const int32_t>()>;

// Reads the best clusters, as far as they fit into this many rows. Gives their places and how many
// rows of each are read; the first ones, since those that are read anyway are the last.
struct ReadCluster {
  int32_t place = 0;
  int32_t rows = 0;
};
std::vector<ReadCluster> read_best(UnreadRows& unread, int64_t room, const NextClusters& next);

// Groups of clusters, each of which one row stands for.
struct ClusterGroups {
  bool ordered = false;               // ranges are of the list's order, else of `places`
  std::vector<int32_t> places;        // where it is not
  std::vector<int32_t> begins, ends;  // by group
  size_t count() const { return begins.size(); }
};
// Rows that stand for others: at the place of which token, by increasing tokens, and for how many.
struct StandInPlan {
  std::vector<int32_t> tokens;
  std::vector<float> weights;
  ClusterGroups groups;
};
// One row for each cluster with unread rows; where these are more than `most`, for each partition,
// and where those are more, for the largest of them. It stands in the middle of what it stands for:
// at the middle row of a cluster, or of the cluster in the middle. The order is needed only where
// there are more clusters than `most`.
StandInPlan plan_stand_ins(const UnreadRows& unread, const ClusterOrder& order, int64_t most);

}  // namespace kinora

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

  // The cluster is read whole, or has a row of its own that stands for it.
  void read(size_t place);

 private:
  const ClusterList* list_;
  std::vector<int32_t> rows_;
  std::vector<int32_t> changed_;
  int64_t clusters_;
};

// Gives further places of clusters, best first, and nothing where there are no more.
using NextClusters = std::function<std::span<const int32_t>()>;

// The first rows of a cluster, since those that are read anyway are the last.
struct ReadCluster {
  int32_t place = 0;
  int32_t rows = 0;
};
struct BestClusters {
  std::vector<ReadCluster> read;
  std::vector<int32_t> next;  // places of the best that are not, at most as many as were asked for
};
// Reads the best clusters, as far as they fit into this many rows. Looks at the best `room` +
// `more` of them and no further: none has less than a row, so that what then stays free is less
// than a cluster, and looking for a small one in a long list is not worth the time.
BestClusters read_best(UnreadRows& unread, int64_t room, int64_t more, const NextClusters& next);

// Groups of clusters, each of which one row stands for.
struct ClusterGroups {
  static constexpr int32_t alone = -1;  // as an end: the cluster at place `begin`
  std::vector<int32_t> begins, ends;    // by group, of the list's order
  size_t count() const { return begins.size(); }
};
// Rows that stand for others: at the place of which token, by increasing tokens, and for how many.
struct StandInPlan {
  std::vector<int32_t> tokens;
  std::vector<float> weights;
  ClusterGroups groups;
};
// One row for each cluster with unread rows. Where these are more than `most`: one for what is left
// of each partition, or of the largest of them. Of further ones half, rounded up, go to the best
// clusters, and the others cut what is left of partitions into pieces of about as many clusters
// each, in the list's order, which is that of time. A row stands in the middle of what it stands
// for: at the middle row of a cluster, or of the cluster in the middle. `best` are places, best
// first; those that have a row of their own count as read from then on. The order is needed only
// where there are more clusters than `most`.
StandInPlan plan_stand_ins(UnreadRows& unread, std::span<const int32_t> best,
                           const ClusterOrder& order, int64_t most);

}  // namespace kinora

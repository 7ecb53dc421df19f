#include "memory/mosaic/cluster_choice.h"

#include <algorithm>

namespace kinora {

UnreadRows::UnreadRows(const ClusterList& list, int32_t recent)
    : list_(&list), rows_(list.rows), clusters_(list.clusters_in_all) {
  if (recent == none_is_recent) return;
  for (size_t place = 0; place < rows_.size(); ++place) {
    if (list.newest[place] < recent || rows_[place] == 0) continue;
    const std::vector<int32_t>& tokens = list.clusters[place]->tokens;
    rows_[place] = static_cast<int32_t>(std::lower_bound(tokens.begin(), tokens.end(), recent) -
                                        tokens.begin());
    clusters_ -= rows_[place] == 0;
    changed_.push_back(static_cast<int32_t>(place));
  }
}

std::vector<int64_t> UnreadRows::rows_by_partition() const {
  std::vector<int64_t> rows = list_->rows_of;
  for (const int32_t any : changed_) {
    const auto place = static_cast<size_t>(any);
    rows[static_cast<size_t>(list_->partitions[place])] -= list_->rows[place] - rows_[place];
  }
  return rows;
}

std::vector<int32_t> UnreadRows::clusters_by_partition() const {
  std::vector<int32_t> clusters = list_->clusters_of;
  for (const int32_t any : changed_) {
    const auto place = static_cast<size_t>(any);
    clusters[static_cast<size_t>(list_->partitions[place])] -= rows_[place] == 0;
  }
  return clusters;
}

void UnreadRows::read(size_t place) {
  if (rows_[place] == 0) return;
  if (rows_[place] == list_->rows[place]) changed_.push_back(static_cast<int32_t>(place));
  rows_[place] = 0;
  --clusters_;
}

std::vector<ReadCluster> read_best(UnreadRows& unread, int64_t room, const NextClusters& next) {
  std::vector<ReadCluster> chosen;
  const auto fits = [&](size_t place) { return unread[place] > 0 && unread[place] <= room; };
  while (room > 0) {
    bool some = false;  // fits; else looking at the rest is in vain
    for (size_t place = 0; place < unread.list().count() && !some; ++place) some = fits(place);
    const std::span<const int32_t> best = some ? next() : std::span<const int32_t>();
    if (best.empty()) break;
    for (const int32_t any : best) {
      const auto place = static_cast<size_t>(any);
      if (!fits(place)) continue;
      chosen.push_back({any, unread[place]});
      room -= unread[place];
      unread.read(place);
    }
  }
  return chosen;
}

namespace {

struct StandIn {
  int32_t token = 0;
  int64_t rows = 0;
  int32_t begin = 0, end = 0;
};

// The token of a cluster's middle unread row.
int32_t middle_of(const UnreadRows& unread, size_t place) {
  const ClusterList& list = unread.list();
  if (unread[place] == list.rows[place]) return list.middles[place];
  return list.clusters[place]->tokens[static_cast<size_t>(unread[place]) / 2];
}

void each_cluster(const UnreadRows& unread, std::vector<StandIn>& all, ClusterGroups& groups) {
  for (size_t place = 0; place < unread.list().count(); ++place) {
    if (unread[place] == 0) continue;
    const auto at = static_cast<int32_t>(groups.places.size());
    groups.places.push_back(static_cast<int32_t>(place));
    all.push_back({middle_of(unread, place), unread[place], at, at + 1});
  }
}

// The middle ones of partitions. A partition's clusters lie side by side in the order; those that
// are read leave gaps there, of which there are few, and those that are read in part have another
// middle row than the order knows.
class Middles {
 public:
  Middles(const UnreadRows& unread, const ClusterOrder& order) : unread_(unread), order_(order) {
    for (const int32_t any : unread.changed()) {
      const auto place = static_cast<size_t>(any);
      if (unread[place] == 0) {
        gaps_.push_back(order.positions[place]);
      } else {
        partly_.push_back(unread.list().partitions[place]);
      }
    }
    std::sort(gaps_.begin(), gaps_.end());
    std::sort(partly_.begin(), partly_.end());
  }

  // Of a partition that is [begin, end) of the order and has this many clusters with unread rows.
  int32_t of(int32_t partition, int32_t begin, int32_t end, int32_t clusters) const {
    if (std::binary_search(partly_.begin(), partly_.end(), partition)) return search(begin, end);
    int32_t position = begin + clusters / 2;
    for (auto gap = std::lower_bound(gaps_.begin(), gaps_.end(), begin);
         gap != gaps_.end() && *gap <= position; ++gap) {
      ++position;
    }
    const auto place = static_cast<size_t>(order_.places[static_cast<size_t>(position)]);
    return unread_.list().middles[place];
  }

 private:
  int32_t search(int32_t begin, int32_t end) const {
    std::vector<int32_t> middles;
    for (int32_t i = begin; i < end; ++i) {
      const auto place = static_cast<size_t>(order_.places[static_cast<size_t>(i)]);
      if (unread_[place] > 0) middles.push_back(middle_of(unread_, place));
    }
    const auto middle = middles.begin() + std::ssize(middles) / 2;
    std::nth_element(middles.begin(), middle, middles.end());
    return *middle;
  }

  const UnreadRows& unread_;
  const ClusterOrder& order_;
  std::vector<int32_t> gaps_;    // positions of clusters that are read
  std::vector<int32_t> partly_;  // partitions of clusters that are read in part
};

void each_partition(const UnreadRows& unread, const ClusterOrder& order, int64_t most,
                    std::vector<StandIn>& all) {
  const std::vector<int64_t> rows = unread.rows_by_partition();
  const std::vector<int32_t> clusters = unread.clusters_by_partition();
  std::vector<int32_t> begins(rows.size() + 1), largest;
  for (size_t p = 0; p < rows.size(); ++p) {
    begins[p + 1] = begins[p] + unread.list().clusters_of[p];
    if (rows[p] > 0) largest.push_back(static_cast<int32_t>(p));
  }
  if (std::ssize(largest) > most) {
    const auto past = largest.begin() + most;
    std::nth_element(largest.begin(), past, largest.end(), [&](int32_t a, int32_t b) {
      const int64_t of_a = rows[static_cast<size_t>(a)], of_b = rows[static_cast<size_t>(b)];
      return of_a > of_b || (of_a == of_b && a < b);
    });
    largest.erase(past, largest.end());
  }
  const Middles middles(unread, order);
  for (const int32_t partition : largest) {
    const auto p = static_cast<size_t>(partition);
    const int32_t begin = begins[p], end = begins[p + 1];
    all.push_back({middles.of(partition, begin, end, clusters[p]), rows[p], begin, end});
  }
}

}  // namespace

StandInPlan plan_stand_ins(const UnreadRows& unread, const ClusterOrder& order, int64_t most) {
  StandInPlan plan;
  if (most <= 0) return plan;
  plan.groups.ordered = unread.clusters() > most;
  std::vector<StandIn> all;
  if (plan.groups.ordered) {
    each_partition(unread, order, most, all);
  } else {
    each_cluster(unread, all, plan.groups);
  }
  std::sort(all.begin(), all.end(),
            [](const StandIn& a, const StandIn& b) { return a.token < b.token; });
  for (const StandIn& one : all) {
    plan.tokens.push_back(one.token);
    plan.weights.push_back(static_cast<float>(one.rows));
    plan.groups.begins.push_back(one.begin);
    plan.groups.ends.push_back(one.end);
  }
  return plan;
}

}  // namespace kinora

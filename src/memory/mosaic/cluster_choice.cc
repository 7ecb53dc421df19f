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

BestClusters read_best(UnreadRows& unread, int64_t room, int64_t more, const NextClusters& next) {
  BestClusters best;
  for (int64_t left = room + more; left > 0;) {
    std::span<const int32_t> some = next();
    if (some.empty()) break;
    some = some.first(static_cast<size_t>(std::min(std::ssize(some), left)));
    left -= std::ssize(some);
    for (const int32_t any : some) {
      const auto place = static_cast<size_t>(any);
      if (unread[place] == 0) continue;
      if (unread[place] > room) {
        if (std::ssize(best.next) < more) best.next.push_back(any);
        continue;
      }
      best.read.push_back({any, unread[place]});
      room -= unread[place];
      unread.read(place);
    }
  }
  return best;
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

StandIn alone(const UnreadRows& unread, size_t place) {
  return {middle_of(unread, place), unread[place], static_cast<int32_t>(place),
          ClusterGroups::alone};
}

void each_cluster(const UnreadRows& unread, std::vector<StandIn>& all) {
  for (size_t place = 0; place < unread.list().count(); ++place) {
    if (unread[place] > 0) all.push_back(alone(unread, place));
  }
}

// Half of the rows that there are beyond one for each partition go to the best.
void best_clusters(UnreadRows& unread, std::span<const int32_t> best, int64_t most,
                   std::vector<StandIn>& all) {
  const std::vector<int32_t> left = unread.clusters_by_partition();
  most -= std::count_if(left.begin(), left.end(), [](int32_t n) { return n > 0; });
  for (const int32_t any : best) {
    if (std::ssize(all) >= (most + 1) / 2) break;
    const auto place = static_cast<size_t>(any);
    if (unread[place] == 0) continue;
    all.push_back(alone(unread, place));
    unread.read(place);
  }
}

// What is left of a partition, [begin, end) of the order, in pieces of as many clusters each.
void each_piece(const UnreadRows& unread, const ClusterOrder& order, int32_t begin, int32_t end,
                int64_t clusters, int64_t pieces, std::vector<StandIn>& all) {
  int64_t seen = 0;
  for (int64_t piece = 0; piece < pieces; ++piece) {
    const int64_t first = clusters * piece / pieces, past = clusters * (piece + 1) / pieces;
    StandIn one{0, 0, begin, begin};
    for (; seen < past; ++begin) {
      const auto place = static_cast<size_t>(order.places[static_cast<size_t>(begin)]);
      if (unread[place] == 0) continue;
      if (seen == first + (past - first) / 2) one.token = middle_of(unread, place);
      one.rows += unread[place];
      ++seen;
    }
    one.end = piece + 1 == pieces ? end : begin;
    all.push_back(one);
  }
}

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
  // A scene may last, or come again: where it is stood for in one place, so is its time. So what
  // rows there are beyond one for each partition cut them, by how many clusters they have.
  const int64_t further = most - std::ssize(largest), in_all = unread.clusters();
  for (const int32_t partition : largest) {
    const auto p = static_cast<size_t>(partition);
    const int64_t count = clusters[p];
    each_piece(unread, order, begins[p], begins[p + 1], count,
               std::min(count, 1 + further * count / in_all), all);
  }
}

}  // namespace

StandInPlan plan_stand_ins(UnreadRows& unread, std::span<const int32_t> best,
                           const ClusterOrder& order, int64_t most) {
  StandInPlan plan;
  if (most <= 0) return plan;
  std::vector<StandIn> all;
  if (unread.clusters() <= most) {
    each_cluster(unread, all);
  } else {
    best_clusters(unread, best, most, all);
    each_partition(unread, order, most - std::ssize(all), all);
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

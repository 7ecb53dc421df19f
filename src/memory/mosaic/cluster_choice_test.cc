// What a question reads of clusters, and what stands for the rest, against the definition gone
// through cluster by cluster.
#include "memory/mosaic/cluster_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "support/random_data.h"

namespace kinora {
namespace {

// Clusters of up to nine rows in some partitions, at places with gaps; tokens are mixed, as those
// of scenes that come again are.
ClusterList random_clusters(Random& random, int64_t count, int64_t partitions) {
  std::vector<int32_t> tokens(static_cast<size_t>(9 * count));
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i);
  for (size_t i = tokens.size(); i-- > 1;) {
    std::swap(tokens[i], tokens[static_cast<size_t>(random.below(static_cast<int64_t>(i + 1)))]);
  }
  ClusterList list;
  size_t next = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto cluster = [&] {
      auto made = std::make_shared<SemanticCluster>();
      made->keys.count = 1 + random.below(9);
      for (int64_t k = 0; k < made->keys.count; ++k) made->tokens.push_back(tokens[next++]);
      std::sort(made->tokens.begin(), made->tokens.end());
      return made;
    };
    const auto partition = static_cast<int32_t>(random.below(partitions));
    list.put(static_cast<size_t>(i), partition, cluster());
    // Some go again, and of their places some are taken by others.
    if (random.below(5) == 0) list.clear(static_cast<size_t>(i));
    if (random.below(10) == 0 && next + 9 * static_cast<size_t>(count - i) <= tokens.size()) {
      list.put(static_cast<size_t>(i), static_cast<int32_t>(random.below(partitions)), cluster());
    }
  }
  return list;
}

class ClusterChoice : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Counts, ClusterChoice, ::testing::Values(1, 2, 63, 65, 127, 129, 1000));

TEST_P(ClusterChoice, ListsCountTheirPartitions) {
  KINORA_FRESH_RANDOM(random);
  const ClusterList list = random_clusters(random, GetParam(), 1 + random.below(9));
  std::map<int32_t, std::pair<int64_t, int64_t>> expected;
  int64_t all = 0;
  for (size_t i = 0; i < list.count(); ++i) {
    if (list.rows[i] == 0) continue;
    ++expected[list.partitions[i]].first;
    expected[list.partitions[i]].second += list.rows[i];
    ++all;
  }
  EXPECT_EQ(list.clusters_in_all, all);
  for (int32_t p = 0; p < static_cast<int32_t>(list.rows_of.size()); ++p) {
    EXPECT_EQ(list.clusters_of[static_cast<size_t>(p)], expected[p].first);
    EXPECT_EQ(list.rows_of[static_cast<size_t>(p)], expected[p].second);
  }
}

TEST_P(ClusterChoice, ReadsTheBestThatFit) {
  KINORA_FRESH_RANDOM(random);
  const ClusterList list = random_clusters(random, GetParam(), 1 + random.below(9));
  const auto recent = static_cast<int32_t>(random.below(10 * GetParam()));
  UnreadRows unread(list, recent);
  std::vector<int64_t> rows(list.count());
  for (size_t i = 0; i < rows.size(); ++i) {
    if (list.rows[i] == 0) continue;
    const auto& tokens = list.clusters[i]->tokens;
    rows[i] = std::count_if(tokens.begin(), tokens.end(), [&](int32_t t) { return t < recent; });
    ASSERT_EQ(unread[i], rows[i]);
  }
  // In some order, given in pieces of any size.
  std::vector<int32_t> order;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] > 0) order.push_back(static_cast<int32_t>(i));
  }
  EXPECT_EQ(unread.clusters(), std::ssize(order));
  for (size_t i = order.size(); i-- > 1;) {
    std::swap(order[i], order[static_cast<size_t>(random.below(static_cast<int64_t>(i + 1)))]);
  }
  const int64_t room = random.below(6 * GetParam()), more = random.below(GetParam());
  std::vector<std::pair<int32_t, int64_t>> expected;
  std::vector<int32_t> next;
  int64_t left = room;
  for (int64_t i = 0; i < std::min(std::ssize(order), room + more); ++i) {
    const int32_t place = order[static_cast<size_t>(i)];
    const int64_t of_it = rows[static_cast<size_t>(place)];
    if (of_it <= left) {
      left -= of_it;
      expected.emplace_back(place, of_it);
    } else if (std::ssize(next) < more) {
      next.push_back(place);
    }
  }
  size_t given = 0;
  const BestClusters best = read_best(unread, room, more, [&] {
    const size_t some = std::min<size_t>(order.size() - given, 1 + random.below(40));
    given += some;
    return std::span<const int32_t>(order).subspan(given - some, some);
  });
  ASSERT_EQ(best.read.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(best.read[i].place, expected[i].first);
    EXPECT_EQ(best.read[i].rows, expected[i].second);
    EXPECT_EQ(unread[static_cast<size_t>(expected[i].first)], 0);
  }
  EXPECT_EQ(best.next, next);
  EXPECT_EQ(unread.clusters(), std::ssize(order) - std::ssize(expected));
}

// Groups of clusters, one by one and by partition, as they are said to be.
TEST_P(ClusterChoice, TheBestOfTheRestHaveRowsOfTheirOwn) {
  KINORA_FRESH_RANDOM(random);
  const ClusterList list = random_clusters(random, GetParam(), 1 + random.below(9));
  UnreadRows unread(list);
  std::vector<int32_t> best;
  for (size_t i = 0; i < list.count(); ++i) {
    if (list.rows[i] > 0) best.push_back(static_cast<int32_t>(i));
  }
  for (size_t i = best.size(); i-- > 1;) {
    std::swap(best[i], best[static_cast<size_t>(random.below(static_cast<int64_t>(i + 1)))]);
  }
  best.resize(static_cast<size_t>(random.below(std::ssize(best) + 1)));
  const int64_t most = random.below(1 + std::ssize(list.rows));
  const bool few = unread.clusters() <= most;
  int64_t all = 0;
  for (const int64_t rows : unread.rows_by_partition()) all += rows;
  const OwnClusterOrder order(list);
  const StandInPlan plan = plan_stand_ins(unread, best, order.view(), most);
  EXPECT_LE(std::ssize(plan.tokens), most);
  EXPECT_TRUE(std::is_sorted(plan.tokens.begin(), plan.tokens.end()));
  double rows = 0;
  std::vector<int32_t> alone;
  for (size_t g = 0; g < plan.groups.count(); ++g) {
    rows += double{plan.weights[g]};
    if (plan.groups.ends[g] != ClusterGroups::alone) continue;
    const auto place = static_cast<size_t>(plan.groups.begins[g]);
    alone.push_back(plan.groups.begins[g]);
    EXPECT_EQ(plan.weights[g], static_cast<float>(list.rows[place]));
    EXPECT_EQ(plan.tokens[g], list.middles[place]);
  }
  if (few) {
    EXPECT_EQ(alone.size(), static_cast<size_t>(list.clusters_in_all));
    return;
  }
  // They are the first of the best, as many as half of what is left when every partition has one.
  const auto partitions =
      std::count_if(list.clusters_of.begin(), list.clusters_of.end(), [](auto n) { return n > 0; });
  const int64_t half = std::max<int64_t>(0, (most - partitions + 1) / 2);
  EXPECT_EQ(std::ssize(alone), std::min(half, std::ssize(best)));
  std::vector<int32_t> first(best.begin(), best.begin() + std::ssize(alone));
  std::sort(first.begin(), first.end());
  std::sort(alone.begin(), alone.end());
  EXPECT_EQ(alone, first);
  if (partitions <= most) {
    EXPECT_EQ(rows, static_cast<double>(all));
  }
}

TEST_P(ClusterChoice, StandInsStandInTheMiddleOfTheRest) {
  KINORA_FRESH_RANDOM(random);
  const ClusterList list = random_clusters(random, GetParam(), 1 + random.below(40));
  UnreadRows unread(list, random.below(3) == 0 ? static_cast<int32_t>(random.below(10 * GetParam()))
                                               : UnreadRows::none_is_recent);
  for (int64_t i = random.below(GetParam()); i > 0; --i) {
    unread.read(static_cast<size_t>(random.below(GetParam())));
  }
  const int64_t most = random.below(1 + GetParam() / 2);
  const OwnClusterOrder order(list);
  const StandInPlan plan = plan_stand_ins(unread, {}, order.view(), most);

  struct Group {
    int64_t rows = 0;
    std::vector<int32_t> places;  // by time
    int32_t middle(const ClusterList& list, const UnreadRows& unread) const {
      const auto place = static_cast<size_t>(places[places.size() / 2]);
      return list.clusters[place]->tokens[static_cast<size_t>(unread[place]) / 2];
    }
  };
  std::map<int64_t, Group> by_number;
  int64_t clusters = 0;
  for (size_t i = 0; i < list.count(); ++i) clusters += unread[i] > 0;
  for (size_t i = 0; i < list.count(); ++i) {
    if (unread[i] == 0) continue;
    Group& group = by_number[clusters > most ? list.partitions[i] : static_cast<int64_t>(i)];
    group.rows += unread[i];
    group.places.push_back(static_cast<int32_t>(i));
  }
  std::vector<Group> whole, groups;
  for (auto& [number, group] : by_number) whole.push_back(std::move(group));
  std::stable_sort(whole.begin(), whole.end(),
                   [](const Group& a, const Group& b) { return a.rows > b.rows; });
  if (std::ssize(whole) > most) whole.resize(static_cast<size_t>(most));
  const int64_t further = most - std::ssize(whole);
  for (Group& group : whole) {
    std::sort(group.places.begin(), group.places.end(), [&](int32_t a, int32_t b) {
      return list.middles[static_cast<size_t>(a)] < list.middles[static_cast<size_t>(b)];
    });
    const int64_t count = std::ssize(group.places);
    const int64_t pieces = std::min(count, 1 + further * count / clusters);
    for (int64_t piece = 0; piece < pieces; ++piece) {
      Group part;
      for (int64_t i = count * piece / pieces; i < count * (piece + 1) / pieces; ++i) {
        part.places.push_back(group.places[static_cast<size_t>(i)]);
        part.rows += unread[static_cast<size_t>(part.places.back())];
      }
      groups.push_back(std::move(part));
    }
  }
  const auto middle = [&](const Group& group) { return group.middle(list, unread); };
  std::sort(groups.begin(), groups.end(),
            [&](const Group& a, const Group& b) { return middle(a) < middle(b); });
  for (Group& group : groups) {
    EXPECT_FALSE(group.places.empty());
  }

  ASSERT_EQ(plan.tokens.size(), groups.size());
  ASSERT_EQ(plan.groups.count(), groups.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    EXPECT_EQ(plan.tokens[g], middle(groups[g]));
    EXPECT_EQ(plan.weights[g], static_cast<float>(groups[g].rows));
    std::vector<int32_t> members;
    if (plan.groups.ends[g] == ClusterGroups::alone) members.push_back(plan.groups.begins[g]);
    for (int32_t i = plan.groups.begins[g]; i < plan.groups.ends[g]; ++i) {
      const int32_t place = order.places[static_cast<size_t>(i)];
      if (unread[static_cast<size_t>(place)] > 0) members.push_back(place);
    }
    std::sort(members.begin(), members.end());
    std::vector<int32_t> expected = groups[g].places;
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(members, expected);
  }
}

}  // namespace
}  // namespace kinora

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
  const int64_t room = random.below(6 * GetParam());
  std::vector<std::pair<int32_t, int64_t>> expected;
  int64_t left = room;
  for (const int32_t place : order) {
    const int64_t of_it = rows[static_cast<size_t>(place)];
    if (of_it > left) continue;
    left -= of_it;
    expected.emplace_back(place, of_it);
  }
  size_t given = 0;
  const std::vector<ReadCluster> read = read_best(unread, room, [&] {
    const size_t more = std::min<size_t>(order.size() - given, 1 + random.below(40));
    given += more;
    return std::span<const int32_t>(order).subspan(given - more, more);
  });
  ASSERT_EQ(read.size(), expected.size());
  for (size_t i = 0; i < read.size(); ++i) {
    EXPECT_EQ(read[i].place, expected[i].first);
    EXPECT_EQ(read[i].rows, expected[i].second);
    EXPECT_EQ(unread[static_cast<size_t>(read[i].place)], 0);
  }
  EXPECT_EQ(unread.clusters(), std::ssize(order) - std::ssize(read));
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
  const StandInPlan plan = plan_stand_ins(unread, order.view(), most);

  struct Group {
    int64_t number = 0, rows = 0;
    std::vector<int32_t> middles, places;
  };
  int64_t clusters = 0;
  for (size_t i = 0; i < list.count(); ++i) clusters += unread[i] > 0;
  std::map<int64_t, Group> by_number;
  for (size_t i = 0; i < list.count(); ++i) {
    if (unread[i] == 0) continue;
    const int64_t number = clusters > most ? list.partitions[i] : static_cast<int64_t>(i);
    Group& group = by_number[number];
    group.number = number;
    group.rows += unread[i];
    group.middles.push_back(list.clusters[i]->tokens[static_cast<size_t>(unread[i]) / 2]);
    group.places.push_back(static_cast<int32_t>(i));
  }
  std::vector<Group> groups;
  for (auto& [number, group] : by_number) groups.push_back(std::move(group));
  std::stable_sort(groups.begin(), groups.end(),
                   [](const Group& a, const Group& b) { return a.rows > b.rows; });
  if (std::ssize(groups) > most) groups.resize(static_cast<size_t>(most));
  for (Group& group : groups) std::sort(group.middles.begin(), group.middles.end());
  const auto middle = [](const Group& group) { return group.middles[group.middles.size() / 2]; };
  std::sort(groups.begin(), groups.end(),
            [&](const Group& a, const Group& b) { return middle(a) < middle(b); });

  ASSERT_EQ(plan.tokens.size(), groups.size());
  ASSERT_EQ(plan.groups.count(), groups.size());
  const std::vector<int32_t>& places = plan.groups.ordered ? order.places : plan.groups.places;
  for (size_t g = 0; g < groups.size(); ++g) {
    EXPECT_EQ(plan.tokens[g], middle(groups[g]));
    EXPECT_EQ(plan.weights[g], static_cast<float>(groups[g].rows));
    std::vector<int32_t> members;
    for (int32_t i = plan.groups.begins[g]; i < plan.groups.ends[g]; ++i) {
      const int32_t place = places[static_cast<size_t>(i)];
      if (unread[static_cast<size_t>(place)] > 0) members.push_back(place);
    }
    std::sort(members.begin(), members.end());
    EXPECT_EQ(members, groups[g].places);
  }
}

}  // namespace
}  // namespace kinora

// The table of clusters on a GPU against its definition, in double precision, and against the index
// that it mirrors, whatever happens to that.
#include "memory/mosaic/cluster_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "support/random_data.h"

namespace kinora {
namespace {

class ClusterTables : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    std::string why;
    if (cuda_devices(&why).empty()) GTEST_SKIP() << why;
  }

  // Rows of one layer that come from a few directions, frame by frame.
  void watch(Random& random, MosaicIndex& index, int frames) {
    for (int frame = 0; frame < frames; ++frame) {
      std::vector<float> embedding(5);
      for (float& x : embedding) {
        x = static_cast<float>(random.normal() * 0.1 + (frame / 7 % 3 == 0 ? 1 : -1));
      }
      const int32_t partition = index.add_frame(embedding);
      std::vector<MosaicRow> rows;
      const int32_t first = next_;
      for (int i = 0; i < 9; ++i) {
        auto& key = keys_[next_] = testing::random_floats(random, width, 1.0);
        for (size_t k = 0; k < key.size(); ++k) {
          key[k] += static_cast<float>(3 * std::sin(static_cast<double>(k) * (1 + i % 3)));
        }
        values_[next_++] = testing::random_floats(random, width, 1.0);
      }
      for (int32_t token = first; token < next_; ++token) {
        rows.push_back({token, keys_[token], values_[token]});
      }
      index.add_rows(0, partition, rows, [this](auto tokens, auto& keys, auto& values) {
        keys.clear();
        values.clear();
        for (const int32_t token : tokens) {
          keys.insert(keys.end(), keys_[token].begin(), keys_[token].end());
          values.insert(values.end(), values_[token].begin(), values_[token].end());
        }
        return true;
      });
    }
  }

  // Every cluster alone, as the GPU has it.
  void expect_mirrors(ClusterTable& table, const MosaicIndex& index) {
    const ClusterList& list = table.list(0);
    ClusterGroups each;
    std::vector<const SemanticCluster*> clusters;
    for (size_t place = 0; place < list.count(); ++place) {
      if (list.rows[place] == 0) continue;
      each.begins.push_back(static_cast<int32_t>(place));
      each.ends.push_back(ClusterGroups::alone);
      clusters.push_back(list.clusters[place].get());
    }
    size_t all = 0;
    for (int32_t p = 0; p < static_cast<int32_t>(index.partitions().size()); ++p) {
      for (const auto& cluster : index.layer(p, 0).clusters) {
        ++all;
        ASSERT_NE(std::find(clusters.begin(), clusters.end(), cluster.get()), clusters.end());
      }
    }
    ASSERT_EQ(clusters.size(), all);
    const auto [keys, values] = table.means(context_, 0, each, UnreadRows(list));
    const Tensor mean_keys = keys.to(Device::cpu()), mean_values = values.to(Device::cpu());
    const double rounding = GetParam() == DType::f32 ? 1e-6 : 1.0 / 256;
    for (size_t i = 0; i < clusters.size(); ++i) {
      const std::vector<float> key = clusters[i]->key();
      for (size_t k = 0; k < key.size(); ++k) {
        const size_t at = i * key.size() + k;
        ASSERT_NEAR(mean_keys.data<float>()[at], key[k], rounding * std::abs(key[k]) + 1e-6);
        const float value = clusters[i]->value[k];
        ASSERT_NEAR(mean_values.data<float>()[at], value, rounding * std::abs(value) + 1e-6);
      }
    }
  }

  static constexpr int64_t kv_heads = 2, head_size = 6, width = kv_heads * head_size;
  RowLayout layout_{1, kv_heads, head_size, GetParam()};
  const ThreadPool threads_{2};
  const Context context_{threads_, Device::cuda()};
  std::map<int32_t, std::vector<float>> keys_, values_;
  int32_t next_ = 0;
};

TEST_P(ClusterTables, FollowEveryIndex) {
  KINORA_FRESH_RANDOM(random);
  ClusterTable table(layout_, Device::cuda(), 8);
  MosaicIndex index({.cluster_rows = 8}, 1);
  std::vector<MosaicIndex> moments;
  for (int round = 0; round < 8; ++round) {
    watch(random, index, 5);
    moments.push_back(index);
    table.pack(0, index);
    table.upload(context_, 0);
    expect_mirrors(table, index);
  }
  // Forks take turns, and a mark brings back what was.
  for (int round = 0; round < 8; ++round) {
    const auto& any = moments[static_cast<size_t>(random.below(std::ssize(moments)))];
    table.pack(0, any);
    if (random.below(2) == 0) table.pack(0, index);  // before the first was uploaded
    table.upload(context_, 0);
    table.pack(0, any);
    table.upload(context_, 0);
    expect_mirrors(table, any);
  }
}

// More clusters than are collected in one piece, at once and over a table that has some.
TEST_P(ClusterTables, TakeManyClustersAtOnce) {
  KINORA_FRESH_RANDOM(random);
  MosaicIndex index({.cluster_rows = 1}, 1);
  watch(random, index, 20);
  ClusterTable grown(layout_, Device::cuda(), 8), fresh(layout_, Device::cuda(), 8);
  grown.pack(0, index);
  grown.upload(context_, 0);
  watch(random, index, 250 + static_cast<int>(random.below(100)));
  size_t clusters = 0;
  for (size_t p = 0; p < index.partitions().size(); ++p) {
    clusters += index.layer(static_cast<int32_t>(p), 0).clusters.size();
  }
  ASSERT_GT(clusters, 2048u);
  for (ClusterTable* table : {&grown, &fresh}) {
    table->pack(0, index);
    table->upload(context_, 0);
    expect_mirrors(*table, index);
  }
}

TEST_P(ClusterTables, RankAsAttentionWould) {
  KINORA_FRESH_RANDOM(random);
  for (const int64_t tokens : {1, 63, 65, 129}) {
    ClusterTable table(layout_, Device::cuda(), 8);
    MosaicIndex index({.cluster_rows = 8}, 1);
    watch(random, index, static_cast<int>(1 + random.below(40)));
    table.pack(0, index);
    table.upload(context_, 0);
    const ClusterList& list = table.list(0);
    std::vector<float> weights(list.count());
    for (float& weight : weights) weight = static_cast<float>(random.below(5));
    weights[0] = 1;  // somebody is there
    std::vector<float> logs;
    for (const float weight : weights) logs.push_back(std::log(weight));
    constexpr int64_t heads = 6;
    const std::vector<float> queries =
        testing::random_floats(random, static_cast<size_t>(tokens * heads * head_size), 1.0);
    Tensor there(DType::f32, {tokens, heads, head_size}, Device::cuda());
    copy_bytes(there.view().raw(), Device::cuda(), queries.data(), Device::cpu(),
               queries.size() * sizeof(float));
    for (const bool softmax : {true, false}) {
      const auto scores = table.scores(context_, 0, there, logs, softmax);
      // Factors are rounded once each, by at most u; a score s = Σ q k is then wrong by at most
      // 2 u Σ |q k| and e^s by that factor, as is the sum that divides it.
      const double u = GetParam() == DType::f32 ? 1e-6 : 1.0 / 256;
      std::vector<double> expected(list.count()), bound(list.count(), 1e-6);
      for (int64_t pair = 0; pair < tokens * heads; ++pair) {
        const float* query = queries.data() + pair * head_size;
        const int64_t kv_head = pair % heads / (heads / kv_heads);
        std::vector<double> row(list.count()), wrong(list.count());
        double largest = -INFINITY, sum = 0, worst = 0;
        for (size_t i = 0; i < row.size(); ++i) {
          const std::vector<float> key = list.clusters[i]->key();
          const double scale = softmax ? 1 / std::sqrt(double{head_size}) : 1;
          for (int64_t k = 0; k < head_size; ++k) {
            const double part = scale * double{query[k]} *
                                double{key[static_cast<size_t>(kv_head * head_size + k)]};
            row[i] += part;
            wrong[i] += 2 * u * std::abs(part);
          }
          if (softmax &&
              weights[i] > 0) {  // and what keys that differ get beyond (attention_mass.h)
            double squares = 0;
            for (int64_t k = 0; k < head_size; ++k) squares += double{query[k]} * double{query[k]};
            const double t = scale * std::sqrt(squares) * double{list.clusters[i]->spread()};
            const double most = std::sqrt(2 * std::log(double{weights[i]}));
            row[i] += t < most ? t * t / 2 : most * (t - most / 2);
            wrong[i] += 2e-6 * (t * t + most * most);
          }
          worst = std::max(worst, wrong[i]);
          if (softmax) row[i] += std::log(double{weights[i]});
          largest = std::max(largest, row[i]);
        }
        for (const double score : row) sum += std::exp(score - largest);
        for (size_t i = 0; i < row.size(); ++i) {
          if (weights[i] == 0) continue;
          const double share = softmax ? std::exp(row[i] - largest) / sum : row[i];
          expected[i] += share;
          bound[i] += softmax ? share * std::expm1(2 * worst) + 1e-6 * share : wrong[i];
        }
      }
      for (size_t i = 0; i < scores.size(); ++i) {
        ASSERT_NEAR(scores[i], expected[i], bound[i]) << i << (softmax ? " softmax" : " sum");
        if (weights[i] == 0) {
          ASSERT_EQ(scores[i], 0.0f);
        }
      }
      // The same question finds the same.
      ASSERT_EQ(scores, table.scores(context_, 0, there, logs, softmax));
    }
  }
}

TEST_P(ClusterTables, FindWhatIsNear) {
  KINORA_FRESH_RANDOM(random);
  for (const int64_t rows : {1, 63, 65, 300}) {
    ClusterTable table(layout_, Device::cuda(), 8);
    MosaicIndex index({.cluster_rows = 8}, 1);
    if (rows != 63) watch(random, index, static_cast<int>(1 + random.below(40)));
    table.pack(0, index);
    table.upload(context_, 0);
    const ClusterList& list = table.list(0);
    const std::vector<float> keys =
        testing::random_floats(random, static_cast<size_t>(rows * width), 2.0);
    std::vector<int32_t> partitions;
    for (int64_t i = 0; i < rows; ++i) {
      partitions.push_back(static_cast<int32_t>(random.below(3)));  // one may have no clusters
    }
    Tensor there(DType::f32, {rows, kv_heads, head_size}, Device::cuda());
    copy_bytes(there.view().raw(), Device::cuda(), keys.data(), Device::cpu(),
               keys.size() * sizeof(float));
    const Tensor near = table.nearest(context_, 0, there, partitions).to(Device::cpu());
    const auto cosine = [](const float* a, const float* b) {
      double ab = 0, aa = 0, bb = 0;
      for (int64_t k = 0; k < width; ++k) {
        ab += double{a[k]} * double{b[k]};
        aa += double{a[k]} * double{a[k]};
        bb += double{b[k]} * double{b[k]};
      }
      return ab / std::sqrt(aa * bb);
    };
    // Each of two unit vectors is rounded in every component: the product by twice that.
    const double rounding = GetParam() == DType::f32 ? 1e-5 : 2.0 / 256;
    for (int64_t i = 0; i < rows; ++i) {
      const float* key = keys.data() + i * width;
      const int32_t partition = partitions[static_cast<size_t>(i)];
      std::map<int32_t, double> clusters, earlier;
      for (size_t place = 0; place < list.count(); ++place) {
        const bool takes = list.rows[place] > 0 && list.rows[place] < 8;
        if (!takes || list.partitions[place] != partition) continue;
        clusters[static_cast<int32_t>(place)] = cosine(list.clusters[place]->key().data(), key);
      }
      for (int64_t k = 0; k < i; ++k) {
        if (partitions[static_cast<size_t>(k)] != partition) continue;
        earlier[static_cast<int32_t>(k)] = cosine(keys.data() + k * width, key);
      }
      for (const auto& [found, all] : {std::pair{near.data<int32_t>()[2 * i], &clusters},
                                       std::pair{near.data<int32_t>()[2 * i + 1], &earlier}}) {
        if (all->empty()) {
          ASSERT_EQ(found, -1);
          continue;
        }
        ASSERT_EQ(all->count(found), 1u) << found;
        for (const auto& [place, how] : *all) ASSERT_GE(all->at(found), how - 2 * rounding);
      }
    }
  }
}

// Some clusters are read whole, some in part.
UnreadRows some_read(Random& random, const ClusterList& list, int32_t next_token) {
  UnreadRows unread(list, random.below(2) == 0
                              ? UnreadRows::none_is_recent
                              : next_token - static_cast<int32_t>(random.below(30)));
  for (int64_t i = random.below(20); i > 0; --i) {
    unread.read(static_cast<size_t>(random.below(static_cast<int64_t>(list.count()))));
  }
  return unread;
}

TEST_P(ClusterTables, AreBroughtIntoOrderAndRanked) {
  KINORA_FRESH_RANDOM(random);
  // Clusters of one row are thousands: more than one block sorts.
  for (const auto& [frames, cluster_rows] : {std::pair{1, 8}, {3, 1}, {60, 8}, {400, 1}}) {
    ClusterTable table(layout_, Device::cuda(), 8);
    MosaicIndex index({.cluster_rows = cluster_rows}, 1);
    for (int round = 0; round < 3; ++round) {
      watch(random, index, frames);
      table.pack(0, index);
      table.upload(context_, 0);
      const ClusterList& list = table.list(0);
      const UnreadRows unread = some_read(random, list, next_);
      std::vector<int32_t> searched;
      if (random.below(2) == 0) {
        for (size_t p = 0; p < index.partitions().size(); ++p) {
          searched.push_back(static_cast<int32_t>(random.below(2)));
        }
      }
      std::vector<float> logs;
      int64_t counting = 0;
      for (size_t i = 0; i < list.count(); ++i) {
        const bool counts =
            searched.empty() || searched[static_cast<size_t>(list.partitions[i])] != 0;
        logs.push_back(counts ? std::log(static_cast<float>(unread[i])) : -INFINITY);
        counting += logs.back() > -INFINITY;
      }
      const bool softmax = random.below(2) == 0;
      const std::vector<float> queries = testing::random_floats(random, 7 * 6 * head_size, 1.0);
      Tensor there(DType::f32, {7, 6, head_size}, Device::cuda());
      copy_bytes(there.view().raw(), Device::cuda(), queries.data(), Device::cpu(),
                 queries.size() * sizeof(float));
      const std::vector<double> scores = table.scores(context_, 0, there, logs, softmax);
      // One at least: the order comes with it. A block finds up to 1,024, a sort all.
      const int64_t few = std::min<int64_t>(counting, 1 + random.below(1500));
      for (const int64_t wanted : {std::max<int64_t>(1, few), std::max<int64_t>(1, counting)}) {
        const auto best = table.best(context_, 0, there, softmax, unread, searched, wanted);
        ASSERT_EQ(std::ssize(best), wanted);
        std::vector<int32_t> found(best.begin(), best.end());
        found.resize(static_cast<size_t>(std::min(wanted, counting)));
        std::vector<bool> seen(list.count());
        double last = INFINITY;
        for (size_t i = 0; i < found.size(); ++i) {
          const auto place = static_cast<size_t>(found[i]);
          ASSERT_GT(logs[place], -INFINITY) << place;
          ASSERT_FALSE(seen[place]) << place;
          seen[place] = true;
          // Logarithms of a GPU differ in their last place.
          ASSERT_GE(last, scores[place] - 1e-5 * std::abs(scores[place]) - 1e-12) << i;
          last = scores[place];
        }
        for (size_t place = 0; place < list.count(); ++place) {  // nor is a better one left out
          if (seen[place] || !(logs[place] > -INFINITY)) continue;
          ASSERT_GE(last, scores[place] - 1e-5 * std::abs(scores[place]) - 1e-12) << place;
        }
      }
      const OwnClusterOrder expected(list);
      const ClusterOrder order = table.order(0);
      ASSERT_EQ(std::vector(order.places.begin(), order.places.end()), expected.places);
      for (const int32_t place : expected.places) {
        ASSERT_EQ(order.positions[static_cast<size_t>(place)],
                  expected.positions[static_cast<size_t>(place)]);
      }
    }
  }
}

TEST_P(ClusterTables, AddUpGroups) {
  KINORA_FRESH_RANDOM(random);
  ClusterTable table(layout_, Device::cuda(), 8);
  MosaicIndex index({.cluster_rows = 8}, 1);
  watch(random, index, 30);
  table.pack(0, index);
  table.upload(context_, 0);
  const ClusterList& list = table.list(0);
  const std::vector<float> query = testing::random_floats(random, 2 * head_size, 1.0);
  Tensor there(DType::f32, {1, 2, head_size}, Device::cuda());
  copy_bytes(there.view().raw(), Device::cuda(), query.data(), Device::cpu(), query.size() * 4);
  table.best(context_, 0, there, true, UnreadRows(list), {}, 1);
  for (int round = 0; round < 6; ++round) {
    const UnreadRows unread = some_read(random, list, next_);
    ClusterGroups groups;
    const ClusterOrder order = table.order(0);
    std::vector<std::vector<double>> expected;
    for (int g = 0; g < 13; ++g) {
      std::vector<double> sum(2 * width);
      double total = 0;
      const int64_t begin = random.below(std::ssize(order.places));
      const int64_t count = std::min(1 + random.below(200), std::ssize(order.places) - begin);
      const bool alone = random.below(3) == 0;  // one cluster, whether it is read or not
      for (int64_t i = 0; i < (alone ? 1 : count); ++i) {
        const auto place = static_cast<size_t>(order.places[static_cast<size_t>(begin + i)]);
        const SemanticCluster& cluster = *list.clusters[place];
        const std::vector<float> key = cluster.key();
        const double rows = alone ? 1 : double(unread[place]);
        for (size_t k = 0; k < key.size(); ++k) {
          sum[k] += rows * double{key[k]};
          sum[key.size() + k] += rows * double{cluster.value[k]};
        }
        total += rows;
      }
      if (total == 0) continue;  // of nothing there is no mean
      groups.begins.push_back(alone ? order.places[static_cast<size_t>(begin)]
                                    : static_cast<int32_t>(begin));
      groups.ends.push_back(alone ? ClusterGroups::alone : static_cast<int32_t>(begin + count));
      for (double& x : sum) x /= total;
      expected.push_back(std::move(sum));
    }
    const auto [keys, values] = table.means(context_, 0, groups, unread);
    const Tensor mean_keys = keys.to(Device::cpu()), mean_values = values.to(Device::cpu());
    // Members of a size up to about 15 are rounded once each.
    const double bound = 15 * (GetParam() == DType::f32 ? 1e-6 : 1.0 / 256);
    for (size_t g = 0; g < expected.size(); ++g) {
      for (size_t k = 0; k < width; ++k) {
        ASSERT_NEAR(mean_keys.data<float>()[g * width + k], expected[g][k], bound);
        ASSERT_NEAR(mean_values.data<float>()[g * width + k], expected[g][width + k], bound);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, ClusterTables, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& which) {
                           return which.param == DType::f32 ? "f32" : "bf16";
                         });

}  // namespace
}  // namespace kinora

// Clusters after any stream are what their rows say, wherever and whenever they were split.
#include "memory/mosaic/mosaic_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "support/random_data.h"

namespace kinora {
namespace {

constexpr size_t width = 9;

// Frames of a few rows each that come and go between scenes; every scene has its own kinds of rows.
class Stream {
 public:
  explicit Stream(Random& random) : random_(random) {
    for (int i = 0; i < 5; ++i) scenes_.push_back(testing::random_floats(random, 6));
    for (int i = 0; i < 12; ++i) kinds_.push_back(testing::random_floats(random, width, 2.0));
  }

  void add_frame(MosaicIndex& index, int layers = 1, bool fetch_loose = false) {
    if (random_.below(4) == 0) scene_ = static_cast<size_t>(random_.below(5));
    std::vector<float> embedding = scenes_[scene_];
    for (float& x : embedding) x += static_cast<float>(0.2 * random_.normal());
    add_frame(index, embedding, layers, fetch_loose);
  }
  void add_frame(MosaicIndex& index, const std::vector<float>& embedding, int layers,
                 bool fetch_loose) {
    embeddings.push_back(embedding);
    const int32_t partition = index.add_frame(embedding);
    const auto count = static_cast<size_t>(1 + random_.below(6));
    std::vector<int32_t> tokens;
    for (size_t i = 0; i < count; ++i) {
      tokens.push_back(next_++);
      std::vector<float> key = kinds_[(scene_ * 2 + static_cast<size_t>(random_.below(4))) % 12];
      for (float& x : key) x += static_cast<float>(0.4 * random_.normal());
      keys[tokens.back()] = key;
      values[tokens.back()] = testing::random_floats(random_, width);
    }
    if (random_.below(5) == 0) ++next_;  // text, or a row that was pruned
    for (int layer = 0; layer < layers; ++layer) {
      std::vector<MosaicRow> rows;
      for (const int32_t token : tokens) rows.push_back({token, keys[token], values[token]});
      if (advised) {
        index.add_near_rows(layer, partition, rows, advice(index, layer, partition, rows), fetch());
      } else {
        index.add_rows(layer, partition, rows, fetch());
      }
      if (fetch_loose) split_all(index, layer);
    }
  }
  void split_all(MosaicIndex& index, int layer) {
    for (int32_t p = 0; p < static_cast<int32_t>(index.partitions().size()); ++p) {
      std::vector<int32_t> ids;
      for (const auto& cluster : index.layer(p, layer).clusters) ids.push_back(cluster->id);
      index.split_loose(layer, p, ids, fetch());
    }
  }
  // Mostly the nearest cluster and the nearest row before; now and then anything.
  std::vector<NearRow> advice(const MosaicIndex& index, int layer, int32_t partition,
                              std::span<const MosaicRow> rows) {
    const auto cosine = [](std::span<const float> a, std::span<const float> b) {
      double ab = 0, aa = 0, bb = 0;
      for (size_t i = 0; i < a.size(); ++i) {
        ab += double{a[i]} * double{b[i]};
        aa += double{a[i]} * double{a[i]};
        bb += double{b[i]} * double{b[i]};
      }
      return ab / std::sqrt(aa * bb);
    };
    std::vector<NearRow> out(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      double most = -2;
      for (const auto& cluster : index.layer(partition, layer).clusters) {
        const double near = cosine(cluster->keys.mean, rows[i].key);
        if (near <= most) continue;
        most = near;
        out[i].cluster = cluster->id;
      }
      most = -2;
      for (size_t k = 0; k < i; ++k) {
        const double near = cosine(rows[k].key, rows[i].key);
        if (near <= most) continue;
        most = near;
        out[i].earlier = static_cast<int32_t>(k);
      }
      if (random_.below(10) == 0) out[i].cluster = static_cast<int32_t>(random_.below(50)) - 1;
    }
    return out;
  }
  FetchRows fetch() {
    return [this](std::span<const int32_t> tokens, std::vector<float>& some_keys,
                  std::vector<float>& some_values) {
      some_keys.clear();
      some_values.clear();
      for (const int32_t token : tokens) {
        some_keys.insert(some_keys.end(), keys.at(token).begin(), keys.at(token).end());
        some_values.insert(some_values.end(), values.at(token).begin(), values.at(token).end());
      }
      return true;
    };
  }

  std::map<int32_t, std::vector<float>> keys, values;
  std::vector<std::vector<float>> embeddings;
  bool advised = false;  // rows come with what is near to them

 private:
  Random& random_;
  std::vector<std::vector<float>> scenes_, kinds_;
  size_t scene_ = 0;
  int32_t next_ = 0;
};

// Mean and variance of vectors made one long, from scratch.
struct Scratch {
  std::vector<double> mean;
  double variance = 0, length = 0;

  explicit Scratch(const std::vector<std::vector<float>>& vectors) {
    std::vector<std::vector<double>> units;
    for (const auto& vector : vectors) {
      double sum = 0;
      for (const float x : vector) sum += double{x} * double{x};
      units.emplace_back();
      for (const float x : vector) units.back().push_back(double{x} / std::sqrt(sum));
      length += std::sqrt(sum) / static_cast<double>(vectors.size());
    }
    mean.assign(units[0].size(), 0.0);
    for (const auto& unit : units) {
      for (size_t k = 0; k < mean.size(); ++k)
        mean[k] += unit[k] / static_cast<double>(units.size());
    }
    for (const auto& unit : units) {
      for (size_t k = 0; k < mean.size(); ++k) {
        variance += (unit[k] - mean[k]) * (unit[k] - mean[k]) / static_cast<double>(units.size());
      }
    }
  }
};

void expect_cohesion(const Cohesion& cohesion, const Scratch& scratch) {
  ASSERT_EQ(cohesion.mean.size(), scratch.mean.size());
  for (size_t k = 0; k < scratch.mean.size(); ++k) {
    ASSERT_NEAR(double{cohesion.mean[k]}, scratch.mean[k], 1e-5);
  }
  ASSERT_NEAR(cohesion.variance, scratch.variance, 1e-5);
}

void expect_statistics(const MosaicIndex& index, Stream& stream, int layer, int64_t full) {
  std::vector<int32_t> all;
  for (int32_t p = 0; p < static_cast<int32_t>(index.partitions().size()); ++p) {
    std::vector<std::vector<float>> frames;
    for (int64_t f = 0; f < index.frames(); ++f) {
      if (index.partition_of(f) == p) frames.push_back(stream.embeddings[static_cast<size_t>(f)]);
    }
    ASSERT_EQ(index.partitions()[static_cast<size_t>(p)]->frames.count,
              static_cast<int64_t>(frames.size()));
    expect_cohesion(index.partitions()[static_cast<size_t>(p)]->frames, Scratch(frames));
    for (const auto& cluster : index.layer(p, layer).clusters) {
      ASSERT_EQ(cluster->rows(), static_cast<int64_t>(cluster->tokens.size()));
      ASSERT_LE(cluster->rows(), full);
      ASSERT_TRUE(std::is_sorted(cluster->tokens.begin(), cluster->tokens.end()));
      ASSERT_TRUE(cluster->waits_for < 0 || cluster->rows() == 1);
      std::vector<std::vector<float>> keys;
      std::vector<double> value(width);
      for (const int32_t token : cluster->tokens) {
        all.push_back(token);
        keys.push_back(stream.keys.at(token));
        for (size_t k = 0; k < width; ++k) {
          value[k] += double{stream.values.at(token)[k]} / static_cast<double>(cluster->rows());
        }
      }
      const Scratch scratch(keys);
      expect_cohesion(cluster->keys, scratch);
      ASSERT_NEAR(cluster->length, scratch.length, 1e-5);
      for (size_t k = 0; k < width; ++k) {
        ASSERT_NEAR(double{cluster->value[k]}, value[k], 1e-5);
        ASSERT_NEAR(double{cluster->key()[k]}, scratch.mean[k] * scratch.length, 1e-4);
      }
    }
  }
  // Every row is in one cluster.
  std::sort(all.begin(), all.end());
  std::vector<int32_t> expected;
  for (const auto& [token, key] : stream.keys) expected.push_back(token);
  ASSERT_EQ(all, expected);
}

TEST(MosaicIndex, StatisticsAreThoseOfTheRows) {
  KINORA_FRESH_RANDOM(random);
  for (const int64_t resident : {0, 1, 40, 1000}) {
    MosaicRules rules;
    rules.cluster_rows = 2 + random.below(20);
    rules.resident = resident == 1000 ? 0 : resident;
    MosaicIndex index(rules, 2);
    Stream stream(random);
    stream.advised = resident == 1000 || random.below(2) == 0;
    for (int frame = 0; frame < 120; ++frame) {
      stream.add_frame(index, 2);
      if (random.below(10) == 0) stream.split_all(index, 1);
      if (frame % 20 == 19) {
        // Rows that waited may make a cluster larger than it would have been.
        const int64_t full = rules.resident == 0 ? rules.cluster_rows : 1000;
        for (const int layer : {0, 1}) expect_statistics(index, stream, layer, full);
      }
    }
    EXPECT_GT(index.splits(), rules.resident == 0 ? 0 : -1);
    EXPECT_GT(index.partitions().size(), 1u);
    EXPECT_LT(index.partitions().size(), 60u);
  }
}

std::vector<std::vector<int32_t>> tokens_of(const MosaicIndex& index) {
  std::vector<std::vector<int32_t>> out;
  for (int32_t p = 0; p < static_cast<int32_t>(index.partitions().size()); ++p) {
    for (const auto& cluster : index.layer(p, 0).clusters) out.push_back(cluster->tokens);
  }
  return out;
}

// Rows one by one: a split that is put off and made before anything else happens is the split that
// would have been made at once.
TEST(MosaicIndex, APutOffSplitMadeAtOnceIsAnEagerOne) {
  KINORA_FRESH_RANDOM(random);
  MosaicRules eager_rules, lazy_rules;
  lazy_rules.resident = 1;
  MosaicIndex eager(eager_rules, 1), lazy(lazy_rules, 1);
  Stream stream(random);
  eager.add_frame(std::vector<float>(3, 1.0f));
  lazy.add_frame(std::vector<float>(3, 1.0f));
  int64_t splits = 0;
  for (int32_t token = 0; token < 300; ++token) {
    stream.keys[token] = testing::random_floats(random, width);
    if (token % 3 > 0) {  // near an earlier one
      for (size_t k = 0; k < width; ++k) {
        stream.keys[token][k] = stream.keys[token - token % 3][k] + 0.1f * stream.keys[token][k];
      }
    }
    stream.values[token] = testing::random_floats(random, width);
    const MosaicRow row{token, stream.keys[token], stream.values[token]};
    eager.add_rows(0, 0, {&row, 1}, stream.fetch());
    lazy.add_rows(0, 0, {&row, 1}, stream.fetch());
    stream.split_all(lazy, 0);
    ASSERT_EQ(tokens_of(lazy), tokens_of(eager)) << "token " << token;
    splits = eager.splits();
    ASSERT_EQ(lazy.splits(), splits);
  }
  EXPECT_GT(splits, 5);
}

TEST(MosaicIndex, PuttingSplitsOffLosesNoRowAndMakesFewer) {
  KINORA_FRESH_RANDOM(random);
  // In one stream every split that was put off may still come; over several some do not.
  int64_t splits[2] = {};
  for (int run = 0; run < 16; ++run) {
    const uint64_t seed = random.next();
    for (const int which : {0, 1}) {
      Random same(seed);
      MosaicRules rules;
      rules.resident = which == 0 ? 0 : 16;
      MosaicIndex index(rules, 1);
      Stream stream(same);
      for (int frame = 0; frame < 200; ++frame) stream.add_frame(index);
      expect_statistics(index, stream, 0, 1000);
      splits[which] += index.splits();
      stream.split_all(index, 0);
      expect_statistics(index, stream, 0, 1000);
    }
  }
  EXPECT_LT(splits[1], splits[0]);
}

// Rows of no kind at all, which nothing could put together: the index stays small all the same.
TEST(MosaicIndex, StaysAsSmallAsItIsTold) {
  KINORA_FRESH_RANDOM(random);
  for (const bool advised : {false, true}) {
    MosaicIndex index({.cluster_rows = 24, .mean_rows = 12}, 1);
    std::vector<std::vector<float>> keys;
    for (int32_t group = 0; group < 40; ++group) {
      const int32_t partition = index.add_frame(std::vector<float>{1, 2, 3});
      std::vector<MosaicRow> rows;
      std::vector<NearRow> near;
      keys.clear();
      for (int i = 0; i < 30; ++i) keys.push_back(testing::random_floats(random, width));
      for (int32_t i = 0; i < 30; ++i) {
        rows.push_back(
            {30 * group + i, keys[static_cast<size_t>(i)], keys[static_cast<size_t>(i)]});
        NearRow one{-1, i - 1};
        for (const auto& cluster : index.layer(partition, 0).clusters) {
          if (cluster->rows() < 24) one.cluster = cluster->id;
        }
        near.push_back(one);
      }
      const FetchRows none = [](auto&&...) { return false; };
      advised ? index.add_near_rows(0, partition, rows, near, none)
              : index.add_rows(0, partition, rows, none);
    }
    int64_t waiting = 0;
    for (const auto& cluster : index.layer(0, 0).clusters) waiting += cluster->waits_for >= 0;
    EXPECT_LE(std::ssize(index.layer(0, 0).clusters), 1200 / 12 + 2) << waiting << " wait";
  }
}

// The stages one by one, as they are compared with both.
TEST(MosaicIndex, GroupsByWhatItIsToldTo) {
  KINORA_FRESH_RANDOM(random);
  for (const bool advised : {false, true}) {
    MosaicRules rules;
    rules.cluster_rows = 2 + random.below(12);
    const auto watched = [&](ClusterBy by, Stream& stream) {
      rules.by = by;
      MosaicIndex index(rules, 1);
      stream.advised = advised;
      for (int frame = 0; frame < 60; ++frame) stream.add_frame(index);
      expect_statistics(index, stream, 0, rules.most_rows());
      return index;
    };
    const auto lists = [](const MosaicIndex& index) {
      std::vector<std::vector<int32_t>> all;
      for (int32_t p = 0; p < static_cast<int32_t>(index.partitions().size()); ++p) {
        for (const auto& cluster : index.layer(p, 0).clusters) all.push_back(cluster->tokens);
      }
      return all;
    };
    Stream both(random), seen(random), keys(random), rows(random);
    EXPECT_GT(watched(ClusterBy::nested, both).partitions().size(), 1u);

    const MosaicIndex visual = watched(ClusterBy::visual, seen);
    EXPECT_GT(visual.partitions().size(), 1u);
    EXPECT_EQ(visual.splits(), 0);
    for (int32_t p = 0; p < static_cast<int32_t>(visual.partitions().size()); ++p) {
      // All but the last are full, and one begins where the one before it ends.
      const auto& clusters = visual.layer(p, 0).clusters;
      for (size_t i = 0; i + 1 < clusters.size(); ++i) {
        EXPECT_EQ(clusters[i]->rows(), rules.cluster_rows);
        EXPECT_LT(clusters[i]->tokens.back(), clusters[i + 1]->tokens.front());
      }
    }

    const MosaicIndex semantic = watched(ClusterBy::semantic, keys);
    EXPECT_EQ(semantic.partitions().size(), 1u);
    EXPECT_GT(lists(semantic).size(), 1u);

    const MosaicIndex nothing = watched(ClusterBy::nothing, rows);
    EXPECT_EQ(nothing.partitions().size(), 1u);
    EXPECT_EQ(lists(nothing).size(), rows.keys.size());
  }
}

// However many rows are alike, one that is not does not go with them: their variance hardly
// changes.
TEST(MosaicIndex, ARowUnlikeManyStaysApart) {
  KINORA_FRESH_RANDOM(random);
  for (const bool at_hand : {true, false}) {
    MosaicRules rules;
    rules.cluster_rows = 64;
    rules.resident = at_hand ? 0 : 1;
    MosaicIndex index(rules, 1);
    std::map<int32_t, std::vector<float>> keys;
    const std::vector<float> usual = testing::random_floats(random, width),
                             other = testing::random_floats(random, width);
    const auto add = [&](int32_t token, const std::vector<float>& like) {
      keys[token] = like;
      for (float& x : keys[token]) x += static_cast<float>(0.01 * random.normal());
      const MosaicRow row{token, keys[token], keys[token]};
      index.add_rows(0, 0, {&row, 1}, [&](auto tokens, auto& some, auto& values) {
        some.clear();
        for (const int32_t one : tokens) {
          some.insert(some.end(), keys[one].begin(), keys[one].end());
        }
        values = some;
        return true;
      });
    };
    index.add_frame(std::vector<float>{1, 0});
    // The layer has seen both before, so that it knows how far apart its rows are.
    for (int32_t token = 0; token < 8; ++token) add(token, token % 2 == 0 ? usual : other);
    for (int32_t token = 8; token < 50; ++token) add(token, usual);
    for (const auto& cluster : index.layer(0, 0).clusters) {
      for (const int32_t token : cluster->tokens) {
        const auto is_other = [](int32_t any) { return any < 8 && any % 2 != 0; };
        ASSERT_EQ(is_other(token), is_other(cluster->tokens.front())) << token;
      }
    }
    const std::vector<float> third = testing::random_floats(random, width);
    add(50, third);
    for (const auto& cluster : index.layer(0, 0).clusters) {
      if (cluster->tokens.back() == 50) {
        EXPECT_EQ(cluster->rows(), 1);
      }
    }
  }
}

// Rows that are all alike fill one cluster after another, though all are told of the same one.
TEST(MosaicIndex, AFullClusterIsGoneOnWith) {
  KINORA_FRESH_RANDOM(random);
  MosaicIndex index({.cluster_rows = 8}, 1);
  const int32_t partition = index.add_frame(std::vector<float>{1, 2, 3});
  const std::vector<float> shown = testing::random_floats(random, width, 2.0);
  std::vector<std::vector<float>> keys;
  std::vector<MosaicRow> rows;
  std::vector<NearRow> near;
  for (int32_t i = 0; i < 100; ++i) {
    keys.push_back(shown);
    for (float& x : keys.back()) x *= static_cast<float>(1 + 1e-4 * random.normal());
  }
  for (int32_t i = 0; i < 100; ++i) {
    rows.push_back({i, keys[static_cast<size_t>(i)], keys[static_cast<size_t>(i)]});
    near.push_back({-1, i == 0 ? -1 : static_cast<int32_t>(random.below(std::min(i, 5)))});
  }
  index.add_near_rows(0, partition, rows, near, [](auto&&...) { return false; });
  EXPECT_EQ(index.layer(0, 0).clusters.size(), 13u);
}

// What is near was found before a group's rows came. A cluster that the first of them split is not
// what it was, and rows like those that left it follow them.
TEST(MosaicIndex, RowsFollowTheirLikesOutOfASplitCluster) {
  KINORA_FRESH_RANDOM(random);
  constexpr size_t kinds = 7, group = 16;
  MosaicIndex index({.semantic = {.strict = 1e-4, .loose = 1e-4}, .cluster_rows = 240}, 1);
  const int32_t partition = index.add_frame(std::vector<float>{1, 2, 3});
  std::vector<std::vector<float>> shown;
  for (size_t i = 0; i < kinds; ++i) shown.push_back(testing::random_floats(random, width, 1.0));
  std::vector<size_t> all;  // kinds of all rows
  const auto cosine = [](std::span<const float> a, std::span<const float> b) {
    double product = 0, x = 0, y = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      product += double{a[i]} * double{b[i]};
      x += double{a[i]} * double{a[i]};
      y += double{b[i]} * double{b[i]};
    }
    return product / std::sqrt(x * y);
  };
  const FetchRows fetch = [&](std::span<const int32_t> tokens, std::vector<float>& keys,
                              std::vector<float>& values) {
    keys.clear();
    for (const int32_t token : tokens) {
      const auto& key = shown[all[static_cast<size_t>(token)]];
      keys.insert(keys.end(), key.begin(), key.end());
    }
    values = keys;
    return true;
  };
  for (int round = 0; round < 15; ++round) {
    const size_t first = all.size();
    std::vector<MosaicRow> rows;
    std::vector<NearRow> near;
    for (size_t i = 0; i < group; ++i) {
      all.push_back(static_cast<size_t>(random.below(kinds)));
      const auto& key = shown[all.back()];
      rows.push_back({static_cast<int32_t>(first + i), key, key});
      NearRow one;
      double best = -2;
      for (const auto& cluster : index.layer(partition, 0).clusters) {
        if (const double now = cosine(cluster->keys.mean, key); now > best) {
          best = now;
          one.cluster = cluster->id;
        }
      }
      best = -2;
      for (size_t earlier = 0; earlier < i; ++earlier) {
        if (const double now = cosine(shown[all[first + earlier]], key); now > best) {
          best = now;
          one.earlier = static_cast<int32_t>(earlier);
        }
      }
      near.push_back(one);
    }
    index.add_near_rows(0, partition, rows, near, fetch);
  }
  const std::set<size_t> seen(all.begin(), all.end());
  EXPECT_EQ(index.layer(partition, 0).clusters.size(), seen.size());
}

// A picture that stands still: its rows differ by the rounding to bf16 and are one cluster.
TEST(MosaicIndex, RoundingSplitsNothing) {
  KINORA_FRESH_RANDOM(random);
  MosaicIndex index({.cluster_rows = 1000}, 1);
  const std::vector<float> shown = testing::random_floats(random, 64, 2.0);
  const FetchRows never = [](auto&&...) {
    ADD_FAILURE() << "a cluster was split";
    return false;
  };
  for (int32_t frame = 0; frame < 20; ++frame) {
    const int32_t partition = index.add_frame(std::vector<float>{1, 2, 3});
    std::vector<float> key = shown;
    for (float& x : key) x *= static_cast<float>(1 + (random.uniform() - 0.5) / 128);  // 2^-8 of x
    const MosaicRow row{frame, key, key};
    index.add_rows(0, partition, {&row, 1}, never);
  }
  ASSERT_EQ(index.partitions().size(), 1u);
  EXPECT_EQ(index.layer(0, 0).clusters.size(), 1u);
}

TEST(MosaicIndex, CopiesShareWhatNeitherChanges) {
  KINORA_FRESH_RANDOM(random);
  MosaicIndex index(MosaicRules(), 1);
  Stream stream(random);
  for (int frame = 0; frame < 60; ++frame) stream.add_frame(index);
  const MosaicIndex before = index;
  const auto tokens = tokens_of(before);
  for (int frame = 0; frame < 5; ++frame) stream.add_frame(index);
  EXPECT_EQ(tokens_of(before), tokens);
  EXPECT_NE(tokens_of(index), tokens);
  size_t shared = 0;
  for (size_t p = 0; p < before.partitions().size(); ++p) {
    const auto partition = static_cast<int32_t>(p);
    shared += &before.layer(partition, 0) == &index.layer(partition, 0);
  }
  EXPECT_GT(shared + 5, before.partitions().size() - 1);
  EXPECT_GT(index.bytes(), before.bytes());
}

// An index that shares nothing is changed where it is.
TEST(MosaicIndex, WhatNobodySharesChangesInPlace) {
  KINORA_FRESH_RANDOM(random);
  MosaicIndex index({.visual = {.strict = 10, .loose = 10}}, 1);  // one scene
  Stream stream(random);
  for (int frame = 0; frame < 20; ++frame) stream.add_frame(index);
  const MosaicIndex::Layer* const there = &index.layer(0, 0);
  stream.add_frame(index);
  EXPECT_EQ(&index.layer(0, 0), there);
  const MosaicIndex copy = index;
  const auto tokens = tokens_of(copy);
  stream.add_frame(index);
  EXPECT_NE(&index.layer(0, 0), there);
  EXPECT_EQ(&copy.layer(0, 0), there);
  EXPECT_EQ(tokens_of(copy), tokens);
}

// Whoever looked at an index before is told of every cluster that is another one now, or is told to
// look at all of them.
TEST(MosaicIndex, KnowsWhatHasChanged) {
  KINORA_FRESH_RANDOM(random);
  int64_t told = 0;
  for (const bool advised : {false, true}) {
    MosaicIndex index({.cluster_rows = 8, .resident = 40}, 1);
    Stream stream(random);
    stream.advised = advised;
    std::vector<MosaicIndex> moments{index};
    for (int frame = 0; frame < 400; ++frame) {
      stream.add_frame(index, 1, random.below(5) == 0);
      if (random.below(10) == 0) moments.push_back(index);
      if (random.below(60) == 0) {  // a fork goes on
        index = moments[static_cast<size_t>(random.below(std::ssize(moments)))];
      }
      const MosaicIndex& earlier =
          random.below(2) == 0 ? moments.back()
                               : moments[static_cast<size_t>(random.below(std::ssize(moments)))];
      for (int32_t p = 0; p < static_cast<int32_t>(index.partitions().size()); ++p) {
        const MosaicIndex::Layer &now = index.layer(p, 0), &before = earlier.layer(p, 0);
        if (now.stamp == before.stamp) {
          ASSERT_EQ(now.clusters, before.clusters);
          continue;
        }
        std::vector<int32_t> ids;
        if (!now.changed_since(before.stamp, ids)) continue;
        ++told;
        for (int32_t id = 0; id < std::max(now.next_id, before.next_id); ++id) {
          if (now.find(id) == before.find(id)) continue;
          ASSERT_NE(std::find(ids.begin(), ids.end(), id), ids.end()) << "cluster " << id;
        }
      }
    }
  }
  EXPECT_GT(told, 100);
}

// Where no split can be made, loose clusters fill up with the rows that wait, and what comes then
// goes to clusters of its own kind: not every row of a long stream waits alone.
TEST(MosaicIndex, RowsDoNotWaitWithoutEnd) {
  KINORA_FRESH_RANDOM(random);
  for (const bool advised : {false, true}) {
    MosaicIndex index({.visual = {.strict = 10, .loose = 10}, .cluster_rows = 8, .resident = 1}, 1);
    Stream stream(random);
    stream.advised = advised;
    for (int frame = 0; frame < 400; ++frame) stream.add_frame(index);
    const MosaicIndex::Layer& layer = index.layer(0, 0);
    std::map<int32_t, int64_t> waiting;
    for (const auto& cluster : layer.clusters) {
      if (cluster->waits_for >= 0) ++waiting[cluster->waits_for];
    }
    EXPECT_FALSE(waiting.empty());
    for (const auto& [id, count] : waiting) {
      ASSERT_NE(layer.find(id), nullptr);
      EXPECT_TRUE(layer.find(id)->loose);
      EXPECT_EQ(std::ssize(layer.find(id)->waiting), count);
      EXPECT_LE(layer.find(id)->rows() + count, 8);
    }
    expect_statistics(index, stream, 0, 8);
    stream.split_all(index, 0);
    for (const auto& cluster : index.layer(0, 0).clusters) EXPECT_LT(cluster->waits_for, 0);
    expect_statistics(index, stream, 0, 8);
  }
}

// A layer of a saved file with two clusters of a row each, as `pack_layer` writes it.
std::string two_clusters(const int32_t (&ids)[2], const int32_t (&waits_for)[2], bool loose) {
  ByteWriter out;
  const auto put = [&](int64_t count) {
    out.put(count);
    out.put(0.0);
    out.put_all(std::vector<float>{1, 0});
  };
  out.put(int32_t{2});
  out.put(int64_t{0});
  put(2);
  out.put(int32_t{2});  // ids
  out.put(uint64_t{2});
  for (int32_t i = 0; i < 2; ++i) {
    put(1);
    out.put(1.0);
    out.put_all(std::vector<float>{0, 1});
    out.put_all(std::vector<int32_t>{i});
    out.put(ids[i]);
    out.put(waits_for[i]);
    out.put(static_cast<uint8_t>(i == 0 && loose));
  }
  return out.bytes();
}

TEST(MosaicIndex, SavedClustersThatDoNotFitTogetherAreRefused) {
  const auto error_of = [](const std::string& bytes) -> std::string {
    MosaicIndex index(MosaicRules(), 1);
    index.add_frame(std::vector<float>{1, 2});
    ByteReader in(bytes, "talk.kinora");
    try {
      index.unpack_layer(0, in, 2, 2);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(error_of(two_clusters({0, 1}, {-1, 0}, true)), "");
  EXPECT_NE(error_of(two_clusters({1, 1}, {-1, -1}, true)).find("a cluster twice"),
            std::string::npos);
  EXPECT_NE(error_of(two_clusters({0, 2}, {-1, -1}, true)).find("a cluster twice"),
            std::string::npos);
  const std::string none = "holds rows that wait for no cluster";
  EXPECT_NE(error_of(two_clusters({0, 1}, {-1, 0}, false)).find(none), std::string::npos);
  EXPECT_NE(error_of(two_clusters({0, 1}, {-1, 7}, true)).find(none), std::string::npos);
  EXPECT_NE(error_of(two_clusters({0, 1}, {-1, 1}, true)).find(none), std::string::npos);
}

TEST(MosaicClusters, SplitApartWhatLiesApart) {
  KINORA_FRESH_RANDOM(random);
  for (const size_t count : {2, 3, 17, 64}) {
    std::vector<float> points;
    std::vector<bool> expected;
    for (size_t i = 0; i < count; ++i) {
      expected.push_back(i + 1 == count || random.below(2) == 0);
      std::vector<float> point(width);
      for (float& x : point) x = static_cast<float>(0.1 * random.normal());
      point[expected.back() ? 1 : 0] += 1;
      make_unit(point);
      points.insert(points.end(), point.begin(), point.end());
    }
    if (std::count(expected.begin(), expected.end(), false) == 0) continue;
    std::vector<bool> second = split_in_two(points, width);
    if (second != expected) second.flip();
    EXPECT_EQ(second, expected);
  }
  // Equal points fall in two halves.
  const std::vector<float> equal(5 * width, 1.0f / 3);
  const std::vector<bool> halves = split_in_two(equal, width);
  EXPECT_EQ(std::count(halves.begin(), halves.end(), true), 2);
}

TEST(MosaicClusters, ThresholdsRelaxAsClustersGrow) {
  const LoosenessRule rule{.strict = 0.2, .loose = 0.6, .transition = 10};
  EXPECT_NEAR(rule.threshold(0, 2.0), 0.4, 1e-12);
  EXPECT_NEAR(rule.threshold(10, 1.0), 0.6 - 0.4 * std::exp(-1.0), 1e-12);
  EXPECT_NEAR(rule.threshold(100000, 1.0), 0.6, 1e-12);
}

}  // namespace
}  // namespace kinora

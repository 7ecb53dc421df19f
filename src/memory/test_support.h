// Memories compared with plain vectors of what they must hold. Every token of a test has a unique
// stamp, and everything about it follows from the stamp, so that any mix-up shows.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "attention/cuda/device_test_support.h"
#include "memory/memory.h"
#include "memory/retention/retention.h"

namespace kinora::testing {

constexpr int64_t row_width = 8;  // 2 kv heads of 4
inline const RowLayout three_layers{3, 2, 4, DType::f32};

// What a memory must hold.
struct Mirror {
  struct Row {
    int32_t ordinal = 0;
    int32_t stamp = 0;
  };
  std::vector<int32_t> tokens;  // their stamps
  std::vector<std::vector<Row>> layers = std::vector<std::vector<Row>>(3);

  int64_t rows() const {
    int64_t total = 0;
    for (const auto& layer : layers) total += static_cast<int64_t>(layer.size());
    return total;
  }
};

inline TokenInfo token_of(int32_t stamp) {
  TokenInfo token{{stamp, stamp + 1, stamp + 2}};
  if (stamp % 3 == 0) return token;  // text
  token.time = stamp * 0.5;
  token.modality = Modality::video;
  return token;
}

inline float element(int32_t stamp, int64_t layer, int64_t place) {
  return static_cast<float>((stamp * 3 + layer) * row_width + place);
}

// Gives out stamps, all different.
class Stamps {
 public:
  std::vector<int32_t> take(int64_t count) {
    std::vector<int32_t> stamps(static_cast<size_t>(count));
    std::iota(stamps.begin(), stamps.end(), next_);
    next_ += static_cast<int32_t>(count);
    return stamps;
  }
  std::vector<int32_t> text(int64_t count) {
    next_ = (next_ + 2) / 3 * 3;
    std::vector<int32_t> stamps;
    for (; count > 0; --count, next_ += 3) stamps.push_back(next_);
    return stamps;
  }

 private:
  int32_t next_ = 0;
};

inline std::vector<TokenInfo> tokens_of(std::span<const int32_t> stamps) {
  std::vector<TokenInfo> tokens;
  for (const int32_t stamp : stamps) tokens.push_back(token_of(stamp));
  return tokens;
}

inline void fill_rows(const NewRows& rows, int layer, std::span<const int32_t> stamps) {
  std::vector<float> keys, values;
  for (const int32_t stamp : stamps) {
    for (int64_t place = 0; place < row_width; ++place) {
      keys.push_back(element(stamp, layer, place));
      values.push_back(-keys.back());
    }
  }
  const size_t bytes = keys.size() * sizeof(float);
  copy_bytes(rows.keys.raw(), rows.keys.device(), keys.data(), Device::cpu(), bytes);
  copy_bytes(rows.values.raw(), rows.values.device(), values.data(), Device::cpu(), bytes);
}

struct GroupKind {
  std::vector<int32_t> parents = {};
  int64_t probes = 0;
  // Says before a layer is left which places of the group it will keep; none: all.
  std::function<std::vector<int32_t>(int layer)> keeps = {};
};

// One group through all layers, as the decoder does it. The memory uses the model's positions.
inline void append_group(const Context& context, Memory& memory, Mirror& mirror,
                         const std::vector<int32_t>& stamps, const GroupKind& kind = {}) {
  const std::vector<TokenInfo> tokens = tokens_of(stamps);
  const auto positions = memory.begin(context, {tokens, kind.parents, kind.probes});
  ASSERT_EQ(positions.size(), tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) ASSERT_EQ(positions[i], tokens[i].position);
  const size_t staying = stamps.size() - static_cast<size_t>(kind.probes);
  const auto first = static_cast<int32_t>(mirror.tokens.size());
  mirror.tokens.insert(mirror.tokens.end(), stamps.begin(),
                       stamps.begin() + static_cast<int64_t>(staying));
  std::vector<int32_t> all(staying);
  std::iota(all.begin(), all.end(), 0);
  for (int layer = 0; layer < memory.layout().layers; ++layer) {
    if (memory.layout().bytes_of_state(layer) > 0) continue;
    fill_rows(memory.append(layer), layer, stamps);
    const std::vector<int32_t> kept = kind.keeps ? kind.keeps(layer) : all;
    const QueryView queries = memory.queries();
    ASSERT_EQ(queries.ordinals.size(), stamps.size());
    ASSERT_EQ(queries.ordinals.front(), first);
    ASSERT_EQ(queries.parents.size(), kind.parents.size());
    memory.after(context, layer, queries);
    for (const int32_t place : kept) {
      mirror.layers[static_cast<size_t>(layer)].push_back(
          {first + place, stamps[static_cast<size_t>(place)]});
    }
  }
}

inline std::vector<float> on_host(ConstTensorView rows) {
  std::vector<float> values(static_cast<size_t>(rows.elements()));
  copy_bytes(values.data(), Device::cpu(), rows.raw(), rows.device(),
             values.size() * sizeof(float));
  return values;
}

inline void expect_layer(const Context& context, Memory& memory, const Mirror& mirror, int layer) {
  const std::vector<Mirror::Row>& expected = mirror.layers[static_cast<size_t>(layer)];
  std::vector<RowSet> sets;
  memory.read(context, layer, memory.queries(), sets);
  ASSERT_LE(sets.size(), static_cast<size_t>(most_row_sets));
  ASSERT_EQ(memory.row_count(layer), static_cast<int64_t>(expected.size()));
  size_t at = 0;
  for (const RowSet& set : sets) {
    const std::vector<float> keys = on_host(set.keys), values = on_host(set.values);
    ASSERT_EQ(set.times.size(), static_cast<size_t>(set.count()));
    for (size_t i = 0; i < static_cast<size_t>(set.count()); ++i, ++at) {
      ASSERT_LT(at, expected.size());
      const Mirror::Row& row = expected[at];
      const TokenInfo token = token_of(row.stamp);
      ASSERT_EQ(set.ordinals[i], row.ordinal) << "row " << at << " of layer " << layer;
      ASSERT_EQ(set.modalities[i], token.modality);
      if (std::isnan(token.time)) {
        ASSERT_TRUE(std::isnan(set.times[i]));
      } else {
        ASSERT_EQ(set.times[i], static_cast<float>(token.time));
      }
      for (size_t place = 0; place < row_width; ++place) {
        const float key = element(row.stamp, layer, static_cast<int64_t>(place));
        ASSERT_EQ(keys[i * row_width + place], key) << "row " << at << " of layer " << layer;
        ASSERT_EQ(values[i * row_width + place], -key);
      }
    }
  }
  ASSERT_EQ(at, expected.size());
}

inline void expect_same(const Context& context, Memory& memory, const Mirror& mirror) {
  ASSERT_EQ(memory.mark().tokens, static_cast<int64_t>(mirror.tokens.size()));
  for (size_t i = 0; i < mirror.tokens.size(); ++i) {
    const TokenInfo& token = memory.token(static_cast<int64_t>(i));
    ASSERT_EQ(token.position, token_of(mirror.tokens[i]).position) << "token " << i;
    ASSERT_EQ(token.modality, token_of(mirror.tokens[i]).modality);
  }
  for (int layer = 0; layer < memory.layout().layers; ++layer) {
    if (memory.layout().bytes_of_state(layer) == 0) expect_layer(context, memory, mirror, layer);
  }
}

// Keeps only these places among the newest `count` tokens of the mirror.
inline void accept_places(Mirror& mirror, size_t count, const std::vector<int32_t>& places) {
  const size_t first = mirror.tokens.size() - count;
  std::vector<int32_t> stamps;
  for (const int32_t place : places) {
    stamps.push_back(mirror.tokens[first + static_cast<size_t>(place)]);
  }
  mirror.tokens.resize(first);
  for (auto& rows : mirror.layers) {
    if (!rows.empty()) rows.resize(rows.size() - count);
  }
  for (size_t i = 0; i < stamps.size(); ++i) {
    mirror.tokens.push_back(stamps[i]);
    for (auto& rows : mirror.layers) {
      rows.push_back({static_cast<int32_t>(first + i), stamps[i]});
    }
  }
}

// A random node of a random tree: the tree, and the path from its root to the node.
struct RandomTree {
  std::vector<int32_t> parents, path;

  RandomTree(Random& random, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      parents.push_back(static_cast<int32_t>(random.below(i + 1) - 1));
    }
    for (auto node = static_cast<int32_t>(random.below(count)); node >= 0;
         node = parents[static_cast<size_t>(node)]) {
      path.insert(path.begin(), node);
    }
  }
};

// Keeps what the test says, half of the visual rows.
class GivenScores final : public RetentionRule {
 public:
  std::string_view name() const override { return "given"; }
  std::vector<double> scores(const Context&, ConstTensorView, ConstTensorView,
                             ConstTensorView) const override {
    return given;
  }
  std::vector<double> given;
};

}  // namespace kinora::testing

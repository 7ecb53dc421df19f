// Groups of text and frames for memories that choose among rows: keys and values of every token are
// random numbers that follow from its stamp, and what a memory gave its readers is written down.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/threads.h"
#include "memory/flat_memory.h"
#include "memory/memory.h"
#include "memory/policies.h"
#include "ops/packed_rows.h"
#include "ops/rope.h"

namespace kinora::testing {

inline std::vector<TokenInfo> text_tokens(int32_t position, int64_t count) {
  std::vector<TokenInfo> tokens;
  for (int64_t i = 0; i < count; ++i, ++position) {
    tokens.push_back({{position, position, position}});
  }
  return tokens;
}

// Pictures of height × width tokens from position `start` on, `step` apart in time.
inline std::vector<TokenInfo> video_tokens(int32_t start, int32_t pictures, int32_t height,
                                           int32_t width, int32_t step, int32_t first = 0) {
  std::vector<TokenInfo> tokens;
  for (int32_t t = first; t < first + pictures; ++t) {
    for (int32_t place = 0; place < height * width; ++place) {
      TokenInfo token{{start + t * step, start + place / width, start + place % width}};
      token.time = t * 0.5;
      token.modality = Modality::video;
      tokens.push_back(token);
    }
  }
  return tokens;
}

// Where a model would put the next text.
inline int32_t next_position(const Memory& memory) {
  int32_t next = 0;
  for (int64_t i = memory.token_count(); i-- > std::max<int64_t>(0, memory.token_count() - 200);) {
    for (const int32_t axis : memory.token(i).position) next = std::max(next, axis + 1);
  }
  return next;
}

// A little text and a few pictures behind what the memory holds.
inline std::vector<TokenInfo> any_video(Random& random, const Memory& memory) {
  const int32_t start = next_position(memory);
  const auto words = static_cast<int32_t>(1 + random.below(3));
  const auto number = [&](int64_t most) { return static_cast<int32_t>(1 + random.below(most)); };
  std::vector<TokenInfo> tokens = text_tokens(start, words);
  const auto video = video_tokens(start + words, number(4), number(2), number(3), number(4));
  tokens.insert(tokens.end(), video.begin(), video.end());
  return tokens;
}

// Heads of 6 columns, the three pairs of which turn by time, height and width.
inline RowLayout turning_layout(DType dtype = DType::f32) {
  RowLayout layout{2, 2, 6, dtype};
  layout.rotary = {{1.0, 0.3, 0.05}, {0, 1, 2}};
  return layout;
}
constexpr int64_t turning_heads = 4;
constexpr int64_t turning_width = 12;  // of a row

// A group on its way into a memory. Tokens of equal stamps have equal keys and values.
struct ScriptGroup {
  std::vector<TokenInfo> tokens;
  std::vector<uint64_t> stamps;
  uint64_t seed = 0;  // of its queries
  std::vector<int32_t> parents = {};
  std::vector<int32_t> accepted = {};  // of a tree
};

inline ScriptGroup group_of(Random& random, std::vector<TokenInfo> tokens) {
  ScriptGroup group{std::move(tokens), {}, random.next()};
  for (size_t i = 0; i < group.tokens.size(); ++i) group.stamps.push_back(random.next());
  return group;
}

inline std::vector<float> plain_row(uint64_t stamp, int layer, bool value) {
  Random random(stamp * 31 + static_cast<uint64_t>(2 * layer + value));
  std::vector<float> row;
  for (int64_t i = 0; i < turning_width; ++i) row.push_back(static_cast<float>(random.normal()));
  return row;
}

inline std::vector<float> plain_queries_of(const ScriptGroup& group, int layer) {
  Random random(group.seed + static_cast<uint64_t>(layer));
  std::vector<float> out(group.tokens.size() * static_cast<size_t>(turning_heads * 6));
  for (float& number : out) number = static_cast<float>(random.normal());
  return out;
}

// Tokens of one time look alike.
inline Tensor embeddings_of(const ScriptGroup& group, Device device) {
  std::vector<float> out;
  for (size_t i = 0; i < group.tokens.size(); ++i) {
    const double time = group.tokens[i].time;
    Random random(std::isnan(time) ? group.stamps[i] : static_cast<uint64_t>(time) / 2);
    Random noise(group.stamps[i] + 1);
    for (int k = 0; k < 5; ++k) {
      out.push_back(static_cast<float>(random.normal() + 0.2 * noise.normal()));
    }
  }
  Tensor placed(DType::f32, {static_cast<int64_t>(group.tokens.size()), 5}, device);
  copy_bytes(placed.view().raw(), device, out.data(), Device::cpu(), out.size() * sizeof(float));
  return placed;
}

// rows [tokens, heads, 6] turned by positions, in double precision.
inline std::vector<float> turned(std::vector<float> rows, std::span<const Position> positions,
                                 const RowLayout& layout) {
  const size_t width = rows.size() / std::max<size_t>(1, positions.size());
  const auto size = static_cast<size_t>(layout.head_size), half = size / 2;
  for (size_t i = 0; i < positions.size(); ++i) {
    for (size_t head = 0; head < width / size; ++head) {
      float* at = rows.data() + i * width + head * size;
      for (size_t k = 0; k < half; ++k) {
        const double angle =
            layout.rotary.frequencies[k] * positions[i][static_cast<size_t>(layout.rotary.axes[k])];
        const double a = at[k], b = at[k + half];
        at[k] = static_cast<float>(a * std::cos(angle) - b * std::sin(angle));
        at[k + half] = static_cast<float>(b * std::cos(angle) + a * std::sin(angle));
      }
    }
  }
  return rows;
}

// What one layer was given to read, by increasing ordinal, whatever sets the rows were in.
struct ReadRows {
  std::vector<int32_t> ordinals;
  std::vector<float> keys, values, weights;
  size_t sets = 0;

  bool operator==(const ReadRows&) const = default;
};

inline std::vector<float> floats_of_view(ConstTensorView view) {
  if (rows_are_packed(view.dtype())) {
    const ThreadPool one(1);
    Tensor host(view.dtype(), view.shape()), room;
    copy_bytes(host.view().raw(), Device::cpu(), view.raw(), view.device(),
               static_cast<size_t>(host.bytes()));
    return floats_of_view(plain_rows(Context(one), host, room));
  }
  std::vector<float> out(static_cast<size_t>(view.elements()));
  if (view.dtype() == DType::f32) {
    copy_bytes(out.data(), Device::cpu(), view.raw(), view.device(), out.size() * sizeof(float));
    return out;
  }
  std::vector<bf16> narrow(out.size());
  copy_bytes(narrow.data(), Device::cpu(), view.raw(), view.device(), out.size() * sizeof(bf16));
  for (size_t i = 0; i < out.size(); ++i) out[i] = narrow[i].to_float();
  return out;
}

inline ReadRows joined_sets(std::span<const RowSet> sets) {
  ReadRows read, sorted;
  read.sets = sorted.sets = sets.size();
  for (const RowSet& set : sets) {
    const auto append = [](auto& to, const auto& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    EXPECT_TRUE(std::is_sorted(set.ordinals.begin(), set.ordinals.end()));
    EXPECT_EQ(set.modalities.size(), set.ordinals.size());
    EXPECT_EQ(set.times.size(), set.ordinals.size());
    append(read.ordinals, set.ordinals);
    append(read.keys, floats_of_view(set.keys));
    append(read.values, floats_of_view(set.values));
    append(read.weights, set.weighted() ? floats_of_view(set.weights)
                                        : std::vector<float>(set.ordinals.size(), 1.0f));
  }
  std::vector<size_t> order(read.ordinals.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return read.ordinals[a] < read.ordinals[b]; });
  const auto width = static_cast<size_t>(turning_width);
  for (const size_t i : order) {
    sorted.ordinals.push_back(read.ordinals[i]);
    sorted.weights.push_back(read.weights[i]);
    const auto first = static_cast<int64_t>(i * width), last = first + turning_width;
    sorted.keys.insert(sorted.keys.end(), read.keys.begin() + first, read.keys.begin() + last);
    sorted.values.insert(sorted.values.end(), read.values.begin() + first,
                         read.values.begin() + last);
  }
  return sorted;
}

// One group through all layers of a memory, as the decoder does it.
inline std::vector<ReadRows> play(const Context& context, Memory& memory,
                                  const ScriptGroup& group) {
  const RowLayout& layout = memory.layout();
  const Tensor embeddings = embeddings_of(group, memory.device());
  MemoryGroup fresh_group{group.tokens, group.parents};
  fresh_group.embeddings = embeddings.view();
  const auto given = memory.begin(context, fresh_group);
  const std::vector<Position> positions(given.begin(), given.end());
  const auto count = static_cast<int64_t>(group.tokens.size());
  std::vector<ReadRows> read;
  for (int layer = 0; layer < layout.layers; ++layer) {
    const NewRows fresh = memory.append(layer);
    std::vector<float> keys, values;
    for (const uint64_t stamp : group.stamps) {
      const auto key = plain_row(stamp, layer, false), value = plain_row(stamp, layer, true);
      keys.insert(keys.end(), key.begin(), key.end());
      values.insert(values.end(), value.begin(), value.end());
    }
    keys = turned(std::move(keys), positions, layout);
    for (const auto& [from, to] :
         {std::pair{&keys, fresh.keys}, std::pair{&values, fresh.values}}) {
      Tensor wide(DType::f32, {count, layout.kv_heads, layout.head_size}, memory.device());
      copy_bytes(wide.view().raw(), memory.device(), from->data(), Device::cpu(), from->size() * 4);
      store_rows(context, wide, to);
    }
    const std::vector<float> queries = turned(plain_queries_of(group, layer), positions, layout);
    Tensor placed(DType::f32, {count, turning_heads, 6}, memory.device());
    copy_bytes(placed.view().raw(), memory.device(), queries.data(), Device::cpu(),
               queries.size() * 4);
    QueryView view = memory.queries();
    view.queries = placed.view();
    std::vector<RowSet> sets;
    memory.read(context, layer, view, sets);
    EXPECT_LE(sets.size(), size_t{most_row_sets});
    read.push_back(joined_sets(sets));
    memory.after(context, layer, view);
  }
  if (!group.accepted.empty()) memory.accept(context, group.accepted);
  return read;
}

}  // namespace kinora::testing

#include "memory/row_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/threads.h"
#include "support/random_data.h"

namespace kinora {
namespace {

constexpr RowLayout layout{3, 2, 4, DType::f32};

std::vector<TokenInfo> tokens_of(int64_t count, int32_t first) {
  std::vector<TokenInfo> tokens(static_cast<size_t>(count));
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto at = first + static_cast<int32_t>(i);
    tokens[i] = {{at, at + 1, at + 2}, at * 0.5, at % 3 ? Modality::video : Modality::text};
  }
  return tokens;
}

// Every element of a row is a function of its ordinal, layer and place, so that any mix-up shows.
float element(int32_t ordinal, int layer, int place) {
  return static_cast<float>(ordinal * 100 + layer * 10 + place);
}

void append_group(RowStore& store, int64_t count) {
  const int32_t first =
      store.begin_group(tokens_of(count, static_cast<int32_t>(store.token_count())));
  for (int layer = 0; layer < layout.layers; ++layer) {
    const auto rows = store.append(layer);
    std::vector<float> keys, values;
    for (int64_t i = 0; i < count; ++i) {
      for (int place = 0; place < 8; ++place) {
        keys.push_back(element(first + static_cast<int32_t>(i), layer, place));
        values.push_back(-keys.back());
      }
    }
    const size_t bytes = keys.size() * sizeof(float);
    copy_bytes(rows.keys.raw(), store.device(), keys.data(), Device::cpu(), bytes);
    copy_bytes(rows.values.raw(), store.device(), values.data(), Device::cpu(), bytes);
  }
}

std::vector<float> on_host(ConstTensorView rows) {
  std::vector<float> values(static_cast<size_t>(rows.elements()));
  copy_bytes(values.data(), Device::cpu(), rows.raw(), rows.device(),
             values.size() * sizeof(float));
  return values;
}

void expect_rows(const RowStore& store, int layer, const std::vector<int32_t>& ordinals) {
  const RowsView rows = store.rows(layer);
  ASSERT_EQ(rows.count(), static_cast<int64_t>(ordinals.size()));
  const std::vector<float> keys = on_host(rows.keys), values = on_host(rows.values);
  for (size_t i = 0; i < ordinals.size(); ++i) {
    ASSERT_EQ(rows.ordinals[i], ordinals[i]);
    ASSERT_EQ(rows.modalities[i], store.token(ordinals[i]).modality);
    for (int place = 0; place < 8; ++place) {
      const size_t at = i * 8 + static_cast<size_t>(place);
      ASSERT_EQ(keys[at], element(ordinals[i], layer, place));
      ASSERT_EQ(values[at], -keys[at]);
    }
  }
}

// On a GPU, half of the time with the indexes there.
void retain(const Context& context, RowStore& store, int layer, const std::vector<int32_t>& kept,
            bool there) {
  if (!there || store.device().is_cpu()) return store.retain(layer, kept);
  Tensor indexes(DType::i32, {static_cast<int64_t>(kept.size())}, store.device());
  copy_bytes(indexes.view().raw(), store.device(), kept.data(), Device::cpu(),
             kept.size() * sizeof(int32_t));
  store.retain_there(context, layer, indexes);
}

void check_random_steps(Device device) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool threads(1);
  const Context context(threads, device);
  RowStore store(layout, device);
  std::vector<std::vector<int32_t>> expected(3);
  struct Saved {
    RowStore::Mark mark;
    std::vector<std::vector<int32_t>> expected;
  };
  std::vector<Saved> marks;
  for (int step = 0; step < 400; ++step) {
    const double choice = random.uniform();
    if (choice < 0.2) marks.push_back({store.mark(), expected});
    if (choice > 0.85 && !marks.empty()) {
      const auto which = static_cast<size_t>(random.below(static_cast<int64_t>(marks.size())));
      store.rewind(marks[which].mark);
      expected = marks[which].expected;
      marks.resize(which + 1);
    } else {
      const int64_t count = 1 + random.below(70);
      const auto first = static_cast<int32_t>(store.token_count());
      append_group(store, count);
      for (int layer = 0; layer < layout.layers; ++layer) {
        std::vector<int32_t> kept;
        const bool prune = random.uniform() < 0.5;
        for (int32_t i = 0; i < count; ++i) {
          if (!prune || random.uniform() < 0.4) kept.push_back(i);
        }
        if (prune) retain(context, store, layer, kept, random.uniform() < 0.5);
        for (const int32_t index : kept)
          expected[static_cast<size_t>(layer)].push_back(first + index);
      }
    }
    // Not after every step: what a GPU was told to keep may then still be on its way.
    for (int layer = 0; layer < layout.layers && random.uniform() < 0.7; ++layer) {
      expect_rows(store, layer, expected[static_cast<size_t>(layer)]);
    }
  }
  for (int layer = 0; layer < layout.layers; ++layer) {
    expect_rows(store, layer, expected[static_cast<size_t>(layer)]);
  }
  int64_t rows = 0;
  for (const auto& layer : expected) rows += static_cast<int64_t>(layer.size());
  EXPECT_EQ(store.bytes(), rows * 2 * 8 * 4);
}

TEST(RowStore, RowsFollowRandomAppendsPrunesAndRewinds) {
  check_random_steps(Device::cpu());
  for (size_t i = 0; i < cuda_devices().size(); ++i) {
    SCOPED_TRACE("cuda " + std::to_string(i));
    check_random_steps(Device::cuda(static_cast<int>(i)));
  }
}

TEST(RowStore, AnInterruptedGroupCanBeRewound) {
  RowStore store(layout);
  append_group(store, 5);
  const auto mark = store.mark();
  store.begin_group(tokens_of(3, 5));
  store.append(0);  // layers 1 and 2 never came to it
  store.rewind(mark);
  append_group(store, 2);
  for (int layer = 0; layer < layout.layers; ++layer)
    expect_rows(store, layer, {0, 1, 2, 3, 4, 5, 6});
}

TEST(RowStore, RefusesMisuse) {
  RowStore store(layout);
  EXPECT_THROW(store.begin_group({}), Error);
  EXPECT_THROW(store.append(0), Error);
  append_group(store, 4);
  EXPECT_THROW(store.append(0), Error);
  EXPECT_THROW(store.retain(0, std::vector<int32_t>{1, 1}), Error);
  EXPECT_THROW(store.retain(1, std::vector<int32_t>{0, 4}), Error);
  store.retain(2, std::vector<int32_t>{3});
  EXPECT_THROW(store.retain(2, std::vector<int32_t>{0}), Error);
  RowStore other(layout);
  EXPECT_THROW(other.rewind(store.mark()), Error);
  EXPECT_THROW(RowStore(RowLayout{1, 1, 1, DType::i32}), Error);
}

}  // namespace
}  // namespace kinora

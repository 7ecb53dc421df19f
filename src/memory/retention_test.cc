// Kept rows are exactly the best of the definition, told apart by sorting all of them in double
// precision.
#include "memory/retention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/threads.h"
#include "support/random_data.h"

namespace kinora {
namespace {

struct Rows {
  int64_t count, kv_heads, head_size;
  std::vector<float> keys, values;
  std::vector<TokenInfo> tokens;
};

// `steps` above 0: elements have so many values only, and many rows the same score.
Rows random_rows(Random& random, int64_t count, DType dtype, int64_t steps = 0) {
  // Rows on a GPU are whole words.
  Rows rows{count, 1 + random.below(3), 2 + 2 * random.below(35), {}, {}, {}};
  if (steps > 0) rows.kv_heads = 1, rows.head_size = 2;
  const int64_t elements = count * rows.kv_heads * rows.head_size;
  rows.keys = testing::random_floats(random, elements);
  rows.values = testing::random_floats(random, elements);
  if (steps > 0) {
    for (auto* numbers : {&rows.keys, &rows.values}) {
      for (float& value : *numbers) value = static_cast<float>(random.below(steps));
    }
  }
  if (dtype == DType::bf16) {
    for (auto* numbers : {&rows.keys, &rows.values}) {
      for (float& value : *numbers) value = bf16::from_float(value).to_float();
    }
  }
  const Modality kinds[] = {Modality::text, Modality::video, Modality::video, Modality::image};
  for (int64_t i = 0; i < count; ++i) {
    TokenInfo token;
    token.modality = kinds[random.below(4)];
    rows.tokens.push_back(token);
  }
  return rows;
}

// The definition, row by row.
double expected_score(RetentionRule rule, const Rows& rows, int64_t row,
                      const std::vector<float>& queries, int64_t heads) {
  const int64_t width = rows.kv_heads * rows.head_size;
  const float* key = rows.keys.data() + row * width;
  const float* value = rows.values.data() + row * width;
  double sum = 0;
  switch (rule) {
    case RetentionRule::key_norm:
      for (int64_t k = 0; k < width; ++k) sum += double{key[k]} * key[k];
      return -std::sqrt(sum);
    case RetentionRule::value_norm:
      for (int64_t k = 0; k < width; ++k) sum += double{value[k]} * value[k];
      return std::sqrt(sum);
    default:
      break;
  }
  const auto asked = static_cast<int64_t>(queries.size()) / (heads * rows.head_size);
  for (int64_t i = 0; i < asked; ++i) {
    for (int64_t head = 0; head < heads; ++head) {
      const float* query = queries.data() + (i * heads + head) * rows.head_size;
      const float* part = key + head / (heads / rows.kv_heads) * rows.head_size;
      for (int64_t k = 0; k < rows.head_size; ++k) sum += double{query[k]} * part[k];
    }
  }
  return sum;
}

void fill(TensorView target, const std::vector<float>& source) {
  Tensor values(target.dtype(), target.shape());
  for (int64_t i = 0; i < values.elements(); ++i) {
    const float value = source[static_cast<size_t>(i)];
    if (target.dtype() == DType::f32) {
      values.data<float>()[i] = value;
    } else {
      values.data<bf16>()[i] = bf16::from_float(value);
    }
  }
  copy_bytes(target.raw(), target.device(), values.view().raw(), Device::cpu(),
             static_cast<size_t>(values.bytes()));
}

// The first element of every row.
std::vector<float> first_elements(ConstTensorView rows) {
  Tensor host(rows.dtype(), rows.shape());
  copy_bytes(host.view().raw(), Device::cpu(), rows.raw(), rows.device(),
             static_cast<size_t>(host.bytes()));
  std::vector<float> first;
  for (int64_t i = 0; i < rows.size(0); ++i) {
    const ConstTensorView row = ConstTensorView(host)[i];
    first.push_back(rows.dtype() == DType::f32 ? *row.data<float>() : row.data<bf16>()->to_float());
  }
  return first;
}

// Does nothing: only the queries that pass through it count here.
class NoAttention final : public Attention {
 public:
  std::string_view name() const override { return "none"; }
  void attend(const Context&, int, const QueryView&, const RowsView&, float, TensorView) override {}
};

class Pruning : public ::testing::TestWithParam<std::tuple<RetentionRule, DType>> {};

void check_pruning(RetentionRule rule, DType dtype, Device device, int64_t steps) {
  SCOPED_TRACE(to_string(device));
  const ThreadPool threads(2);
  const Context context(threads, device);
  KINORA_FRESH_RANDOM(random);
  for (const int64_t count : {1, 2, 63, 64, 65, 129, 300, 1023, 1025, 2500}) {
    const Rows rows = random_rows(random, count, dtype, steps);
    const Retention retention{rule, random.uniform(0.05, 1.0)};
    const int64_t probe = rule == RetentionRule::attention_score ? 1 + random.below(9) : 0;
    const int64_t heads = rows.kv_heads * (1 + random.below(3));
    std::vector<float> queries = testing::random_floats(random, probe * heads * rows.head_size);
    if (steps > 0) std::fill(queries.begin(), queries.end(), 1.0f);

    RowStore store({1, static_cast<int>(rows.kv_heads), static_cast<int>(rows.head_size), dtype},
                   device);
    const TokenInfo old_token;
    store.begin_group({&old_token, 1});
    store.append(0);
    std::vector<TokenInfo> tokens = rows.tokens;
    tokens.resize(static_cast<size_t>(count + probe));
    store.begin_group(tokens);
    const RowStore::NewRows fresh = store.append(0);
    fill(fresh.keys.rows(0, count), rows.keys);
    fill(fresh.values.rows(0, count), rows.values);

    std::vector<double> question;
    if (probe > 0) {
      NoAttention none;
      QueryTap tap(none, probe);
      std::vector<float> all = testing::random_floats(random, count * heads * rows.head_size);
      all.insert(all.end(), queries.begin(), queries.end());
      const QueryView view{ConstTensorView::of(all.data(), {count + probe, heads, rows.head_size}),
                           store.group_ordinals(), store.group_modalities()};
      tap.attend(context, 0, view, store.rows(0), 1, {});
      question.assign(tap.sum().begin(), tap.sum().end());
    }
    prune_group(context, retention, 0, store, probe, question);

    std::vector<int64_t> visual;
    std::vector<int32_t> expected{0};
    for (int64_t i = 0; i < count; ++i) {
      if (rows.tokens[static_cast<size_t>(i)].modality != Modality::text) {
        visual.push_back(i);
      } else {
        expected.push_back(static_cast<int32_t>(i + 1));
      }
    }
    const auto score = [&](int64_t row) { return expected_score(rule, rows, row, queries, heads); };
    std::stable_sort(visual.begin(), visual.end(),
                     [&](int64_t a, int64_t b) { return score(a) > score(b); });
    const double share = retention.ratio * static_cast<double>(visual.size());
    const auto wanted = visual.empty() ? 0 : std::max<int64_t>(1, std::llround(share));
    for (int64_t i = 0; i < wanted; ++i) {
      expected.push_back(static_cast<int32_t>(visual[static_cast<size_t>(i)] + 1));
    }
    std::sort(expected.begin(), expected.end());
    const RowsView left = store.rows(0);
    EXPECT_EQ(std::vector<int32_t>(left.ordinals.begin(), left.ordinals.end()), expected)
        << "of " << count << " rows at " << to_string(retention);
    ASSERT_EQ(left.count(), static_cast<int64_t>(expected.size()));
    const int64_t width = rows.kv_heads * rows.head_size;
    const std::vector<float> keys = first_elements(left.keys), values = first_elements(left.values);
    for (size_t i = 1; i < expected.size(); ++i) {  // row 0 is from before the group
      EXPECT_EQ(left.modalities[i], store.token(expected[i]).modality);
      const auto first = static_cast<size_t>((expected[i] - 1) * width);
      EXPECT_EQ(keys[i], rows.keys[first]);
      EXPECT_EQ(values[i], rows.values[first]);
    }
  }
}

TEST_P(Pruning, KeepsExactlyTheBestOfTheDefinition) {
  const auto [rule, dtype] = GetParam();
  std::vector<Device> devices{Device::cpu()};
  for (size_t i = 0; i < cuda_devices().size(); ++i) {
    devices.push_back(Device::cuda(static_cast<int>(i)));
  }
  for (const Device device : devices) {
    check_pruning(rule, dtype, device, 0);
    check_pruning(rule, dtype, device, 3);
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, Pruning,
                         ::testing::Combine(::testing::Values(RetentionRule::key_norm,
                                                              RetentionRule::value_norm,
                                                              RetentionRule::attention_score),
                                            ::testing::Values(DType::f32, DType::bf16)));

TEST(Retention, EqualScoresKeepTheEarlierRows) {
  const std::vector<double> scores(6, 0.5);
  const std::vector<Modality> kinds{Modality::video, Modality::text,  Modality::video,
                                    Modality::video, Modality::video, Modality::text};
  EXPECT_EQ(choose_rows({RetentionRule::key_norm, 0.5}, scores, kinds),
            (std::vector<int32_t>{0, 1, 2, 5}));
}

TEST(Retention, ReadsItsNames) {
  EXPECT_EQ(to_string(parse_retention("all")), "all");
  EXPECT_EQ(to_string(parse_retention("all:1")), "all");
  EXPECT_EQ(to_string(parse_retention("key-norm:0.5")), "key-norm:0.5");
  EXPECT_EQ(to_string(parse_retention("0.25")), "key-norm:0.25");
  EXPECT_EQ(to_string(parse_retention("value-norm:1")), "value-norm:1");
  EXPECT_EQ(to_string(parse_retention("attention-score:0.1")), "attention-score:0.1");
  for (const char* wrong :
       {"", "key-norm", "key-norm:", "key-norm:0", "key-norm:1.5", "all:0.5", "key-norm:-0.5",
        "key-norm:half", "norm:0.5", "key-norm:0.5x", "all:", "key-norm:nan", "0", "2", ":0.5"}) {
    EXPECT_THROW(parse_retention(wrong), Error) << wrong;
  }
}

}  // namespace
}  // namespace kinora

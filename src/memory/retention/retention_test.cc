// Kept rows are exactly the best ones by definition, checked by sorting all of them in double
// precision.
#include "memory/retention/retention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/policy/names.h"
#include "base/threads.h"
#include "memory/flat_memory.h"
#include "memory/retention/policies.h"
#include "memory/retention/question.h"
#include "ops/packed_rows.h"
#include "ops/rows.h"
#include "support/random_data.h"

namespace kinora {
namespace {

struct Rows {
  int64_t count, kv_heads, head_size;
  std::vector<float> keys, values;
  std::vector<TokenInfo> tokens;
};

float rounded(DType dtype, float value) {
  if (dtype == DType::bf16) return bf16::from_float(value).to_float();
  if (dtype == DType::f16) return f16::from_float(value).to_float();
  return value;
}

void round_packed(const Rows& rows, DType dtype, std::vector<float>& numbers) {
  const ThreadPool one(1);
  const auto view = TensorView::of(numbers.data(), {rows.count, rows.kv_heads, rows.head_size});
  Tensor stored(dtype, {rows.count, rows.kv_heads, stored_columns(dtype, rows.head_size)});
  store_rows(Context(one), view, stored);
  widen_rows(Context(one), stored, view);
}

// `steps` above 0: elements take only this many values; many rows then score the same.
Rows random_rows(Random& random, int64_t count, DType dtype, int64_t steps = 0) {
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
  for (auto* numbers : {&rows.keys, &rows.values}) {
    for (float& value : *numbers) value = rounded(dtype, value);
    if (rows_are_packed(dtype)) round_packed(rows, dtype, *numbers);
  }
  const Modality kinds[] = {Modality::text, Modality::video, Modality::video, Modality::image};
  for (int64_t i = 0; i < count; ++i) {
    TokenInfo token;
    token.modality = kinds[random.below(4)];
    rows.tokens.push_back(token);
  }
  return rows;
}

// The softmax over all rows of the group, summed over the question's queries, mean over heads.
std::vector<double> expected_masses(const Rows& rows, const std::vector<float>& queries,
                                    int64_t heads) {
  const int64_t size = rows.head_size, width = rows.kv_heads * size;
  const auto asked = static_cast<int64_t>(queries.size()) / (heads * size);
  std::vector<double> masses(static_cast<size_t>(rows.count));
  for (int64_t i = 0; i < asked * heads; ++i) {
    const int64_t kv_head = i % heads / (heads / rows.kv_heads);
    std::vector<double> weights;
    double all = 0;
    for (int64_t row = 0; row < rows.count; ++row) {
      double dot = 0;
      for (int64_t k = 0; k < size; ++k) {
        dot += double{queries[static_cast<size_t>(i * size + k)]} *
               double{rows.keys[static_cast<size_t>(row * width + kv_head * size + k)]};
      }
      weights.push_back(std::exp(dot / std::sqrt(static_cast<double>(size))));
      all += weights.back();
    }
    for (size_t row = 0; row < masses.size(); ++row) {
      masses[row] += weights[row] / all / static_cast<double>(heads);
    }
  }
  return masses;
}

// The definition, row by row.
double expected_score(std::string_view rule, const Rows& rows, int64_t row,
                      const std::vector<float>& queries, int64_t heads) {
  const int64_t width = rows.kv_heads * rows.head_size;
  const float* key = rows.keys.data() + row * width;
  const float* value = rows.values.data() + row * width;
  double sum = 0;
  if (rule == "first-element") return key[0];
  if (rule == "key-norm") {
    for (int64_t k = 0; k < width; ++k) sum += double{key[k]} * key[k];
    return -std::sqrt(sum);
  }
  if (rule == "value-norm") {
    for (int64_t k = 0; k < width; ++k) sum += double{value[k]} * value[k];
    return std::sqrt(sum);
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
  if (rows_are_packed(target.dtype())) {
    const ThreadPool one(1);
    const Shape shape{target.size(0), target.size(1), head_size_of(target)};
    store_rows(Context(one), ConstTensorView::of(source.data(), shape), values);
    return copy_bytes(target.raw(), target.device(), values.view().raw(), Device::cpu(),
                      static_cast<size_t>(values.bytes()));
  }
  for (int64_t i = 0; i < values.elements(); ++i) {
    const float value = source[static_cast<size_t>(i)];
    if (target.dtype() == DType::f32) {
      values.data<float>()[i] = value;
    } else if (target.dtype() == DType::f16) {
      values.data<f16>()[i] = f16::from_float(value);
    } else {
      values.data<bf16>()[i] = bf16::from_float(value);
    }
  }
  copy_bytes(target.raw(), target.device(), values.view().raw(), Device::cpu(),
             static_cast<size_t>(values.bytes()));
}

// The first element of every row.
std::vector<float> first_elements(ConstTensorView rows) {
  const ThreadPool one(1);
  Tensor host(rows.dtype(), rows.shape()), room;
  copy_bytes(host.view().raw(), Device::cpu(), rows.raw(), rows.device(),
             static_cast<size_t>(host.bytes()));
  const ConstTensorView plain = plain_rows(Context(one), host, room);
  std::vector<float> first;
  for (int64_t i = 0; i < plain.size(0); ++i) {
    const ConstTensorView row = plain[i];
    with_float_type(plain.dtype(), [&]<typename T>(T) { first.push_back(widen(*row.data<T>())); });
  }
  return first;
}

// A rule of which a GPU knows nothing.
class FirstElement final : public RetentionRule {
 public:
  std::string_view name() const override { return "first-element"; }
  std::vector<double> scores(const Context&, ConstTensorView keys, ConstTensorView,
                             ConstTensorView) const override {
    const std::vector<float> first = first_elements(keys);
    return {first.begin(), first.end()};
  }
};

std::vector<Device> devices() {
  std::vector<Device> all{Device::cpu()};
  for (size_t i = 0; i < cuda_devices().size(); ++i) {
    all.push_back(Device::cuda(static_cast<int>(i)));
  }
  return all;
}

class Pruning : public ::testing::TestWithParam<std::tuple<const char*, DType>> {};

void check_pruning(const std::string& rule, DType dtype, Device device, int64_t steps) {
  SCOPED_TRACE(to_string(device));
  const ThreadPool threads(2);
  const Context context(threads, device);
  KINORA_FRESH_RANDOM(random);
  for (const int64_t count : {1, 2, 63, 64, 65, 129, 300, 1023, 1025, 2500}) {
    const Rows rows = random_rows(random, count, dtype, steps);
    Retention retention{std::make_shared<FirstElement>()};
    if (rule != "first-element") retention = parse_retention(rule + ":1");
    retention.ratio = random.uniform(0.05, 1.0);
    const int64_t probe = retention.needs_question() ? 1 + random.below(9) : 0;
    const int64_t heads = rows.kv_heads * (1 + random.below(3));
    std::vector<float> queries = testing::random_floats(random, probe * heads * rows.head_size);
    if (steps > 0) std::fill(queries.begin(), queries.end(), 1.0f);

    FlatMemory memory({1, static_cast<int>(rows.kv_heads), static_cast<int>(rows.head_size), dtype},
                      device, retention);
    const TokenInfo old_token;
    memory.begin(context, {{&old_token, 1}});
    memory.append(0);
    memory.after(context, 0, memory.queries());
    std::vector<TokenInfo> tokens = rows.tokens;
    tokens.resize(static_cast<size_t>(count + probe));
    memory.begin(context, {tokens, {}, probe});
    const NewRows fresh = memory.append(0);
    fill(fresh.keys.rows(0, count), rows.keys);
    fill(fresh.values.rows(0, count), rows.values);

    // All rows ask; only the last ones are the question.
    std::vector<float> all = testing::random_floats(random, count * heads * rows.head_size);
    all.insert(all.end(), queries.begin(), queries.end());
    Tensor asking(DType::f32, {count + probe, heads, rows.head_size}, device);
    fill(asking, all);
    QueryView view = memory.queries();
    view.queries = asking.view();
    memory.after(context, 0, view);

    std::vector<int64_t> visual;
    std::vector<int32_t> expected{0};
    for (int64_t i = 0; i < count; ++i) {
      if (rows.tokens[static_cast<size_t>(i)].modality != Modality::text) {
        visual.push_back(i);
      } else {
        expected.push_back(static_cast<int32_t>(i + 1));
      }
    }
    std::vector<double> scores;
    for (int64_t i = 0; i < count && rule != "attention-mass"; ++i) {
      scores.push_back(expected_score(rule, rows, i, queries, heads));
    }
    if (rule == "attention-mass") scores = expected_masses(rows, queries, heads);
    std::stable_sort(visual.begin(), visual.end(), [&](int64_t a, int64_t b) {
      return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
    });
    const double share = retention.ratio * static_cast<double>(visual.size());
    const auto wanted = visual.empty() ? 0 : std::max<int64_t>(1, std::llround(share));
    for (int64_t i = 0; i < wanted; ++i) {
      expected.push_back(static_cast<int32_t>(visual[static_cast<size_t>(i)] + 1));
    }
    std::sort(expected.begin(), expected.end());
    std::vector<RowSet> sets;
    memory.read(context, 0, memory.queries(), sets);
    ASSERT_EQ(sets.size(), 1u);
    const RowSet& left = sets[0];
    EXPECT_EQ(std::vector<int32_t>(left.ordinals.begin(), left.ordinals.end()), expected)
        << "of " << count << " rows at " << to_string(retention);
    ASSERT_EQ(left.count(), static_cast<int64_t>(expected.size()));
    const int64_t width = rows.kv_heads * rows.head_size;
    const std::vector<float> keys = first_elements(left.keys), values = first_elements(left.values);
    for (size_t i = 1; i < expected.size(); ++i) {  // row 0 is from before the group
      EXPECT_EQ(left.modalities[i], memory.token(expected[i]).modality);
      const auto first = static_cast<size_t>((expected[i] - 1) * width);
      EXPECT_EQ(keys[i], rows.keys[first]);
      EXPECT_EQ(values[i], rows.values[first]);
    }
  }
}

TEST_P(Pruning, KeepsExactlyTheBestOfTheDefinition) {
  const auto [rule, dtype] = GetParam();
  for (const Device device : devices()) {
    if (dtype == DType::f16 && !device.is_cpu()) continue;
    check_pruning(rule, dtype, device, 0);
    check_pruning(rule, dtype, device, 3);
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, Pruning,
                         ::testing::Combine(::testing::Values("key-norm", "value-norm",
                                                              "attention-score", "attention-mass",
                                                              "first-element"),
                                            ::testing::Values(DType::f32, DType::bf16, DType::f16,
                                                              DType::i8, DType::u8)));

// The control looks at no number's size: rows that stay are spread evenly, differ from group to
// group, and are the same in every run.
TEST(Retention, RandomRowsAreSpreadAndTheSameInEveryRun) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool threads(2);
  for (const Device device : devices()) {
    const Context context(threads, device);
    const Retention quarter = parse_retention("random:0.25");
    std::vector<std::vector<int32_t>> drawn;
    for (int round = 0; round < 2; ++round) {
      Tensor rows(DType::f32, {1024, 2, 8}, device);
      fill(rows, testing::random_floats(random, rows.elements()));
      const std::vector<Modality> modalities(1024, Modality::video);
      drawn.push_back(keep_best(context, quarter, rows, rows, modalities).places);
      EXPECT_EQ(keep_best(context, quarter, rows, rows, modalities).places, drawn.back());
      ASSERT_EQ(drawn.back().size(), 256u);
      for (int32_t part = 0; part < 8; ++part) {
        const auto there = std::count_if(drawn.back().begin(), drawn.back().end(),
                                         [&](int32_t place) { return place / 128 == part; });
        EXPECT_GE(there, 8) << part;
        EXPECT_LE(there, 64) << part;
      }
    }
    EXPECT_NE(drawn[0], drawn[1]);
  }
}

// The sum over rows and over the heads that share a kv head, also of rows that lie apart.
TEST(Retention, TheQuestionIsTheSumOfItsQueries) {
  KINORA_FRESH_RANDOM(random);
  for (const Device device : devices()) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const int64_t count : {1, 2, 63, 65}) {
        const int64_t kv_heads = 1 + random.below(3), heads = kv_heads * (1 + random.below(3));
        const int64_t size = 1 + random.below(70), width = heads * size, apart = width + 5;
        std::vector<float> numbers = testing::random_floats(random, count * apart);
        for (float& value : numbers) {
          if (dtype == DType::bf16) value = bf16::from_float(value).to_float();
        }
        Tensor queries(dtype, {count, apart}, device);
        fill(queries, numbers);
        const ConstTensorView view(queries.view().raw(), dtype, {count, heads, size},
                                   {apart, size, 1}, device);
        const std::vector<double> sum = sum_queries(view, kv_heads);
        std::vector<double> expected(static_cast<size_t>(kv_heads * size));
        for (int64_t i = 0; i < count * width; ++i) {
          const int64_t row = i / width, head = i % width / size, k = i % size;
          expected[static_cast<size_t>(head / (heads / kv_heads) * size + k)] +=
              double{numbers[static_cast<size_t>(row * apart + head * size + k)]};
        }
        ASSERT_EQ(sum.size(), expected.size());
        for (size_t i = 0; i < sum.size(); ++i) EXPECT_NEAR(sum[i], expected[i], 1e-9);
      }
    }
  }
}

TEST(Retention, KeepBestKeepsTextAndNeedsItsQuestion) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool threads(1);
  const Context context(threads);
  const Rows rows = random_rows(random, 65, DType::f32);
  const Shape shape{rows.count, rows.kv_heads, rows.head_size};
  const auto keys = ConstTensorView::of(rows.keys.data(), shape);
  const auto values = ConstTensorView::of(rows.values.data(), shape);
  std::vector<Modality> modalities(65, Modality::text);
  const Retention by_question = parse_retention("attention-score:0.5");
  EXPECT_EQ(keep_best(context, by_question, keys, values, modalities).places.size(), 65u);
  modalities[7] = modalities[64] = Modality::video;
  EXPECT_THROW(keep_best(context, by_question, keys, values, modalities), Error);
  EXPECT_EQ(keep_best(context, {}, keys, values, modalities).places.size(), 65u);
  const KeptRows kept =
      keep_best(context, parse_retention("value-norm:0.5"), keys, values, modalities);
  EXPECT_EQ(kept.places.size(), 64u);
  EXPECT_FALSE(kept.there.defined());
  EXPECT_TRUE(std::is_sorted(kept.places.begin(), kept.places.end()));
}

TEST(Retention, EqualScoresKeepTheEarlierRows) {
  const std::vector<double> scores(6, 0.5);
  const std::vector<Modality> kinds{Modality::video, Modality::text,  Modality::video,
                                    Modality::video, Modality::video, Modality::text};
  EXPECT_EQ(choose_rows(parse_retention("key-norm:0.5"), scores, kinds),
            (std::vector<int32_t>{0, 1, 2, 5}));
}

TEST(Retention, ReadsItsNames) {
  EXPECT_EQ(to_string(parse_retention("all")), "all");
  EXPECT_EQ(to_string(parse_retention("all:1")), "all");
  EXPECT_EQ(to_string(parse_retention("key-norm:0.5")), "key-norm:0.5");
  EXPECT_EQ(to_string(parse_retention("0.25")), "key-norm:0.25");
  EXPECT_EQ(to_string(parse_retention("value-norm:1")), "value-norm:1");
  EXPECT_EQ(to_string(parse_retention("attention-score:0.1")), "attention-score:0.1");
  EXPECT_EQ(to_string(parse_retention("key-norm:ratio=0.5")), "key-norm:0.5");
  EXPECT_EQ(to_string(parse_retention("all:ratio=1")), "all");
  EXPECT_EQ(to_string(Retention()), "all");
  EXPECT_TRUE(parse_retention("attention-score:0.1").needs_question());
  EXPECT_FALSE(parse_retention("key-norm:0.1").needs_question());
  EXPECT_FALSE(parse_retention("all").prunes());
  for (const char* wrong :
       {"", "key-norm", "key-norm:", "key-norm:0", "key-norm:1.5", "all:0.5", "key-norm:-0.5",
        "key-norm:half", "norm:0.5", "key-norm:0.5x", "all:", "key-norm:nan", "0", "2", ":0.5"}) {
    EXPECT_THROW(parse_retention(wrong), Error) << wrong;
  }
}

TEST(Retention, ErrorsSayWhatThereIs) {
  const auto problem = [](const std::string& text) -> std::string {
    try {
      parse_retention(text);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      const std::string what = error.what();
      EXPECT_LT(what.size(), 300u);
      EXPECT_EQ(what.find("--"), std::string::npos);  // flags are the program's
      return what;
    }
    return "";
  };
  EXPECT_EQ(problem("keynorm:0.5"),
            "retention 'keynorm:0.5': no policy has this name; did you mean key-norm? There are " +
                list_names(retention_point().names()));
  EXPECT_EQ(problem("key-norm"),
            "retention 'key-norm': ratio is missing; it must be above 0 and at most 1");
  EXPECT_EQ(problem("key-norm:7"),
            "retention 'key-norm:7': ratio is '7', but must be above 0 and at most 1");
  EXPECT_EQ(problem("all:0.5"), "retention 'all:0.5': ratio is '0.5', but must be 1");
  EXPECT_EQ(problem("key-norm:0.5,0.5"), "retention 'key-norm:0.5,0.5': ratio is given twice");
  EXPECT_EQ(problem("key-norm:share=0.5"),
            "retention 'key-norm:share=0.5': no setting is called 'share'; there is ratio");
  EXPECT_NE(problem(std::string(10'000, '0')), "");
}

TEST(Retention, EveryPolicyDescribesItself) {
  const PolicyPoint& point = retention_point();
  std::vector<std::string> names = point.names();
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
  EXPECT_EQ(to_string(parse_retention(point.initial)), point.initial);
  for (const PolicyInfo& policy : point.policies) {
    EXPECT_FALSE(policy.summary.empty()) << policy.name;
    EXPECT_EQ(policy.summary.find('\n'), std::string::npos) << policy.name;
    for (const SettingInfo& setting : policy.settings) {
      const std::string value = setting.needed ? "0.5" : setting.initial;
      EXPECT_NO_THROW(point.check(policy.name + ":" + setting.key + "=" + value));
      EXPECT_NO_THROW(point.check(policy.name + ":" + value));
      EXPECT_FALSE(setting.meaning.empty());
    }
    const Retention made = find_policy(policy.name, retention_policies())
                               .make(split_policy(policy.name + ":1").settings);
    EXPECT_EQ(made.prunes() ? std::string(made.rule->name()) : "all", policy.name);
  }
}

}  // namespace
}  // namespace kinora

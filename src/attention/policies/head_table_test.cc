#include "attention/policies/head_table.h"

#include <gtest/gtest.h>

#include <functional>

#include "attention/policies/dense.h"
#include "attention/policies/pattern_attention.h"
#include "attention/policies/policy.h"
#include "attention/policies/resolve_head_test_support.h"
#include "attention/test_support.h"
#include "base/error.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

using testing::make_problem;
using testing::Problem;
using testing::resolve_head;

const TableShape shape{"tiny qwen2_5_vl", 2, 4, 2, 16};

HeadTable small_table() {
  HeadTable table;
  table.shape = shape;
  table.sample_tokens = 1234;
  table.budget = 0.25;
  table.budget_unit = "flops";
  const PatternSpec a = parse_pattern("a-shape:sink=128,local=1024");
  const PatternSpec g = parse_pattern("grid:sink=4,stride=64,lines=vs");
  const PatternSpec v = parse_pattern("vertical-slash:verticals=100,slashes=200");
  const HeadChoice choices[] = {
      {.boundary = Boundary::none, .patterns = {{{}, {}, a}}, .recall = 0.5},
      {.boundary = Boundary::query,
       .patterns = {{Modality::text, {}, v}, {Modality::video, {}, g}},
       .error = 0.125},
      {.boundary = Boundary::key, .patterns = {{{}, Modality::text, a}, {{}, Modality::video, g}}},
      {.boundary = Boundary::both,
       .patterns = {{Modality::text, Modality::text, {}},
                    {Modality::text, Modality::video, v},
                    {Modality::video, Modality::text, a},
                    {Modality::video, Modality::video, g}},
       .flops = 0.5,
       .index = 0.0625,
       .time = 0.75}};
  for (int layer = 0; layer < 2; ++layer) {
    for (const HeadChoice& choice : choices) table.heads.emplace_back(choice);
  }
  return table;
}

TEST(HeadTable, SurvivesItsOwnFormat) {
  const HeadTable table = small_table();
  const std::string json = to_json(table);
  const HeadTable again = parse_head_table(json, "x.json");
  EXPECT_EQ(again.shape, table.shape);
  EXPECT_EQ(to_json(again), json);
  for (int head = 0; head < 4; ++head) {
    const HeadChoice& a = *table.at(1, head);
    const HeadChoice& b = *again.at(1, head);
    EXPECT_EQ(a.boundary, b.boundary);
    ASSERT_EQ(a.patterns.size(), b.patterns.size());
    for (size_t i = 0; i < a.patterns.size(); ++i) {
      EXPECT_EQ(a.patterns[i].spec, b.patterns[i].spec);
      EXPECT_EQ(a.patterns[i].query, b.patterns[i].query);
      EXPECT_EQ(a.patterns[i].key, b.patterns[i].key);
    }
    EXPECT_FALSE(to_string(a).empty());
  }
}

TEST(HeadTable, RefusesDamageWithThePlace) {
  const std::string good = to_json(small_table());
  const auto refuses = [&](const std::string& from, const std::string& to, const char* words) {
    std::string text = good;
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    try {
      parse_head_table(text, "table.json");
      ADD_FAILURE() << "accepted " << to;
    } catch (const Error& error) {
      const std::string what = error.what();
      EXPECT_EQ(error.kind(), ErrorKind::bad_input) << what;
      EXPECT_NE(what.find("table.json"), std::string::npos) << what;
      EXPECT_NE(what.find(words), std::string::npos) << what;
    }
  };
  refuses("{", "", "is not JSON");
  const std::string deep = std::string(250'000, '[') + std::string(250'000, ']');
  refuses("{", "{\"x\": " + deep + ",", "is not JSON");
  refuses("kinora-attention", "kinora-attentive", "is not an attention table");
  refuses("\"version\": 1", "\"version\": 2", "has version 2");
  refuses("\"heads\": 4", "\"heads\": 5", "layer 0 holds 4 heads, not 5");
  refuses("\"heads\": 4", "\"heads\": 0", "not in 1");
  refuses("\"layers\": 2", "\"layers\": 3", "the 3 layers");
  refuses("\"stride\": 64", "\"stride\": 0", "a stride of 0");
  refuses("\"stride\": 64", "\"strid\": 64", "\"strid\" is not known");
  refuses("\"sink\": 128", "\"stride\": 8", "\"stride\" is not known");  // of an A-shape
  refuses("\"stride\": 64", "\"stride\": -1", "layer 0, head 1");
  refuses("\"sink\": 128", "\"sink\": 1e3", "not a whole number");
  refuses("\"a-shape\"", "\"b-shape\"", "no attention pattern");
  refuses("\"boundary\": \"none\"", "\"boundary\": \"n\"", "no modality boundary");
  refuses("\"boundary\": \"none\"", "\"boundary\": \"query\"", "\"query\" is missing");
  refuses("\"query\": \"video\"", "\"query\": \"smell\"", "no modality is called");
  refuses("\"recall\"", "\"recoil\"", "not known");
  refuses("\"flops\": ", "\"flop\": ", "not known");
  refuses("\"index\"", "\"seconds\"", "\"seconds\" is not known");  // a clock's, beside a count
  refuses("\"budget_unit\": \"flops\"", "\"budget_unit\": \"\"", "\"budget_unit\" is empty");
  refuses("\"budget\"", "\"budge\"", "not known");
  EXPECT_THROW(parse_head_table("", "t"), Error);
  EXPECT_THROW(parse_head_table("[]", "t"), Error);
}

TEST(HeadTable, LoadsOnlyForItsModel) {
  const testing::TempDir dir;
  const std::string path = dir.file("kinora-attention.json");
  real_files().write(path, to_json(small_table()));
  EXPECT_TRUE(load_head_table(real_files(), path, shape).complete());
  for (const std::function<void(TableShape&)>& change :
       std::vector<std::function<void(TableShape&)>>{[](TableShape& s) { s.model = "other"; },
                                                     [](TableShape& s) { s.heads = 8; },
                                                     [](TableShape& s) { s.head_size = 64; }}) {
    TableShape other = shape;
    change(other);
    EXPECT_THROW(load_head_table(real_files(), path, other), Error);
  }
  HeadTable unfinished = small_table();
  unfinished.at(1, 2).reset();
  real_files().write(path, to_json(unfinished));
  EXPECT_FALSE(parse_head_table(to_json(unfinished), path).complete());
  EXPECT_THROW(load_head_table(real_files(), path, shape), Error);
  EXPECT_THROW(load_head_table(real_files(), dir.file("absent.json"), shape), Error);
}

TEST(HeadTable, TheBundledModelsTableIsWhole) {
  const std::string path = KINORA_SOURCE "/models/kinora-tiny/kinora-attention.json";
  const std::string text = real_files().read(path);
  const HeadTable table = parse_head_table(text, path);
  EXPECT_TRUE(table.complete());
  EXPECT_EQ(to_json(table), text);
  const std::string config = real_files().read(KINORA_SOURCE "/models/kinora-tiny/config.json");
  const auto says = [&](const std::string& key, int value) {
    return config.find("\"" + key + "\": " + std::to_string(value)) != std::string::npos;
  };
  EXPECT_TRUE(says("num_hidden_layers", table.shape.layers));
  EXPECT_TRUE(says("num_attention_heads", table.shape.heads));
  EXPECT_TRUE(says("num_key_value_heads", table.shape.kv_heads));
}

TEST(HeadTable, UnseenModalitiesTakeTheNearest) {
  const HeadTable table = small_table();
  const HeadChoice& both = *table.at(0, 3);
  Region region;
  region.query_modality = Modality::image;
  region.key_modality = Modality::text;
  EXPECT_EQ(pattern_for(both, region).kind->name, "a-shape");  // video → text
  region.key_modality = Modality::image;
  EXPECT_EQ(pattern_for(both, region).kind->name, "grid");
  region.query_modality = Modality::audio;
  region.key_modality = Modality::audio;
  EXPECT_EQ(pattern_for(both, region).kind->name, "dense");  // the first: no worse than any
}

TEST(PatternAttention, EveryHeadFollowsItsChoice) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  const Context context(pool);
  Problem problem = make_problem(
      random, {.queries = 500, .earlier = 80, .heads = 4, .kv_heads = 2, .head_size = 16});
  testing::mix_modalities(random, problem, 2, 70);
  const auto table = std::make_shared<const HeadTable>(small_table());
  PatternAttention policy("mminference", table, {.dense_below = 0, .dense_last = 0});
  std::vector<float> out(static_cast<size_t>(problem.out_shape().elements()), NAN);
  policy.attend(context, 1, problem.queries(), problem.memory(), problem.scale,
                TensorView::of(out.data(), problem.out_shape()));
  // Indexes are built from the same input again, head by head, and expanded to masks.
  std::vector<std::vector<uint8_t>> masks;
  for (int head = 0; head < 4; ++head) {
    const HeadChoice& choice = *table->at(1, head);
    const auto regions = cut_regions(choice.boundary, problem.queries(), problem.memory());
    const auto indexes = resolve_head(context, choice, regions, problem.queries(), problem.memory(),
                                      head, problem.scale, problem.rows());
    PlanBuilder builder(problem.queries(), problem.memory());
    for (size_t i = 0; i < regions.size(); ++i) {
      add_line_tiles(builder, regions[i], indexes[i], head);
    }
    masks.push_back(expand(builder.take(), problem.queries(), problem.memory(), head));
  }
  const auto expected = testing::reference(problem, [&](int64_t q, int64_t head, int64_t row) {
    return masks[static_cast<size_t>(head)][static_cast<size_t>(q * problem.rows() + row)] != 0;
  });
  EXPECT_LT(
      testing::relative_error(std::span<const float>(out), std::span<const double>(expected.out)),
      3e-6);
  // All heads run together; the time of each pattern is reported separately.
  EXPECT_EQ(policy.report()->parts.size(), 4u);
  double seconds = 0;
  for (const auto& [label, part] : policy.report()->parts) {
    EXPECT_GT(part.seconds, 0) << label;
    seconds += part.seconds;
  }
  EXPECT_NEAR(seconds, policy.report()->run_seconds, 1e-9);
  EXPECT_LT(policy.report()->share(), 1.0);
  EXPECT_TRUE(policy.report()->parts.contains("a-shape"));
}

TEST(PatternAttention, FallsBackWhereSparseCannotWin) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(1);
  const HeadChoice choice{.patterns = {{{}, {}, parse_pattern("a-shape:sink=4,local=64")}}};
  const Problem problem = make_problem(random, {.queries = 200, .head_size = 8});
  const Problem one = make_problem(random, {.queries = 1, .earlier = 300, .head_size = 8});
  Problem few = make_problem(random, {.queries = 63, .earlier = 300, .head_size = 8});
  for (Modality& modality : few.query_modalities) modality = Modality::video;
  PatternAttention eager("a-shape", choice, {.dense_below = 0, .dense_layers = 1});
  EXPECT_FALSE(eager.falls_back(1, problem.queries(), problem.memory()));
  EXPECT_TRUE(eager.falls_back(0, problem.queries(), problem.memory()));
  EXPECT_TRUE(eager.falls_back(1, one.queries(), one.memory()));
  EXPECT_TRUE(eager.falls_back(1, few.queries(), few.memory()));
  EXPECT_FALSE(PatternAttention("a-shape", choice, {.dense_below = 0, .least_queries = 2})
                   .falls_back(0, few.queries(), few.memory()));
  QueryView tree = problem.queries();
  const std::vector<int32_t> parents(200, -1);
  tree.parents = parents;
  EXPECT_TRUE(eager.falls_back(1, tree, problem.memory()));
  PatternAttention lazy("a-shape", choice, {.dense_below = 201});
  EXPECT_TRUE(lazy.falls_back(0, problem.queries(), problem.memory()));
  std::vector<float> out(static_cast<size_t>(one.out_shape().elements()), NAN);
  eager.attend(Context(pool), 1, one.queries(), one.memory(), one.scale,
               TensorView::of(out.data(), one.out_shape()));
  EXPECT_EQ(eager.report()->dense_calls, 1);
  EXPECT_DOUBLE_EQ(eager.report()->share(), 1.0);
  for (const float value : out) EXPECT_FALSE(std::isnan(value));
}

TEST(PatternAttention, DeltaReducesTheErrorOfSmoothQueries) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  const Context context(pool);
  Problem problem = make_problem(random, {.queries = 1024, .heads = 2, .head_size = 16});
  // Neighbouring queries are alike, as hidden states of neighbouring tokens are.
  for (size_t i = 32; i < problem.query_data.size(); ++i) {
    problem.query_data[i] = 0.97f * problem.query_data[i - 32] + 0.1f * problem.query_data[i];
  }
  const HeadChoice choice{.patterns = {{{}, {}, parse_pattern("a-shape:sink=50,local=1500")}}};
  const auto error = [&](int64_t stride) {
    PatternAttention policy("a-shape", choice,
                            {.dense_below = 0, .dense_last = 0, .delta_stride = stride});
    std::vector<float> out(static_cast<size_t>(problem.out_shape().elements()));
    policy.attend(context, 0, problem.queries(), problem.memory(), problem.scale,
                  TensorView::of(out.data(), problem.out_shape()));
    const auto expected = testing::reference(
        problem, [&](int64_t q, int64_t, int64_t row) { return testing::causal(problem, q, row); });
    return testing::relative_error(std::span<const float>(out),
                                   std::span<const double>(expected.out));
  };
  const double plain = error(0);
  EXPECT_GT(plain, 0.01);
  EXPECT_LT(error(16), 0.8 * plain);
  EXPECT_LT(error(1), 1e-5);  // every query measured: exact
}

// All groups of a prompt are read with the sizes of its length, where that is known.
TEST(PatternAttention, SizesFollowTheLengthOfThePrompt) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  const Context context(pool);
  const Problem problem = make_problem(random, {.queries = 500, .head_size = 16});
  AttentionOptions options;
  options.sparse = {.dense_below = 0, .dense_last = 0};
  const auto reads = [&](const char* text, int64_t length) {
    const auto attention = make_attention(text, options);
    attention->planner()->set_length(length);
    const auto plans =
        attention->planner()->plans(context, 0, problem.queries(), problem.memory(), problem.scale);
    return attended_pairs(plans[0].plan, problem.queries(), problem.memory());
  };
  // 4,096 at 25,000 are 82 of 500 and 164 of 1,000 tokens.
  const auto window = [](int64_t local) {
    int64_t pairs = 0;
    for (int64_t q = 0; q < 500; ++q)
      pairs += q + 1 - std::max<int64_t>(0, q / 128 * 128 - local + 1);
    return pairs;
  };
  EXPECT_EQ(reads("a-shape:sink=0,local=4096", 0), window(82));
  EXPECT_EQ(reads("a-shape:sink=0,local=4096", 300), window(82));  // it has more already
  EXPECT_EQ(reads("a-shape:sink=0,local=4096", 1000), window(164));
  EXPECT_LT(reads("momo:sink=0,window=32", 0), reads("momo:sink=0,window=32", 2000));
  EXPECT_LT(reads("mean-pool:sink=0,window=32", 0), reads("mean-pool:sink=0,window=32", 2000));
}

}  // namespace
}  // namespace kinora

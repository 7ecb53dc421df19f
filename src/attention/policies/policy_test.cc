#include "attention/policies/policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "attention/policies/dense.h"
#include "attention/policies/online_top_k.h"
#include "attention/test_support.h"
#include "base/error.h"
#include "base/policy/names.h"

namespace kinora {
namespace {

using testing::make_problem;
using testing::Problem;

// For one layer of two heads of 16.
std::shared_ptr<const HeadTable> a_shape_table(int32_t sink, int32_t local) {
  HeadTable table;
  table.shape = {"m", 1, 2, 1, 16};
  HeadChoice choice;
  const std::string text =
      "a-shape:sink=" + std::to_string(sink) + ",local=" + std::to_string(local);
  choice.patterns.push_back({{}, {}, parse_pattern(text)});
  table.heads.assign(2, choice);
  return std::make_shared<const HeadTable>(table);
}

TEST(Policy, EveryNameMakesAPolicyThatAttendsLikeItsPlans) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  const Context context(pool);
  Problem problem = make_problem(
      random, {.queries = 400, .earlier = 100, .heads = 2, .kv_heads = 1, .head_size = 16});
  testing::mix_modalities(random, problem, 2, 50);
  AttentionOptions options;
  options.sparse.dense_below = 0;
  options.table = a_shape_table(100, 2000);
  for (const std::string& name : attention_point().names()) {
    const auto policy = make_attention(name, options);
    EXPECT_EQ(policy->name(), name);
    std::vector<float> out(static_cast<size_t>(problem.out_shape().elements()), NAN);
    policy->attend(context, 0, problem.queries(), problem.memory(), problem.scale,
                   TensorView::of(out.data(), problem.out_shape()));
    for (const float value : out) ASSERT_FALSE(std::isnan(value)) << name;
    EXPECT_EQ(policy->reads_all(), name == "dense");
    if (name == "dense") {
      EXPECT_EQ(policy->report(), nullptr);
      EXPECT_EQ(policy->planner(), nullptr);
      continue;
    }
    ASSERT_NE(policy->report(), nullptr);
    EXPECT_EQ(policy->report()->calls, 1);
    EXPECT_EQ(policy->report()->dense_calls, 0);
    EXPECT_GT(policy->report()->share(), 0.0);
    policy->clear_report();
    EXPECT_EQ(policy->report()->calls, 0);
    ASSERT_NE(policy->planner(), nullptr);
    for (const LabelledPlan& labelled :
         policy->planner()->plans(context, 0, problem.queries(), problem.memory(), problem.scale)) {
      validate(labelled.plan, problem.queries(), problem.memory());
    }
  }
}

TEST(Policy, EveryOneCanBeCancelled) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  Problem problem = make_problem(
      random, {.queries = 400, .earlier = 100, .heads = 2, .kv_heads = 1, .head_size = 16});
  testing::mix_modalities(random, problem, 2, 50);
  AttentionOptions options;
  options.sparse.dense_below = 0;
  options.table = a_shape_table(100, 2000);
  const CancelToken cancelled;
  cancelled.cancel();
  QueryView queries = problem.queries();
  queries.cancel = &cancelled;
  for (const std::string& name : attention_point().names()) {
    std::vector<float> out(static_cast<size_t>(problem.out_shape().elements()));
    try {
      make_attention(name, options)
          ->attend(Context(pool), 0, queries, problem.memory(), problem.scale,
                   TensorView::of(out.data(), problem.out_shape()));
      ADD_FAILURE() << name << " went on to the end";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::cancelled) << name << ": " << error.what();
    }
  }
}

// Too few queries to choose for: every policy reads what there is.
TEST(Policy, OneTokenIsReadWhole) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  const Context context(pool);
  AttentionOptions options;
  options.sparse.dense_below = 0;
  options.table = a_shape_table(1, 1);
  for (const int64_t queries : {1, 63}) {
    for (const int64_t earlier : {0, 1, 300}) {
      Problem problem = make_problem(
          random,
          {.queries = queries, .earlier = earlier, .heads = 2, .kv_heads = 1, .head_size = 16});
      std::ranges::fill(problem.query_modalities, Modality::video);
      std::ranges::fill(problem.row_modalities, Modality::video);
      const auto dense = testing::reference(problem, [&](int64_t q, int64_t, int64_t row) {
        return testing::causal(problem, q, row);
      });
      for (const std::string& name : attention_point().names()) {
        std::vector<float> out(static_cast<size_t>(problem.out_shape().elements()), NAN);
        make_attention(name, options)
            ->attend(context, 0, problem.queries(), problem.memory(), problem.scale,
                     TensorView::of(out.data(), problem.out_shape()));
        EXPECT_LT(testing::relative_error(std::span<const float>(out), std::span(dense.out)), 3e-6)
            << name << ", " << queries << " after " << earlier;
      }
    }
  }
}

// Text at the end of a group is a question: its rows are as dense ones under every policy, and what
// the policy does to the others does not depend on it.
TEST(Policy, TheLastTextOfAGroupReadsEverything) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  const Context context(pool);
  Problem problem = make_problem(
      random, {.queries = 500, .earlier = 100, .heads = 4, .kv_heads = 2, .head_size = 16});
  testing::mix_modalities(random, problem, 2, 50);
  const auto dense = testing::reference(
      problem, [&](int64_t q, int64_t, int64_t row) { return testing::causal(problem, q, row); });
  AttentionOptions options;
  options.sparse.dense_below = 0;
  options.frame_stride = 16;
  for (const int64_t tail : {1, 63, 130, 300}) {
    for (size_t i = 0; i < 500; ++i) {
      const auto from_end = static_cast<int64_t>(500 - i);
      if (from_end <= tail) problem.query_modalities[i] = Modality::text;
      if (from_end == tail + 1) problem.query_modalities[i] = Modality::video;
      problem.row_modalities[100 + i] = problem.query_modalities[i];
    }
    const int64_t last = std::min(tail, default_dense_last);
    EXPECT_EQ(last_text(problem.queries(), default_dense_last), last);
    for (const std::string name :
         {"momo:keys=32,window=32,sink=32", "a-shape:sink=100,local=900", "sf-strided",
          "oracle:keys=32,window=32,sink=32", "grid:stride=16,lines=vs+delta"}) {
      const auto run = [&](const std::string& policy, int64_t count) {
        std::vector<float> out(static_cast<size_t>(problem.out_shape().elements()));
        const QueryView queries = slice(problem.queries(), 0, count);
        make_attention(policy, options)
            ->attend(context, 0, queries, problem.memory(), problem.scale,
                     TensorView::of(out.data(), {count, 4, 16}));
        return out;
      };
      const auto out = run(name, 500);
      const auto at = static_cast<size_t>((500 - last) * 4 * 16);
      EXPECT_LT(
          testing::relative_error(std::span(out).subspan(at), std::span(dense.out).subspan(at)),
          3e-6)
          << name;
      EXPECT_GT(testing::relative_error(std::span(out).first(at), std::span(dense.out).first(at)),
                1e-3)
          << name;
      const std::string off = name.substr(0, name.find('+')) +
                              (name.find(':') == std::string::npos ? ":" : ",") + "last=0" +
                              (name.find('+') == std::string::npos ? "" : "+delta");
      const auto without = run(off, 500 - last);
      EXPECT_EQ(std::memcmp(out.data(), without.data(), at * sizeof(float)), 0) << name;
      // What is shown and judged is what was run.
      const auto policy = make_attention(name, options);
      const auto plans =
          policy->planner()->plans(context, 0, problem.queries(), problem.memory(), 1.0f);
      for (int head = 0; head < 4; ++head) {
        const auto mask = expand(plans.front().plan, problem.queries(), problem.memory(), head);
        for (int64_t q = 500 - last; q < 500; ++q) {
          EXPECT_EQ(std::count(mask.begin() + q * 600, mask.begin() + (q + 1) * 600, 1), q + 101);
        }
      }
    }
  }
}

TEST(Policy, ReadsSettings) {
  AttentionOptions options;
  EXPECT_EQ(make_attention("a-shape:sink=4,local=100", options)->name(), "a-shape");
  EXPECT_EQ(make_attention("grid:stride=64,lines=vs,boundary=query+delta", options)->name(),
            "grid");
  EXPECT_EQ(make_attention(
                "momo:k=64,exact=64,block=64,keys=2048,top-k=tournament,trim=0,rank=mass,delta=0",
                options)
                ->name(),
            "momo");
  EXPECT_EQ(make_attention("oracle:keys=128", options)->name(), "oracle");
  for (const TopKMethod method :
       {TopKMethod::exact, TopKMethod::tournament, TopKMethod::threshold, TopKMethod::hybrid}) {
    const std::string text = "momo:top-k=" + std::string(top_k_name(method));
    EXPECT_EQ(make_attention(text, options)->name(), "momo") << text;
  }
  for (const char* bad : {"",
                          "none",
                          "grid:stride",
                          "dense:last=3",
                          "grid:",
                          "grid:stride=4,",
                          "vertical-slash:slashes=1,x=2",
                          "a-shape:sink=1,local=2,x=3",
                          "grid:last=x",
                          "grid:stride=x",
                          "grid:stride=-1",
                          "grid:colour=3",
                          "grid:lines=xyz",
                          "grid:lines=",
                          "grid+sigma",
                          "momo:block=33",
                          "momo:query-stride=0",
                          "a-shape:local=99999999999999999999",
                          "dense:sink=1",
                          "mean-pool:block=1",
                          "sf-fixed:stride=0",
                          "grid:boundary=up",
                          "momo:top-k=bogo",
                          "momo:rank=best",
                          "mminference"}) {
    EXPECT_THROW(make_attention(bad, options), Error) << bad;
  }
  EXPECT_TRUE(find_attention("mminference+delta").needs_table);
  EXPECT_FALSE(find_attention("momo").needs_table);
  EXPECT_TRUE(find_attention("dense").runs_on_gpu);
  EXPECT_TRUE(find_attention("grid:stride=4").runs_on_gpu);
  EXPECT_FALSE(find_attention("oracle").runs_on_gpu);
}

std::string problem_with(const std::string& text) {
  try {
    make_attention(text, {});
  } catch (const Error& error) {
    const std::string what = error.what();
    EXPECT_EQ(what.find('\n'), std::string::npos);
    EXPECT_EQ(what.find("--"), std::string::npos) << what;  // flags are the program's
    EXPECT_LT(what.size(), 500u);
    return what;
  }
  return "";
}

TEST(Policy, ErrorsSayWhatThereIs) {
  EXPECT_EQ(problem_with("mommo"),
            "attention 'mommo': no policy has this name; did you mean momo? There are " +
                list_names(attention_point().names()));
  EXPECT_EQ(problem_with("a-shape:sinc=3"),
            "attention 'a-shape:sinc=3': no setting is called 'sinc'; did you mean sink? There are "
            "sink, local, boundary, last, least and dense-layers");
  EXPECT_EQ(problem_with("momo:rank=best"),
            "attention 'momo:rank=best': rank is 'best', but must be mean or mass");
  EXPECT_EQ(problem_with("momo:block=33"),
            "attention 'momo:block=33': block is '33', but must be 32 or 64");
  EXPECT_EQ(problem_with("grid:max-stride=2000"),
            "attention 'grid:max-stride=2000': max-stride is '2000', but must be 8 to 1024");
  EXPECT_EQ(problem_with("dense:last=1"),
            "attention 'dense:last=1': it has no settings, and 'last' was given");
  EXPECT_EQ(problem_with("momo:k=1,k=2"), "attention 'momo:k=1,k=2': k is given twice");
  EXPECT_NE(problem_with("grid+sigma").find("only +delta"), std::string::npos);
  EXPECT_NE(problem_with("grid+delta=x").find("delta is 'x'"), std::string::npos);
  EXPECT_NE(problem_with("grid+delta+delta"), "");
  EXPECT_NE(problem_with("momo:tile=4").find("cannot be measured"), std::string::npos);
  for (const char* hostile : {"x", ":", "=", ",", "+", "momo:k=", "momo:"}) {
    std::string text(hostile);
    while (text.size() < 10'000) text += hostile;
    EXPECT_NE(problem_with(text), "") << hostile;
  }
  EXPECT_NE(problem_with("momo:k=" + std::string(10'000, '9')), "");
}

// What help, documentation and parsing say is one thing.
TEST(Policy, EveryPolicyDescribesItself) {
  const PolicyPoint& point = attention_point();
  std::vector<std::string> names = point.names();
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
  EXPECT_NO_THROW(point.check(point.initial));
  const auto one_line = [](const std::string& text) {
    return !text.empty() && text.find('\n') == std::string::npos;
  };
  for (const PolicyInfo& policy : point.policies) {
    EXPECT_TRUE(one_line(policy.summary)) << policy.name;
    EXPECT_NO_THROW(point.check(policy.name)) << policy.name;
    std::string all = policy.name;
    for (const SettingInfo& setting : policy.settings) {
      SCOPED_TRACE(policy.name + ":" + setting.key);
      EXPECT_TRUE(one_line(setting.meaning));
      EXPECT_TRUE(one_line(setting.accepts));
      EXPECT_NO_THROW(point.check(policy.name + ":" + setting.key + "=" + setting.initial));
      EXPECT_THROW(point.check(policy.name + ":" + setting.key + "="), Error);
      all += (all == policy.name ? ":" : ",") + setting.key + "=" + setting.initial;
    }
    EXPECT_NO_THROW(point.check(all)) << all;
  }
  for (const SettingInfo& modifier : point.modifiers) {
    EXPECT_NO_THROW(point.check("grid+" + modifier.key + "=" + modifier.initial));
  }
}

// A policy with its defaults written out plans what the bare name plans.
TEST(Policy, DefaultsWrittenOutChangeNothing) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool pool(2);
  const Context context(pool);
  Problem problem = make_problem(
      random, {.queries = 400, .earlier = 300, .heads = 2, .kv_heads = 1, .head_size = 16});
  testing::mix_modalities(random, problem, 2, 50);
  AttentionOptions options;
  options.table = a_shape_table(100, 2000);
  for (const int32_t frame_stride : {16, 25}) {
    options.frame_stride = frame_stride;
    for (const PolicyInfo& policy : attention_point().policies) {
      if (policy.settings.empty()) continue;
      std::string all = policy.name;
      for (const SettingInfo& setting : policy.settings) {
        all += (all == policy.name ? ":" : ",") + setting.key + "=" + setting.initial;
      }
      const auto plans = [&](const std::string& text) {
        return make_attention(text, options)
            ->planner()
            ->plans(context, 0, problem.queries(), problem.memory(), problem.scale);
      };
      const auto bare = plans(policy.name), written = plans(all);
      ASSERT_EQ(bare.size(), written.size()) << all;
      for (size_t i = 0; i < bare.size(); ++i) {
        for (int head = 0; head < 2; ++head) {
          EXPECT_EQ(expand(bare[i].plan, problem.queries(), problem.memory(), head),
                    expand(written[i].plan, problem.queries(), problem.memory(), head))
              << all;
        }
      }
    }
  }
}

}  // namespace
}  // namespace kinora

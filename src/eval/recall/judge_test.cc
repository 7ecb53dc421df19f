#include "eval/recall/judge.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "attention/policies/policy.h"
#include "base/threads.h"
#include "support/random_data.h"

namespace kinora {
namespace {

struct Input {
  Input(Random& random, int64_t count, int heads, int kv_heads, int size)
      : queries(DType::f32, {count, heads, size}),
        keys(DType::f32, {count, kv_heads, size}),
        values(DType::f32, {count, kv_heads, size}),
        ordinals(static_cast<size_t>(count)),
        modalities(static_cast<size_t>(count), Modality::video) {
    std::iota(ordinals.begin(), ordinals.end(), 0);
    for (Tensor* tensor : {&queries, &keys, &values}) {
      float* data = tensor->view().data<float>();
      for (int64_t i = 0; i < tensor->view().elements(); ++i) {
        data[i] = static_cast<float>(random.below(2001)) / 1000 - 1;
      }
    }
  }
  QueryView query_view() const { return {queries, ordinals, modalities}; }
  RowSet rows_view() const { return {keys, values, ordinals, modalities}; }

  Tensor queries, keys, values;
  std::vector<int32_t> ordinals;
  std::vector<Modality> modalities;
};

std::unique_ptr<Attention> policy(const std::string& text) {
  AttentionOptions options;
  options.sparse.dense_below = 0;
  options.sparse.dense_last = 0;  // all of the input is text
  return make_attention(text, options);
}

// A group as a decoder of some layers shows it.
void show(AttentionJudge& judge, const Context& context, int layers, const Input& input) {
  const RowSet rows[] = {input.rows_view()};
  judge.begin_group({});
  for (int layer = 0; layer < layers; ++layer) {
    if (judge.wants(layer)) judge.see(context, {layer, input.query_view(), rows, 0.125f});
  }
}

TEST(Judge, EverythingSelectedCapturesAll) {
  KINORA_FRESH_RANDOM(random);
  const Input input(random, 513, 4, 2, 64);
  ThreadPool threads(2);
  const Context context(threads, Device::cpu());
  AttentionJudge judge;
  judge.add("all", policy("a-shape:sink=8,local=30000000"));
  judge.add("some", policy("a-shape:sink=1,local=16"));
  judge.add("dense", policy("dense"));  // nothing to judge
  show(judge, context, 1, input);
  const auto judgements = judge.judgements();
  ASSERT_EQ(judgements.size(), 2u);
  EXPECT_EQ(judgements[0].policy, "all");
  EXPECT_NEAR(judgements[0].recall, 1, 1e-5);
  EXPECT_NEAR(judgements[0].error, 0, 1e-5);
  EXPECT_NEAR(judgements[0].share, 1, 1e-9);
  EXPECT_LT(judgements[1].share, 0.5);
  for (const Judgement& judgement : judgements) {
    EXPECT_GT(judgement.index, 0);
    EXPECT_GT(judgement.time, judgement.index);  // running takes time too
  }
  EXPECT_GT(judgements[1].error, 0.01);
}

TEST(Judge, RecallIsTheShareOfTheSoftmaxByDefinition) {
  KINORA_FRESH_RANDOM(random);
  const int64_t count = 97;
  const Input input(random, count, 2, 1, 64);
  ThreadPool threads(2);
  const Context context(threads, Device::cpu());
  const std::string text = "a-shape:sink=3,local=16";
  AttentionJudge judge;
  judge.add("a", policy(text));
  show(judge, context, 1, input);
  const auto attention = policy(text);
  const auto plans =
      attention->planner()->plans(context, 0, input.query_view(), input.rows_view(), 0.125f);
  double recall = 0;
  for (int head = 0; head < 2; ++head) {
    std::vector<int> reads(static_cast<size_t>(count * count));
    for (const LabelledPlan& part : plans) {
      const auto mask = expand(part.plan, input.query_view(), input.rows_view(), head);
      for (size_t i = 0; i < reads.size(); ++i) reads[i] += mask[i];
    }
    for (int64_t q = 0; q < count; ++q) {
      double all = 0, held = 0;
      for (int64_t r = 0; r <= q; ++r) {
        double dot = 0;
        for (int c = 0; c < 64; ++c) {
          dot += static_cast<double>(input.queries.view().data<float>()[(q * 2 + head) * 64 + c]) *
                 input.keys.view().data<float>()[r * 64 + c];
        }
        const double weight = std::exp(0.125 * dot);
        all += weight;
        if (reads[static_cast<size_t>(q * count + r)] > 0) held += weight;
      }
      recall += held / all;
    }
  }
  EXPECT_NEAR(judge.judgements().at(0).recall, recall / static_cast<double>(2 * count), 1e-4);
}

TEST(Judge, OnlyEveryNthGroupIsJudged) {
  KINORA_FRESH_RANDOM(random);
  const Input small(random, 65, 2, 1, 64), large(random, 193, 2, 1, 64);
  ThreadPool threads(2);
  const Context context(threads, Device::cpu());
  const std::string text = "a-shape:sink=3,local=16";
  AttentionJudge some(3), all;
  some.add("a", policy(text));
  all.add("a", policy(text));
  const auto attend = [&](AttentionJudge& judge, const Input& input) {
    show(judge, context, 2, input);
  };
  attend(all, large);
  attend(some, small);
  EXPECT_TRUE(some.judgements().empty());
  attend(some, large);  // the middle one of three
  attend(some, small);
  attend(some, small);
  EXPECT_EQ(some.judgements().at(0).recall, all.judgements().at(0).recall);
  EXPECT_EQ(some.judgements().at(0).error, all.judgements().at(0).error);
  EXPECT_EQ(some.judgements().at(0).share, all.judgements().at(0).share);
  EXPECT_GT(some.judgements().at(0).time, 0);
}

}  // namespace
}  // namespace kinora

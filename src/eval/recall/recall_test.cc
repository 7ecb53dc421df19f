// The recall of a set's prompts is that of a direct computation on the model's own queries and
// keys.
#include "eval/recall/recall.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "attention/policies/policy.h"
#include "engine/direct_prefill.h"
#include "engine/engine_state.h"
#include "engine/session_state.h"
#include "eval/prefix_session.h"
#include "support/film.h"
#include "support/random_data.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

class Groups final : public AttentionObserver {
 public:
  void begin_group(const PromptGroup& group) override {
    counts.push_back(group.count);
    total = group.total;
  }
  bool wants(int) const override { return false; }
  void see(const Context&, const AttentionCall&) override {}
  std::vector<int64_t> counts;
  int64_t total = 0;
};

TEST(Recall, IsTheDirectComputationForEveryWayOfReading) {
  KINORA_FRESH_RANDOM(random);
  const testing::TempDir directory;
  const Engine engine(
      {.model = std::string(KINORA_FIXTURES) + "/models/qwen2_5_vl_tied_new", .device = "cpu"});
  const EngineState& state = *EngineAccess::state(engine);
  EvalData data;
  for (const char* name : {"one", "two"}) {
    EvalItem item;
    item.id = name;
    item.parts = {{testing::write_film(directory.file(name), random, 16, 120, 160), ""}};
    item.frames = FrameChoice::all();
    item.question = "What is it?";
    item.answers = {"that"};
    data.items.push_back(item);
    item.id += " again";  // the same prefix counts once
    data.items.push_back(item);
  }
  const auto make = [](const std::string& name, const std::string& attention,
                       const std::string& retain) {
    EvalPolicy policy{name, {}};
    policy.session.attention = attention;
    policy.session.retain = retain;
    policy.session.row_type = "f32";
    policy.session.dense_below = 0;
    policy.session.frames_per_group = 8;
    policy.session.max_group_tokens = 100;
    return policy;
  };
  const std::vector<EvalPolicy> policies = {
      make("pruned", "a-shape:sink=3,local=16", "key-norm:0.5"), make("dense", "dense", "all"),
      make("wide", "a-shape:sink=3,local=16", "all"),
      make("narrow", "a-shape:sink=1,local=4", "all")};
  RecallOptions options;
  options.prompts = 2;
  const Recall recall = measure_recall(engine, data, policies, options);
  ASSERT_EQ(recall.judgements.size(), 3u);

  size_t next = 0;
  for (const EvalPolicy& policy : policies) {
    if (policy.session.attention == "dense") continue;
    double held = 0, weight = 0;
    int64_t tokens = 0;
    for (const size_t item : {0, 2}) {
      SessionOptions dense = policy.session;
      dense.attention = "dense";
      PrefixSession prompt(engine, dense, data.items[item], {});
      Groups groups;
      SessionAccess::state(prompt.session()).observe(&groups);
      AnswerOptions nothing;
      nothing.max_tokens = 0;
      tokens += prompt.ask(data.items[item], nothing).prompt_tokens;
      AttentionOptions sparse;
      sparse.sparse.dense_below = 0;
      const auto attention = make_attention(policy.session.attention, sparse);
      attention->planner()->set_length(groups.total);
      for (const testing::RecordedCall& call :
           testing::read_directly(state.context, *state.model, data.items[item].parts[0].source,
                                  eval_prompt(data.items[item]), groups.counts,
                                  parse_retention(policy.session.retain))) {
        if (attention->planner()->falls_back(call.layer, call.query_view(), call.rows())) continue;
        for (int head = 0; head < call.queries.size(1); ++head) {
          held += testing::held_by(state.context, *attention, call, head).recall;
          weight += static_cast<double>(call.queries.size(0));
        }
      }
    }
    const Judgement& judgement = recall.judgements[next++];
    EXPECT_EQ(judgement.policy, policy.name);
    ASSERT_GT(weight, 0);
    EXPECT_LT(judgement.recall, 0.999);
    EXPECT_NEAR(judgement.recall, held / weight, 1e-4) << policy.name;
    EXPECT_EQ(recall.tokens, tokens / 2);
  }
}

}  // namespace
}  // namespace kinora

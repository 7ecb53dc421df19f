#include "eval/recall/recall.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "engine/attention_choice.h"
#include "engine/session_state.h"
#include "eval/prefix_session.h"

namespace kinora {
namespace {

// What decides which rows there are, whoever reads them.
auto reading_of(const SessionOptions& options) {
  return std::tuple(options.row_type, options.tokens, options.retain, options.memory,
                    options.frame_share, options.snap_share, options.pixel_share,
                    options.frames_per_group, options.max_group_tokens);
}

// The first item of every prefix, as many as are wanted.
std::vector<const EvalItem*> first_prompts(const EvalData& data, int64_t most) {
  std::vector<const EvalItem*> items;
  std::set<std::string> seen;
  for (const EvalItem& item : data.items) {
    if (static_cast<int64_t>(items.size()) == most) break;
    if (seen.insert(item.prefix_key()).second) items.push_back(&item);
  }
  return items;
}

// Policies that read alike.
struct Reading {
  explicit Reading(SessionOptions options, int64_t every) : session(options), judge(every) {
    session.attention = "dense";
  }
  SessionOptions session;
  AttentionJudge judge;
  std::vector<const EvalPolicy*> policies;
};

}  // namespace

Recall measure_recall(const Engine& engine, const EvalData& data,
                      const std::vector<EvalPolicy>& policies, const RecallOptions& options) {
  const EngineState& state = *EngineAccess::state(engine);
  std::vector<std::unique_ptr<Reading>> readings;
  for (const EvalPolicy& policy : policies) {
    if (choose_cpu_attention(state, policy.session, 0)->planner() == nullptr) continue;  // dense
    const auto alike = [&](const std::unique_ptr<Reading>& reading) {
      return reading_of(reading->session) == reading_of(policy.session);
    };
    auto reading = std::find_if(readings.begin(), readings.end(), alike);
    if (reading == readings.end()) {
      readings.push_back(std::make_unique<Reading>(policy.session, options.every));
      reading = readings.end() - 1;
    }
    (*reading)->policies.push_back(&policy);
  }
  const std::vector<const EvalItem*> items = first_prompts(data, options.prompts);
  AnswerOptions nothing;
  nothing.max_tokens = 0;
  nothing.cancel = options.cancel;
  Recall recall;
  const auto total = static_cast<int64_t>(items.size() * readings.size());
  int64_t done = 0;
  for (const std::unique_ptr<Reading>& reading : readings) {
    for (const EvalItem* item : items) {
      PrefixSession prompt(engine, reading->session, *item, options.cancel);
      SessionState& session = SessionAccess::state(prompt.session());
      for (const EvalPolicy* policy : std::exchange(reading->policies, {})) {
        reading->judge.add(policy->name,
                           choose_cpu_attention(state, policy->session, session.frame_tokens()));
      }
      session.observe(&reading->judge);
      recall.tokens += prompt.ask(*item, nothing).prompt_tokens;
      if (options.progress) options.progress(++done, total);
    }
    for (Judgement& judgement : reading->judge.judgements()) {
      recall.judgements.push_back(std::move(judgement));
    }
  }
  recall.tokens /= std::max<int64_t>(1, total);
  const auto place = [&](const Judgement& judgement) {
    return std::find_if(policies.begin(), policies.end(),
                        [&](const EvalPolicy& policy) { return policy.name == judgement.policy; });
  };
  std::stable_sort(recall.judgements.begin(), recall.judgements.end(),
                   [&](const Judgement& a, const Judgement& b) { return place(a) < place(b); });
  return recall;
}

}  // namespace kinora

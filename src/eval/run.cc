#include "eval/run.h"

#include <fmt/format.h>

#include <chrono>
#include <map>
#include <memory>

#include "base/error.h"
#include "engine/engine_state.h"
#include "eval/answer_key.h"
#include "eval/prefix_session.h"
#include "eval/results_file.h"
#include "eval/score.h"

namespace kinora {
namespace {

// Items that share one prefill, in the order of the data.
struct Prefix {
  std::vector<const EvalItem*> items;
};

std::vector<Prefix> group_by_prefix(const EvalData& data) {
  std::vector<Prefix> groups;
  std::map<std::string, size_t> places;
  for (const EvalItem& item : data.items) {
    const auto [found, fresh] = places.emplace(item.prefix_key(), groups.size());
    if (fresh) groups.emplace_back();
    groups[found->second].items.push_back(&item);
  }
  return groups;
}

}  // namespace

EvalOutcome run_eval(const Engine& engine, const EvalData& data,
                     const std::vector<EvalPolicy>& policies, const EvalOptions& options) {
  const std::string setting =
      fmt::format("{} {} {} {}", engine_setting(*EngineAccess::state(engine)), options.max_tokens,
                  options.wrong_video, options.evidence);
  ResultsFile results(options.results);
  AnswerKeys keys(setting);
  EvalOutcome outcome;

  const std::vector<Prefix> groups = group_by_prefix(data);
  if (options.wrong_video && groups.size() < 2) {
    throw Error(ErrorKind::usage, "the wrong-video control needs at least two videos");
  }
  AnswerOptions answering;
  answering.temperature = 0;
  answering.max_tokens = options.max_tokens;
  answering.evidence = options.evidence;
  answering.cancel = options.cancel;

  const auto started = std::chrono::steady_clock::now();
  const auto out_of_time = [&] {
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - started;
    return options.time_limit > 0 && spent.count() > options.time_limit;
  };
  const auto total = static_cast<int64_t>(data.items.size() * policies.size());
  int64_t done = 0;
  const auto tell = [&] {
    if (options.progress) options.progress(done, total);
  };
  for (size_t g = 0; g < groups.size(); ++g) {
    if (out_of_time()) {
      outcome.stopped =
          fmt::format("the time limit ended it after {} of {} videos", g, groups.size());
      break;
    }
    const Prefix& group = groups[g];
    const EvalItem& source =
        *(options.wrong_video ? groups[(g + 1) % groups.size()] : group).items.front();
    for (const EvalPolicy& policy : policies) {
      std::unique_ptr<PrefixSession> session;
      for (const EvalItem* item : group.items) {
        options.cancel.check();
        ++done;
        const std::string key =
            options.results.empty() ? "" : keys.key_of(policy.name, *item, source);
        if (const EvalRecord* kept = results.find(key)) {
          outcome.records.push_back(*kept);
          outcome.records.back().id = item->id;  // the same question may stand elsewhere by now
          ++outcome.resumed;
          continue;
        }
        try {
          const bool first = !session;
          if (first) {
            session =
                std::make_unique<PrefixSession>(engine, policy.session, source, options.cancel);
          }
          const Answer answer = session->ask(*item, answering);
          if (answer.visual_tokens > 0) {
            outcome.prefill_seconds += answer.timings.total - answer.timings.generate;
            outcome.prefill_tokens += answer.prompt_tokens;
          }
          EvalRecord record;
          record.policy = policy.name;
          record.id = item->id;
          record.type = item->type;
          record.frames = session->frames();
          record.length = item->length.value_or(record.frames);
          record.tokens = answer.prompt_tokens;
          record.answer = answer.text;
          record.seconds = answer.timings.generate;
          record.depth = item->depth.value_or(-1);
          if (options.evidence) {
            record.evidence =
                score_evidence(*item, answer.evidence, session->begin(), session->end());
          }
          if (!first) record.first_token = answer.timings.first_token;
          if (first) {
            record.prefill = answer.timings.total - answer.timings.generate;
            record.share = answer.attention_report ? answer.attention_report->computed_share : 1.0;
            record.row_bytes = answer.row_bytes;
          }
          record.score = score_answer(*item, answer.text);
          results.append(key, record);
          outcome.records.push_back(std::move(record));
        } catch (const Error& error) {
          if (error.kind() == ErrorKind::cancelled) throw;
          outcome.problems.push_back({item->line, error.what(), error.kind()});
          session.reset();
        }
        tell();
      }
    }
  }
  return outcome;
}

}  // namespace kinora

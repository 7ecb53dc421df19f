#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/checks.h"
#include "cli/command_line.h"
#include "cli/model_name.h"
#include "cli/policies.h"
#include "cli/session_flags.h"
#include "cli/terminal/output.h"
#include "generate/policies.h"

namespace kinora::cli {
namespace {

struct DraftFlags {
  SessionFlags flags;
  std::vector<std::string> words;
  std::vector<std::string> drafts{"ngram", "auto"};
  int turns = 5;
  bool json = false;
};

// One way to make the answer, with a conversation of its own that has read the inputs.
struct Contender {
  std::string draft;
  std::unique_ptr<Session> session;
  std::vector<double> seconds;  // of generating, one for each turn
  Answer answer;                // of the last turn

  double median() const {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
  // Tokens that a pass of the model brought, its own included.
  double accepted_length() const {
    const auto tokens = static_cast<double>(answer.ids.size());
    if (!answer.draft || answer.draft->drafted == 0) return 1;
    return tokens / static_cast<double>(std::max<int64_t>(1, answer.draft->passes));
  }
  void ask(const std::string& question, const AnswerOptions& options) {
    session->clear();
    answer = session->ask(question, options);
    seconds.push_back(answer.timings.generate);
  }
};

int bench_draft(DraftFlags& draft_flags) {
  SessionFlags& flags = draft_flags.flags;
  flags.resolve();
  for (const std::string& draft : draft_flags.drafts)
    check_policy("--drafts", draft_point(), draft);
  const std::string question = draft_flags.words.back();
  draft_flags.words.pop_back();
  const Engine engine(flags.engine);
  std::vector<Contender> contenders;
  std::vector<std::string> names{"none"};
  names.insert(names.end(), draft_flags.drafts.begin(), draft_flags.drafts.end());
  int64_t visual = 0;
  for (const std::string& name : names) {
    SessionOptions options = flags.session;
    options.draft = name;
    contenders.push_back({name, std::make_unique<Session>(engine, options), {}, {}});
    flags.add_inputs(*contenders.back().session, draft_flags.words);
    // Reads the inputs and wakes everything that a first answer wakes.
    visual = contenders.back().session->ask(question, flags.answer).visual_tokens;
  }
  for (int turn = 0; turn < draft_flags.turns; ++turn) {
    for (Contender& contender : contenders) contender.ask(question, flags.answer);
  }
  const Contender& plain = contenders[0];
  const std::string model = model_title(flags.engine.model);
  nlohmann::json out = {{"model", model},
                        {"visual_tokens", visual},
                        {"answer_tokens", plain.answer.ids.size()},
                        {"turns", draft_flags.turns}};
  if (!draft_flags.json) {
    fmt::print(
        "{}: {} visual tokens, an answer of {} tokens, median of {} turns\n\n"
        "| draft | tokens/s | × plain | tokens a pass (its own included) | checked a pass | same "
        "|\n"
        "|---|---|---|---|---|---|\n",
        model, visual, plain.answer.ids.size(), draft_flags.turns);
  }
  bool same = true;
  for (const Contender& contender : contenders) {
    const double speed = static_cast<double>(contender.answer.ids.size()) / contender.median();
    const double gain = plain.median() / contender.median();
    const bool equal = contender.answer.ids == plain.answer.ids;
    const auto passes = static_cast<double>(contender.answer.draft ? contender.answer.draft->passes
                                                                   : contender.answer.ids.size());
    const double checked =
        contender.answer.draft
            ? 1 + static_cast<double>(contender.answer.draft->drafted) / std::max(1.0, passes)
            : 1.0;
    same = same && equal;
    out["drafts"].push_back({{"draft", contender.draft},
                             {"tokens_per_s", speed},
                             {"speedup", gain},
                             {"accepted_length", contender.accepted_length()},
                             {"checked", checked},
                             {"seconds", contender.seconds},
                             {"same_answer", equal}});
    if (draft_flags.json) continue;
    fmt::print("| {} | {:.1f} | {:.2f} | {:.2f} | {:.1f} | {} |\n", contender.draft, speed, gain,
               contender.accepted_length(), checked, equal ? "yes" : "NO");
  }
  if (draft_flags.json) fmt::print("{}\n", json_text(out));
  return same ? 0 : 1;
}

}  // namespace

void add_bench_draft(CommandLine& line, CLI::App& bench) {
  const auto flags = std::make_shared<DraftFlags>();
  CLI::App* command = bench.add_subcommand(
      "draft", "Compare plain generation and drafts on one question, in turns");
  command->add_option("question", flags->words, "VIDEO or IMAGE (any number), then the QUESTION")
      ->required()
      ->expected(1, -1)
      ->type_name("INPUT… QUESTION");
  flags->flags.add_to(*command);
  command
      ->add_option(
          "--drafts", flags->drafts,
          "What to compare with none; several with spaces between: " + policy_names(draft_point()))
      ->expected(1, -1);
  command->add_option("--turns", flags->turns, "Answers with each")
      ->capture_default_str()
      ->check(whole(1, 1000));
  command->add_flag("--json", flags->json, "Print JSON");
  command->footer(
      "Examples:\n"
      "  kinora bench draft demo \"Describe the video.\"\n"
      "  kinora bench draft talk.mp4 \"Describe the video.\" -m DIR --drafts ngram "
      "sparrow:total=48,depth=5");
  command->callback([&line, flags] { line.action = [flags] { return bench_draft(*flags); }; });
}

}  // namespace kinora::cli

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <kinora/session.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "attention/policies/policy.h"
#include "base/error.h"
#include "cli/bundled.h"
#include "cli/checks.h"
#include "cli/command_line.h"
#include "cli/error_text.h"
#include "cli/eval_policy.h"
#include "cli/model_name.h"
#include "cli/notes.h"
#include "cli/terminal/output.h"
#include "cli/terminal/terminal.h"
#include "cli/video_flags.h"
#include "draw/canvas.h"
#include "engine/engine_state.h"
#include "engine/row_type.h"
#include "eval/heat_map.h"
#include "eval/import.h"
#include "eval/page.h"
#include "eval/recall/recall.h"
#include "eval/report.h"
#include "eval/run.h"
#include "eval/visual_cache.h"

namespace kinora::cli {
namespace {

struct EvalFlags {
  std::string data;
  EngineOptions engine;
  EvalOptions run;
  std::vector<std::string> policies;
  std::vector<std::string> compared;
  std::vector<std::string> memories;
  std::string rows;  // type of keys and values; empty: as policies say
  std::string markdown;
  std::string html;
  std::string heat_map;
  std::string cache = default_visual_cache();
  bool no_cache = false;
  double cache_gib = 4;
  int64_t recall = 0;        // videos to measure it on
  int64_t recall_every = 1;  // group of tokens
  int64_t sparsity = 0;      // prompts to measure it on
  ImportOptions import;
  std::string output;  // of an import
};

// "attention=…", for help.
std::vector<std::string> policy_keys() {
  std::vector<std::string> keys;
  for (const SettingInfo& setting : eval_policy_settings()) keys.push_back(setting.key + "=…");
  return keys;
}

// Every policy with every memory, if any were named.
std::vector<std::string> with_memories(const std::vector<std::string>& policies,
                                       const std::vector<std::string>& memories) {
  if (memories.empty()) return policies;
  std::vector<std::string> all;
  for (const std::string& policy : policies) {
    for (const std::string& memory : memories) all.push_back(policy + ";memory=" + memory);
  }
  if (!policies.empty()) return all;
  for (const std::string& memory : memories) all.push_back("memory=" + memory);
  return all;
}

// The model, remembering visual tokens on disk unless that was switched off or is impossible.
std::shared_ptr<EngineState> load(const EvalFlags& flags) {
  auto state = std::make_shared<EngineState>(flags.engine, real_files());
  if (flags.no_cache || flags.cache.empty() || !state->model->info().sees) return state;
  try {
    const auto bytes = static_cast<int64_t>(flags.cache_gib * static_cast<double>(1 << 30));
    const auto folder = std::make_shared<TokenFolder>(flags.cache, bytes);
    state->model =
        with_visual_cache(std::move(state->model), folder, weights_identity(state->directory));
  } catch (const Error& error) {
    complain(error_text(error));
  }
  return state;
}

void write_report(const std::string& path, const std::string& content) {
  if (!path.empty()) real_files().write(path, content);
}

// As it was typed, in quotes where a shell needs them.
std::string typed_command() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string text = "kinora", word;
  std::getline(file, word, '\0');  // the program
  while (std::getline(file, word, '\0')) {
    const bool plain =
        !word.empty() && word.find_first_not_of(
                             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                             "-_./:=,+@%") == std::string::npos;
    std::string quoted = "'";
    for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
    text += " " + (plain ? word : quoted + "'");
  }
  return text;
}

std::string date_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &parts)};
}

void write_page(const EvalFlags& flags, const EvalData& data, const EvalOutcome& outcome,
                const std::string& title, std::vector<ReportTable> tables,
                const CancelToken& cancel) {
  constexpr size_t most_mistakes = 60;
  EvalPage page;
  page.title = title;
  page.date = date_now();
  page.version = version_line();
  page.command = typed_command();
  page.tables = std::move(tables);
  int64_t mistakes = 0;
  page.mistakes = find_mistakes(outcome, data, most_mistakes, mistakes);
  page.more_mistakes = mistakes - std::ssize(page.mistakes);
  add_frames(page.mistakes, cancel);
  for (const auto* problems : {&data.problems, &outcome.problems}) {
    for (const EvalProblem& problem : *problems) {
      page.problems.push_back(fmt::format("line {}: {}", problem.line, problem.message));
    }
  }
  real_files().write(flags.html, as_html(page));
}

int evaluate(EvalFlags& flags, const CancelToken& cancel) {
  if (!flags.heat_map.empty()) check_chart_path(flags.heat_map, "a heat map");
  const EvalData data = read_eval_data(real_files(), flags.data, cancel);
  std::vector<EvalPolicy> policies;
  const bool native_bf16 = flags.engine.native_bf16;
  for (const std::string& text : flags.policies) {
    EngineOptions wanted = flags.engine;
    wanted.native_bf16 = native_bf16;
    policies.push_back(parse_eval_policy(text, wanted));
    if (policies.size() == 1) flags.engine = wanted;
    if (wanted.native_bf16 != flags.engine.native_bf16) {
      throw Error(ErrorKind::usage,
                  "'" + text +
                      "' multiplies in another precision than the policy before it; "
                      "measure them in runs of their own");
    }
  }
  for (const EvalProblem& problem : data.problems) {
    complain(fmt::format("{} line {}: {}", flags.data, problem.line, problem.message));
  }
  if (!std::all_of(data.items.begin(), data.items.end(),
                   [](const EvalItem& item) { return item.drawn; })) {
    Notes(true).add(bundled_note(flags.engine.model));
  }
  TerminalProgress progress(false);
  // Sparse policies run on the CPU only, and all of a table should run on one device.
  const bool sparse = std::any_of(policies.begin(), policies.end(), [](const EvalPolicy& policy) {
    return !find_attention(policy.session.attention).runs_on_gpu;
  });
  if (sparse && flags.engine.device == "auto") flags.engine.device = "cpu";
  const std::shared_ptr<const EngineState> state = load(flags);
  const Engine engine = EngineAccess::make(state);
  flags.run.cancel = cancel;
  flags.run.progress = [&](int64_t done, int64_t total) {
    progress.update("questions", done, total);
  };
  const EvalOutcome outcome = run_eval(engine, data, policies, flags.run);
  progress.clear();
  for (const EvalProblem& problem : outcome.problems) {
    complain(fmt::format("{} line {}: {}", flags.data, problem.line, problem.message));
  }
  const std::string title = fmt::format("{} on {}{}", model_title(flags.engine.model), flags.data,
                                        flags.run.wrong_video ? " (wrong-video control)" : "");
  auto tables = report_tables(outcome, flags.policies);
  if (flags.run.evidence) tables.push_back(evidence_table(outcome, flags.policies));
  if (flags.recall > 0) {
    RecallOptions options{flags.recall, flags.recall_every, cancel, {}};
    options.progress = [&](int64_t done, int64_t total) { progress.update("recall", done, total); };
    const Recall recall = measure_recall(engine, data, policies, options);
    tables.push_back(recall_table(recall.judgements, recall.tokens));
    progress.clear();
  }
  if (flags.sparsity > 0) {
    SparsityOptions options{flags.sparsity, cancel, {}};
    options.progress = [&](int64_t done, int64_t total) {
      progress.update("sparsity", done, total);
    };
    const SparsityStudy study = measure_sparsity(engine, data, policies.front().session, options);
    for (ReportTable& table : sparsity_tables(study)) tables.push_back(std::move(table));
    progress.clear();
  }
  const std::string markdown = as_markdown(tables, title);
  fmt::print("{}\n", markdown);
  fmt::print(
      "{} answers, {} of them from earlier; {} questions could not be asked, {} lines could "
      "not be read\n",
      outcome.records.size(), outcome.resumed, outcome.problems.size(), data.problems.size());
  if (outcome.prefill_seconds > 0) {
    fmt::print("prefill: {} tokens in {} ({:.0f} a second)\n", outcome.prefill_tokens,
               human_seconds(outcome.prefill_seconds),
               static_cast<double>(outcome.prefill_tokens) / outcome.prefill_seconds);
  }
  if (!outcome.stopped.empty()) fmt::print("{}\n", outcome.stopped);
  if (!flags.heat_map.empty()) {
    write_chart(flags.heat_map, needle_heat_map(outcome, flags.policies, title), "a heat map");
  }
  write_report(flags.markdown, markdown);
  if (!flags.html.empty()) write_page(flags, data, outcome, title, std::move(tables), cancel);
  // A report on fewer questions than there are is no success.
  return outcome.problems.empty() ? 0 : exit_code(outcome.problems.front().kind);
}

int import(const EvalFlags& flags) {
  const auto items = import_annotations(real_files(), flags.data, flags.import);
  std::string lines;
  for (const EvalItem& item : items) lines += eval_line(item) + "\n";
  if (flags.output.empty()) {
    show(lines);
    return 0;
  }
  real_files().write(flags.output, lines);
  fmt::print("{} questions written to {}\n", items.size(), flags.output);
  return 0;
}

}  // namespace

void add_eval(CommandLine& line) {
  auto flags = std::make_shared<EvalFlags>();
  CLI::App* command =
      line.app.add_subcommand("eval", "Score a model on questions with known answers");
  command->add_option("data", flags->data, "Questions: JSON lines (docs/eval.md)")
      ->required()
      ->type_name("FILE");
  command->add_option("-m,--model", flags->engine.model, "A model's name or directory")
      ->type_name("MODEL");
  command
      ->add_option("--policy", flags->policies,
                   fmt::format("How to answer, joined by semicolons: {} (kinora help policies); an "
                               "attention may stand without its key. Give several to compare them "
                               "on the same questions",
                               fmt::join(policy_keys(), ", ")))
      ->capture_default_str()
      ->type_name("POLICY");
  command
      ->add_option("--compare", flags->compared,
                   "Two or more policies at once: the first against each of the others")
      ->expected(2, 64)
      ->type_name("POLICY…");
  command
      ->add_option("--memory", flags->memories,
                   "How rows are organised and which of them a question reads; once for each that "
                   "is to be compared, with every policy")
      ->expected(1)
      ->take_all()
      ->type_name("MEMORY");
  command
      ->add_option("--rows", flags->rows,
                   "Type of keys and values, of every policy: exact (as computed, the default), "
                   "f32, bf16, f16, int8 or fp8 (these three on CPUs) or auto (bf16 where weights "
                   "are bf16, else f32)")
      ->check(one_of(row_type_names()));
  command
      ->add_option("--results", flags->run.results,
                   "Keep every answer in this file, and resume from it after an interruption")
      ->type_name("FILE");
  command->add_option("--max-tokens", flags->run.max_tokens, "Longest answer, in tokens")
      ->capture_default_str()
      ->check(whole(1));
  command->add_flag("--evidence", flags->run.evidence,
                    "Judge the times that answers name (questions with known times)");
  command->add_flag("--wrong-video", flags->run.wrong_video,
                    "Ask about another video of the set: what guessing gives");
  command
      ->add_option_function<std::string>(
          "--time-limit",
          [flags](const std::string& time) { flags->run.time_limit = parse_time(time); },
          "Start no further video after this time (90, 1:30:00); the same command resumes")
      ->type_name("TIME");
  command
      ->add_option("--heat-map", flags->heat_map,
                   "Draw right answers by length and depth (questions with a depth)")
      ->type_name("FILE.png|FILE.svg");
  command
      ->add_option("--recall", flags->recall,
                   "Measure how much of dense attention each sparse policy captures and how long "
                   "it takes, on the first N videos")
      ->check(whole(0))
      ->type_name("N");
  command
      ->add_option("--recall-every", flags->recall_every,
                   "Measure that on every Nth group of tokens only, which is quicker")
      ->check(whole(1))
      ->type_name("N");
  command
      ->add_option("--sparsity", flags->sparsity,
                   "Measure how few keys hold 95 % of each head's attention, and whether lines "
                   "found in one place hold in another, on the first N prompts, read densely")
      ->check(whole(0))
      ->type_name("N");
  command->add_option("--cache", flags->cache, "Folder for visual tokens, kept between runs")
      ->capture_default_str()
      ->type_name("DIR");
  command->add_option("--cache-size", flags->cache_gib, "The most it may hold, in GiB")
      ->capture_default_str()
      ->check(above_zero());
  command->add_flag("--no-cache", flags->no_cache, "Encode every frame anew and keep nothing");
  command->add_option("--markdown", flags->markdown, "Write the report as Markdown")
      ->type_name("FILE");
  command->add_option("--html", flags->html, "Write the report as one HTML page")
      ->type_name("FILE");
  command->add_flag("--bf16", flags->engine.native_bf16,
                    "Multiply in bf16 where weights and CPU allow: faster, rounded");
  command
      ->add_flag("--f32", flags->engine.gpu_exact,
                 "Multiply in f32 on a GPU too, as a CPU does: slow, to compare answers exactly")
      ->excludes("--bf16");
  command->add_option("--device", flags->engine.device, "auto, cpu, cuda or cuda:N")
      ->capture_default_str();
  command->add_option("--threads", flags->engine.threads, "Threads to use; 0 is one per core")
      ->capture_default_str()
      ->check(threads());
  command
      ->add_option("--import", flags->import.format,
                   fmt::format("Turn a published annotation file into our format instead: {}",
                               fmt::join(import_formats(), ", ")))
      ->type_name("FORMAT")
      ->group("Importing");
  command->add_option("--videos", flags->import.videos, "Directory of its videos")
      ->type_name("DIR")
      ->group("Importing");
  command->add_option("--questions", flags->import.questions, "EgoSchema: the file of questions")
      ->type_name("FILE")
      ->group("Importing");
  command->add_option("-o,--output", flags->output, "Write there instead of to standard output")
      ->type_name("FILE")
      ->group("Importing");
  command->footer(
      "Examples:\n"
      "  kinora eval set.jsonl -m DIR --results answers.jsonl --html report.html\n"
      "  kinora eval set.jsonl -m DIR --compare dense \"momo;dense-below=0\" retain=key-norm:0.5\n"
      "  kinora eval set.jsonl --memory flat --memory frame-retrieval:rows=512 --memory "
      "compact:rows=512\n"
      "  kinora eval mlvu/2_needle.json --import mlvu --videos needle/ -o needle.jsonl");
  command->callback([flags, &line] {
    line.action = [flags, &line] {
      if (!flags->import.format.empty()) return import(*flags);
      flags->engine.model = find_model(flags->engine.model);
      flags->policies.insert(flags->policies.end(), flags->compared.begin(), flags->compared.end());
      flags->policies = with_memories(flags->policies, flags->memories);
      if (flags->policies.empty()) flags->policies = {"dense"};
      if (!flags->rows.empty()) {
        for (std::string& policy : flags->policies) policy += ";rows=" + flags->rows;
      }
      return evaluate(*flags, line.interrupts.token());
    };
  });
}

}  // namespace kinora::cli

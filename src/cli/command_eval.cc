#include <fmt/format.h>
#include <fmt/ranges.h>
#include <kinora/session.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/bundled.h"
#include "cli/command_line.h"
#include "cli/terminal.h"
#include "eval/import.h"
#include "eval/report.h"
#include "eval/run.h"

namespace kinora::cli {
namespace {

struct EvalFlags {
  std::string data;
  EngineOptions engine;
  EvalOptions run;
  std::vector<std::string> policies;
  std::string markdown;
  std::string html;
  ImportOptions import;
  std::string output;  // of an import
};

// A policy is a list of settings joined by semicolons: "attention=momo:k=64,exact=64;rows=bf16".
EvalPolicy parse_policy(const std::string& text) {
  EvalPolicy policy;
  policy.name = text;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = text.find(';', begin);
    if (end == std::string::npos) end = text.size();
    const std::string setting = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t equals = setting.find('=');
    const std::string name = setting.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : setting.substr(equals + 1);
    const bool number = !value.empty() && value.size() < 9 &&
                        value.find_first_not_of("0123456789") == std::string::npos;
    if (name == "rows") {
      policy.session.row_type = value;
    } else if (name == "dense-below" && number) {
      policy.session.dense_below = std::stoll(value);
    } else if (name == "group" && number) {
      policy.session.frames_per_group = std::stoll(value);
    } else {  // an attention policy, whose own settings may hold an equals sign
      policy.session.attention = name == "attention" ? value : setting;
    }
  }
  return policy;
}

void write_report(const std::string& path, const std::string& content) {
  if (!path.empty()) real_files().write(path, content);
}

int evaluate(EvalFlags& flags, const CancelToken& cancel) {
  const EvalData data = read_eval_data(real_files(), flags.data);
  std::vector<EvalPolicy> policies;
  for (const std::string& text : flags.policies) policies.push_back(parse_policy(text));
  for (const EvalProblem& problem : data.problems) {
    fmt::print(stderr, "kinora: {} line {}: {}\n", flags.data, problem.line, problem.message);
  }
  TerminalProgress progress(false);
  const Engine engine(flags.engine);
  flags.run.cancel = cancel;
  flags.run.progress = [&](int64_t done, int64_t total) {
    progress.update("questions", done, total);
  };
  const EvalOutcome outcome = run_eval(engine, data, policies, flags.run);
  progress.clear();
  for (const EvalProblem& problem : outcome.problems) {
    fmt::print(stderr, "kinora: {} line {}: {}\n", flags.data, problem.line, problem.message);
  }
  const std::string title = fmt::format("{} on {}{}", engine.describe().name, flags.data,
                                        flags.run.wrong_video ? " (wrong-video control)" : "");
  const auto tables = report_tables(outcome, flags.policies);
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
  write_report(flags.markdown, markdown);
  write_report(flags.html, as_html(tables, title));
  return 0;
}

int import(const EvalFlags& flags) {
  const auto items = import_annotations(real_files(), flags.data, flags.import);
  std::string lines;
  for (const EvalItem& item : items) lines += eval_line(item) + "\n";
  if (flags.output.empty()) {
    std::fwrite(lines.data(), 1, lines.size(), stdout);
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
  command->add_option("-m,--model", flags->engine.model, "Model directory")->type_name("DIR");
  command
      ->add_option("--policy", flags->policies,
                   "How to answer: dense, rows=f32|bf16, group=N, joined by commas; give several "
                   "to compare them on the same questions")
      ->capture_default_str()
      ->type_name("POLICY");
  command
      ->add_option("--results", flags->run.results,
                   "Keep every answer in this file, and go on from it after an interruption")
      ->type_name("FILE");
  command->add_option("--max-tokens", flags->run.max_tokens, "Longest answer, in tokens")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_flag("--wrong-video", flags->run.wrong_video,
                    "Ask about another video of the set: what guessing gives");
  command->add_option("--markdown", flags->markdown, "Write the report as Markdown")
      ->type_name("FILE");
  command->add_option("--html", flags->html, "Write the report as one HTML page")
      ->type_name("FILE");
  command->add_option("--threads", flags->engine.threads, "Threads to use; 0 is one per core")
      ->capture_default_str();
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
      "  kinora eval set.jsonl -m DIR --policy dense --policy \"momo;dense-below=0\"\n"
      "  kinora eval mlvu/2_needle.json --import mlvu --videos needle/ -o needle.jsonl");
  command->callback([flags, &line] {
    line.action = [flags, &line] {
      if (!flags->import.format.empty()) return import(*flags);
      if (flags->engine.model.empty()) flags->engine.model = default_model();
      if (flags->policies.empty()) flags->policies = {"dense"};
      return evaluate(*flags, line.interrupt);
    };
  });
}

}  // namespace kinora::cli

#include "cli/session_flags.h"

#include <fmt/format.h>
#include <kinora/quality.h>

#include <charconv>
#include <cstdlib>

#include "attention/attention_dtype.h"
#include "attention/policies/policy.h"
#include "base/error.h"
#include "base/file.h"
#include "cli/bundled.h"
#include "cli/checks.h"
#include "cli/model_name.h"
#include "cli/policies.h"
#include "cli/video_flags.h"
#include "engine/row_type.h"
#include "engine/tokens/tokens.h"
#include "generate/policies.h"
#include "memory/policies.h"
#include "memory/retention/retention.h"

namespace kinora::cli {

int64_t parse_size(const std::string& text) {
  const auto refuse = [&]() -> int64_t {
    throw Error(ErrorKind::usage, "'" + text + "' is not a size; write 6GiB, 512MiB or bytes");
  };
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [after, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (error != std::errc() || !(number > 0)) return refuse();
  // A person who writes 6 or 512 means no bytes.
  if (after == end && number < 1 << 20) {
    throw Error(ErrorKind::usage, fmt::format("'{0}' has no unit; write {0}MiB or {0}GiB", text));
  }
  // CLI11 knows the units, but multiplies whole numbers only.
  std::string unit = "1" + std::string(after, end);
  try {
    CLI::AsSizeValue(false)(unit);
  } catch (const CLI::ValidationError&) {
    return refuse();
  }
  const double bytes = number * std::stod(unit);
  if (!(bytes >= 1) || bytes > 1e18) return refuse();
  return static_cast<int64_t>(bytes);
}

namespace {

// Adds options to a group of the help.
auto options_of(CLI::App& command) {
  return [&command](const char* group, const char* name, auto& value, const std::string& text) {
    return command.add_option(name, value, text)->group(group);
  };
}

constexpr const char* policies = "Policies";
constexpr const char* machine = "The machine";

}  // namespace

void SessionFlags::add_to(CLI::App& command) {
  add_input(command);
  add_wording(command);
  add_attention(command);
  add_memory(command);
  add_draft(command);
  const auto option = options_of(command);
  add_budgets(command);
  add_machine(command);
  option(machine, "--trace", trace, "Write what was done when, for Perfetto or chrome://tracing")
      ->type_name("FILE");
  option(machine, "--timeline", timeline, "Draw what was done when (.png or .svg)")
      ->type_name("FILE");
  command.add_flag("-v,--verbose", verbose, "All timings, and what policies did");
}

void SessionFlags::add_reading_to(CLI::App& command, bool choose_memory) {
  add_input(command);
  options_of(command)(frame_flags_group, "--system", session.system,
                      "System prompt in place of the model's own");
  if (choose_memory) add_memory(command);
  add_budgets(command);
  add_machine(command);
}

void SessionFlags::add_indexing_to(CLI::App& command) {
  add_input(command);
  options_of(command)(frame_flags_group, "--system", session.system,
                      "System prompt in place of the model's own");
  add_attention(command);
  add_memory(command);
  add_budgets(command);
  add_machine(command);
}

void SessionFlags::add_serving_to(CLI::App& command) {
  add_model(command);
  add_attention(command);
  add_memory(command);
  add_draft(command);
  add_budgets(command);
  add_machine(command);
}

void SessionFlags::follow_memory(const std::vector<std::string>& sources) {
  for (size_t i = 1; i < sources.size(); ++i) {
    if (!is_memory_file(sources[i])) continue;
    throw Error(ErrorKind::usage, sources[i] + " is a saved memory: it comes first, and only one");
  }
  if (sources.empty() || !is_memory_file(sources[0])) return;
  const MemoryFile file = describe_memory(sources[0]);
  const auto refuse = [&](const char* flag, const std::string& made) {
    throw Error(ErrorKind::usage,
                fmt::format("{} was made with {}: leave out {}, or index it again", sources[0],
                            made, flag));
  };
  if (session.memory != SessionOptions().memory && session.memory != file.memory) {
    refuse("--memory", "--memory " + file.memory);
  }
  // However they are written: 0.50 is 0.5, and all:1 is all.
  if (!tokens_.empty()) {
    check_policy("--tokens", tokens_point(), tokens_);
    if (to_string(parse_tokens(tokens_)) != file.token_choice) {
      refuse("--tokens", "--tokens " + file.token_choice);
    }
  }
  if (!retain_.empty()) {
    check_policy("--retain", retention_point(), retain_);
    if (to_string(parse_retention(retain_)) != file.retain) {
      refuse("--retain", "--retain " + file.retain);
    }
  }
  if (!session.system.empty() && session.system != file.system) {
    refuse("--system", "another system prompt");
  }
  if (input.frames != FrameChoice()) refuse("the choice of frames", "frames of its own");
  if (input.max_pixels > 0) refuse("--max-pixels", "frames of its own");
  if (!subtitles.empty()) refuse("--subtitles", "what was read along then");
  const char* chosen = std::getenv("KINORA_MODEL");
  const bool named = !engine.model.empty() || (chosen != nullptr && *chosen != '\0');
  if (!named && real_files().is_directory(file.model_directory)) {
    engine.model = file.model_directory;
  }
}

Session SessionFlags::start(const Engine& opened, const SessionOptions& options,
                            std::vector<std::string>& sources) const {
  if (sources.empty() || !is_memory_file(sources[0])) return Session(opened, options);
  const std::string file = sources[0];
  sources.erase(sources.begin());
  return Session::reopen(opened, file, options, input.cancel);
}

void SessionFlags::add_draft(CLI::App& command) {
  options_of(command)(policies, "--draft", session.draft,
                      "What proposes tokens that the model verifies together: " +
                          policy_names(draft_point()) + "; the answer is the same")
      ->capture_default_str();
}

void SessionFlags::add_model(CLI::App& command) {
  command
      .add_option(
          "-m,--model", engine.model,
          "A model's name on Hugging Face's hub (kinora models, kinora pull) or its directory; "
          "default: $KINORA_MODEL, else the bundled kinora-tiny")
      ->type_name("MODEL");
}

void SessionFlags::add_input(CLI::App& command) {
  add_model(command);
  const auto option = options_of(command);
  const char* frames = frame_flags_group;
  add_frame_flags(command, input.frames);
  snap_ = command.get_option("--snap");
  add_limit_flags(command, input.limits);
  option(frames, "--max-pixels", input.max_pixels, "Most pixels of one frame")->check(whole(0));
  option(frames, "--subtitles", subtitles,
         "Subtitles to read along: a file (.srt, .vtt, .ass …), embedded (those inside the video; "
         "embedded:eng where there are several) or none; once for every video")
      ->type_name("embedded|FILE|none")
      ->expected(1)
      ->take_all();
}

void SessionFlags::add_wording(CLI::App& command) {
  const auto option = options_of(command);
  const char* wording = "The answer";
  option(wording, "--max-tokens", answer.max_tokens, "Longest answer, in tokens")
      ->capture_default_str()
      ->check(whole(1));
  option(wording, "--temperature", answer.temperature, "0 is greedy; default: the model's own");
  option(wording, "--top-k", answer.top_k, "Sample from the K most likely tokens; 0: all")
      ->check(whole(0));
  option(wording, "--top-p", answer.top_p, "Choose within this probability mass");
  option(wording, "--min-p", answer.min_p, "Drop tokens less likely than this share of the best");
  option(wording, "--repetition-penalty", answer.repetition_penalty,
         "Above 1 discourages tokens already used");
  option(wording, "--seed", answer.seed, "Seed of the random choice")
      ->capture_default_str()
      ->check(whole(0, INT64_MAX));
  option(wording, "--stop", answer.stop, "End the answer before this text (may be repeated)")
      ->expected(1)
      ->take_all();
  option(wording, "--system", session.system, "System prompt in place of the model's own");
  option(
      wording, "--video-prompt", engine.video_prompt,
      "How Qwen3-VL's videos are written: as transformers 4.57 or 5.10 do, or auto: as its files "
      "want it")
      ->capture_default_str()
      ->check(one_of({"auto", "4.57", "5.10"}));
}

void SessionFlags::add_attention(CLI::App& command) {
  const auto option = options_of(command);
  option(policies, "--quality", quality_,
         "exact, balanced or fast: a combination of the policies below (kinora help quality)")
      ->capture_default_str();
  option(policies, "--attention", attention_,
         "Which rows of memory a token reads: " + policy_names(attention_point()) +
             "; settings may follow (kinora help policies)");
  option(policies, "--attention-dtype", session.attention_dtype,
         "What attention multiplies in while prefilling on a Hopper GPU: bf16 or fp8 (faster, "
         "rounds more)")
      ->capture_default_str()
      ->check(one_of(attention_dtype_names()));
  option(policies, "--dense-below", session.dense_below,
         "Rows under which a sparse policy runs densely, as it does on a GPU where that is faster; "
         "0: never")
      ->check(whole(0));
}

void SessionFlags::add_memory(CLI::App& command) {
  const auto option = options_of(command);
  option(policies, "--tokens", tokens_,
         "Which visual tokens reach the decoder: " + policy_names(tokens_point()) +
             "; all but the first with a ratio, such as evs:0.25");
  option(policies, "--retain", retain_,
         "What a group of frames leaves in memory: " + policy_names(retention_point()) +
             "; all but the first with a ratio, such as key-norm:0.5");
  option(
      policies, "--memory", session.memory,
      "How rows are organised and which of them a question reads: " + policy_names(memory_point()))
      ->capture_default_str();
  option(
      policies, "--rows", rows_,
      "Type of keys and values: exact (as computed), f32, bf16, f16 (on CPUs), int8 or fp8 (8 bits "
      "with scales), or auto (bf16 where weights are bf16, else f32); default: as the quality says")
      ->check(one_of(row_type_names()));
}

void SessionFlags::add_budgets(CLI::App& command) {
  const auto option = options_of(command);
  command
      .add_flag("--bf16", native_bf16_,
                "Multiply in bf16 where weights and CPU allow: faster, rounded")
      ->group(policies);
  const char* budgets = "Budgets";
  option(budgets, "--memory-budget", memory_budget_,
         "Most memory to use (6GiB); kept by looking at fewer frames or pruning harder")
      ->type_name("SIZE");
  option(budgets, "--max-context", session.max_context, "Most tokens of the conversation")
      ->check(whole(1));
  command
      .add_flag("--strict", session.strict, "Refuse what is over a budget instead of adapting it")
      ->group(budgets);
}

void SessionFlags::add_machine(CLI::App& command) {
  const auto option = options_of(command);
  option(machine, "--device", engine.device, "auto, cpu, cuda or cuda:N")->capture_default_str();
  option(machine, "--threads", engine.threads, "Threads to use; 0 is one per core")
      ->capture_default_str()
      ->check(threads());
  option(machine, "--frames-per-group", session.frames_per_group,
         "Frames decoded, encoded and prefilled together")
      ->capture_default_str()
      ->check(whole(1));
  option(machine, "--decode-threads", session.decode_threads,
         "Threads that decode video; 0 is one per core")
      ->check(threads());
  command
      .add_flag("--sequential", sequential_,
                "Decode everything before the rest begins (for comparison)")
      ->group(machine);
  command
      .add_flag("--check-weights", engine.check_weights,
                "Read every weight first and refuse NaN and infinity")
      ->group(machine);
  command.add_flag("-q,--quiet", quiet, "No progress, no closing line");
}

void SessionFlags::resolve() {
  apply_quality(find_quality(quality_), engine, session);
  if (!attention_.empty()) {
    check_policy("--attention", attention_point(), attention_);
    session.attention = attention_;
    session.dense_on_gpu = false;
  }
  if (!retain_.empty()) {
    check_policy("--retain", retention_point(), retain_);
    session.retain = retain_;
  }
  if (!tokens_.empty()) {
    check_policy("--tokens", tokens_point(), tokens_);
    session.tokens = tokens_;
  }
  if (!rows_.empty()) session.row_type = rows_;
  check_policy("--memory", memory_point(), session.memory);
  check_policy("--draft", draft_point(), session.draft);
  if (native_bf16_) engine.native_bf16 = true;
  if (!memory_budget_.empty()) session.memory_budget = parse_size(memory_budget_);
  // Frames that a person chose are the ones that are looked at.
  if (input.frames.way != FrameChoice::Way::model) {
    session.frame_share = 1;
    session.snap_share = 0;
  }
  if (snap_ != nullptr && snap_->count() > 0) session.snap_share = 0;
  if (input.max_pixels > 0) session.pixel_share = 1;
  session.overlap = !sequential_;
  engine.model = find_model(engine.model);  // last: what is wrong with flags is said without it
}

std::vector<InputInfo> SessionFlags::add_inputs(Session& opened,
                                                const std::vector<std::string>& sources) const {
  if (subtitles.size() > sources.size()) {
    throw Error(ErrorKind::usage, fmt::format("{} files of subtitles for {} inputs",
                                              subtitles.size(), sources.size()));
  }
  std::vector<InputInfo> inputs;
  for (size_t i = 0; i < sources.size(); ++i) {
    InputOptions options = input;
    if (i < subtitles.size() && subtitles[i] != "none") options.subtitles = subtitles[i];
    inputs.push_back(opened.add(input_or_demo(sources[i]), options));
  }
  return inputs;
}

}  // namespace kinora::cli

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attention/policies/policy.h"
#include "attention/search/inspection.h"
#include "base/error.h"
#include "cli/attention_picture.h"
#include "cli/checks.h"
#include "cli/command_line.h"
#include "cli/model_name.h"
#include "cli/policies.h"
#include "cli/session_flags.h"
#include "cli/terminal/output.h"
#include "cli/terminal/terminal.h"
#include "draw/contact_sheet.h"
#include "draw/png_file.h"
#include "engine/attention_choice.h"
#include "engine/session_state.h"

namespace kinora::cli {
namespace {

struct InspectFlags {
  SessionFlags session;
  std::vector<std::string> sources;
  std::string question = "Describe what happens.";
  std::string attention = "momo";
  bool one_group = false;
  int layer = 0;
  std::optional<int> head;
  std::string output = "attention";
  int side = 256;
  bool json = false;
};

int inspect(InspectFlags& flags, const CancelToken& cancel) {
  check_policy("--attention", attention_point(), flags.attention);
  flags.session.resolve();
  TerminalProgress progress(flags.json || flags.session.quiet);
  progress.update("loading", 0, 0);
  const Engine engine(flags.session.engine);
  const EngineState& loaded = *EngineAccess::state(engine);
  const ModelInfo& info = loaded.model->info();
  if (flags.layer < 0 || flags.layer >= info.rows.layers) {
    throw Error(ErrorKind::usage,
                fmt::format("layer {} of {}; layers count from 0", flags.layer, info.rows.layers));
  }
  flags.session.input.cancel = cancel;
  SessionOptions& reading = flags.session.session;
  if (flags.one_group) reading.max_group_tokens = 0;
  reading.progress = [&](std::string_view stage, int64_t done, int64_t total) {
    progress.update(stage, done, total);
  };
  Session session(engine, reading);
  SessionState& state = SessionAccess::state(session);
  flags.session.add_inputs(session, flags.sources);
  SessionOptions shown = reading;
  shown.attention = flags.attention;
  shown.dense_below = 0;
  InspectionOptions options;
  options.layer = flags.layer;
  options.head = flags.head;
  options.side = flags.side;
  options.cancel = cancel;
  options.progress = [&](int64_t done, int64_t total) { progress.update("measure", done, total); };
  LayerInspection inspection(options, choose_cpu_attention(loaded, shown, state.frame_tokens()));
  state.observe(&inspection);
  AnswerOptions nothing;
  nothing.max_tokens = 0;
  nothing.cancel = cancel;
  const Answer read = session.ask(flags.question, nothing);
  progress.clear();
  for (const std::string& warning : read.warnings) {
    complain("warning: " + warning);
  }
  const std::vector<HeadInspection> heads = inspection.heads();
  const std::vector<Modality>& modalities = inspection.modalities();

  const std::string title =
      fmt::format("{}, layer {}, {} tokens, {}", model_title(flags.session.engine.model),
                  flags.layer, read.prompt_tokens, flags.attention);
  std::vector<std::string> pngs;
  if (heads.size() == 1) {
    const HeadInspection& picture = heads.front();
    const int cell = std::max(1, 512 / picture.attention.side);
    const Image image = draw_head(picture, modalities, cell);
    write_png(flags.output + ".png", image);
    pngs.push_back(encode_png(image));
  } else {
    std::vector<Image> images;
    for (const HeadInspection& picture : heads) {
      const int side = picture.attention.side;  // the line of text above needs some 200 pixels
      const int cell = (200 + side - 1) / side;
      images.push_back(draw_head(picture, modalities, cell));
    }
    ContactSheet sheet(static_cast<int64_t>(images.size()), images.front().width(),
                       images.front().height(), title);
    for (size_t i = 0; i < images.size(); ++i) {
      sheet.add(images[i].row(0), static_cast<size_t>(images[i].width()) * 3,
                fmt::format("head {}", heads[i].head));
    }
    write_png(flags.output + ".png", sheet.image());
    pngs.push_back(encode_png(sheet.image()));
  }
  real_files().write(flags.output + ".html", head_page(title, heads, pngs, modalities));

  nlohmann::json out = {{"layer", flags.layer},
                        {"tokens", read.prompt_tokens},
                        {"picture", flags.output + ".png"},
                        {"page", flags.output + ".html"}};
  size_t widest = 0;
  for (const HeadInspection& picture : heads) {
    widest = std::max(widest, picture.pattern.size());
  }
  for (const HeadInspection& picture : heads) {
    out["heads"].push_back({{"head", picture.head},
                            {"pattern", picture.pattern},
                            {"recall", picture.recall},
                            {"share_of_flops", picture.share}});
    if (!flags.json) {
      fmt::print("head {:<3} {:<{}}  recall {:.4f}  {:5.1f} % of the FLOPs\n", picture.head,
                 picture.pattern, widest, picture.recall, 100 * picture.share);
    }
  }
  if (flags.json) {
    fmt::print("{}\n", json_text(out));
  } else {
    fmt::print("{}.png, {}.html\n", flags.output, flags.output);
  }
  return 0;
}

}  // namespace

void add_inspect(CommandLine& line) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* command = line.app.add_subcommand("inspect", "Look inside a model at work");
  command->require_subcommand(1);
  command->footer(
      "Examples:\n"
      "  kinora inspect attention demo --layer 3");
  CLI::App* attention = command->add_subcommand(
      "attention", "Draw where heads attend and what a sparse policy computes of it");
  attention
      ->add_option("input", flags->sources,
                   "Videos or pictures, - for a pipe; 'demo' is the clip that comes with kinora")
      ->required()
      ->expected(1, -1)
      ->type_name("VIDEO…");
  flags->session.add_reading_to(*attention, true);
  attention->add_option("--question", flags->question, "Text after the video")
      ->capture_default_str();
  attention->add_flag("--one-group", flags->one_group,
                      "Read the prompt at once, as tune does, instead of in groups as ask does");
  attention->add_option("--layer", flags->layer, "Layer, from 0")
      ->capture_default_str()
      ->check(whole(0));
  attention->add_option("--head", flags->head, "Head, from 0; without it a sheet of all heads")
      ->check(whole(0));
  attention
      ->add_option("--attention", flags->attention,
                   "Policy to show: " + policy_names(attention_point()))
      ->capture_default_str();
  attention->add_option("-o,--output", flags->output, "Writes OUTPUT.png and OUTPUT.html")
      ->capture_default_str();
  attention->add_option("--cells", flags->side, "Most cells along a side of a map")
      ->capture_default_str()
      ->check(whole(8, 1024));
  attention->add_flag("--json", flags->json, "Print one JSON object");
  attention->footer(
      "Examples:\n"
      "  kinora inspect attention demo --layer 3\n"
      "  kinora inspect attention talk.mp4 -m DIR --layer 12 --head 3 --attention grid\n"
      "  kinora inspect attention talk.mp4 -m DIR --layer 12 -o layer12\n"
      "  kinora inspect attention talk.mp4 -m DIR --subtitles talk.srt --retain key-norm:0.5");
  attention->callback([flags, &line] {
    line.action = [flags, &line] { return inspect(*flags, line.interrupts.token()); };
  });
}

}  // namespace kinora::cli

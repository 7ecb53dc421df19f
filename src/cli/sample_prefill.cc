#include "cli/sample_prefill.h"

#include <algorithm>

#include "base/error.h"
#include "cli/checks.h"
#include "cli/video_flags.h"
#include "engine/group_prefill.h"
#include "engine/unit_stream.h"
#include "memory/flat_memory.h"

namespace kinora::cli {

CLI::Option* SampleFlags::add_to(CLI::App& command) {
  CLI::Option* model =
      command.add_option("-m,--model", engine.model, "A model's name or directory")
          ->type_name("MODEL");
  command.add_option("--question", question, "Text after the video")->capture_default_str();
  add_frame_flags(command, frames);
  command.add_option("--max-pixels", max_pixels, "Most pixels of one frame")->check(whole(0));
  command.add_option("--threads", engine.threads, "Threads to use; 0 is one per core")
      ->capture_default_str()
      ->check(whole(0));
  return model;
}

bool SampleFlags::take_prompt(const EvalItem& item) {
  std::vector<std::string> found;
  std::vector<std::string> between;
  std::string before;
  for (const EvalPart& part : item.parts) {
    if (!part.source.empty()) {
      found.push_back(part.source);
      between.emplace_back();
    } else {
      (found.empty() ? before : between.back()) += part.text;
    }
  }
  if (!found.empty() && !before.empty()) return false;
  sources = std::move(found);
  texts = std::move(between);
  question = before + item.question;
  return true;
}

Sample::Sample(const EngineState& engine, const SampleFlags& flags, Progress& progress,
               const CancelToken& cancel)
    : engine_(engine), progress_(progress), cancel_(cancel) {
  const Model& model = *engine.model;
  Conversation conversation;
  conversation.turns.push_back({"user", {}});
  OpenOptions open;
  open.cancel = cancel;
  open.progress = &progress;
  open.index_cache = default_index_cache();
  for (const std::string& source : flags.sources) {
    VisualRequest request;
    request.source = source;
    request.frames = flags.frames;
    request.limits.max_pixels = flags.max_pixels;
    inputs_.push_back(open_visual(model, request, open));
  }
  const auto images = std::count_if(inputs_.begin(), inputs_.end(), [](const VisualInput& input) {
    return input.plan.source.modality == Modality::image;
  });
  auto& parts = conversation.turns.front().parts;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    inputs_[i].plan_among(model, images);
    parts.push_back({inputs_[i].plan.source.modality, ""});
    if (i < flags.texts.size()) parts.push_back({Modality::text, flags.texts[i]});
  }
  parts.push_back({Modality::text, flags.question});
  runs_ = model.render(conversation);
  for (const PromptRun& run : runs_) {
    tokens_ += run.visual >= 0 ? inputs_[static_cast<size_t>(run.visual)].plan.tokens()
                               : static_cast<int64_t>(run.ids.size());
  }
}

int32_t Sample::frame_stride() const {
  for (const VisualInput& input : inputs_) {
    if (input.plan.source.modality == Modality::video && input.plan.tokens_per_unit > 0) {
      return static_cast<int32_t>(input.plan.tokens_per_unit);
    }
  }
  return 64;
}

void Sample::prefill(Attention& attention, int64_t group_tokens) {
  const Model& model = *engine_.model;
  RowLayout layout = model.info().rows;
  layout.dtype = DType::f32;
  FlatMemory memory(layout);
  const auto positions = model.positions();
  GroupPrefillOptions options;
  options.max_tokens = group_tokens;
  options.expected_tokens = tokens_;
  options.cancel = cancel_;
  SpanRecorder spans;
  GroupPrefill groups(engine_, memory, attention, options, progress_, spans);
  for (const PromptRun& run : runs_) {
    std::vector<TokenInfo> tokens;
    if (run.visual < 0) {
      if (run.ids.empty()) continue;
      positions->text(static_cast<int64_t>(run.ids.size()), tokens);
      groups.add(model.decoder().embed(engine_.context, run.ids), std::move(tokens));
      continue;
    }
    VisualInput& input = inputs_[static_cast<size_t>(run.visual)];
    ReadOptions read;
    read.cancel = cancel_;
    read.progress = &progress_;
    UnitStream stream(input, read, 16);
    while (auto units = stream.next()) {
      Tensor visual = model.encode(engine_.context, input.plan, units->frames, units->last);
      tokens.clear();
      positions->visual(input.plan, units->first, units->count, units->times, units->last, tokens);
      groups.add(std::move(visual), std::move(tokens));
    }
  }
  groups.finish();
}

}  // namespace kinora::cli

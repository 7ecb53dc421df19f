#include "cli/help/needs.h"

#include <fmt/format.h>

#include <functional>

#include "bench/shapes.h"
#include "cli/terminal/terminal.h"
#include "engine/budget/budget_planner.h"
#include "model/families/families.h"
#include "model/families/llava_onevision/config.h"
#include "model/families/llava_onevision/processor.h"
#include "model/families/qwen2_5_vl/config.h"
#include "model/families/qwen2_5_vl/frames.h"
#include "model/families/qwen2_5_vl/processor.h"
#include "model/families/qwen3_vl/config.h"
#include "model/families/qwen3_vl/processor.h"

namespace kinora::cli {
namespace {

constexpr Size video_size{1280, 720};
constexpr double video_fps = 30;
constexpr int64_t question_tokens = 64;  // and those around it

struct Published {
  const char* name;
  const char* shape;
  const char* rule;
  std::function<int64_t(int64_t pictures)> frames;
  std::function<VisualPlan(const VisualSource&)> plan;
  std::function<int64_t(const ConfigFiles&, const DecoderConfig&)> vision;  // parameters
  int64_t deep_levels = 0;
};

PixelNormalizer any_normalizer() { return PixelNormalizer({0.5f, 0.5f, 0.5f}, {0.5f, 0.5f, 0.5f}); }

int64_t qwen_frame_count(int64_t pictures) {
  return std::ssize(qwen_frames(QwenFrameRule{}, 0, pictures, video_fps));
}

VisualPlan plan_qwen(const VisualSource& source) {
  return QwenProcessor(QwenProcessor::Config{}, any_normalizer()).plan(source, {});
}

VisualPlan plan_qwen3(const VisualSource& source) {
  constexpr const char* common =
      R"("patch_size": 16, "temporal_patch_size": 2, "merge_size": 2,
         "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]})";
  const auto settings = [&](int64_t shortest, int64_t longest) {
    return fmt::format(R"({{"size": {{"shortest_edge": {}, "longest_edge": {}}}, {})", shortest,
                       longest, common);
  };
  return Qwen3Processor::parse(settings(65536, 16777216), "Qwen3-VL", settings(4096, 25165824))
      .plan(source, {});
}

VisualPlan plan_llava(const VisualSource& source) {
  return LlavaProcessor(LlavaProcessor::Config{}, any_normalizer()).plan(source);
}

int64_t qwen_vision(const ConfigFiles& files, const DecoderConfig& decoder) {
  const QwenVisionConfig v = read_qwen_vision(files, decoder.hidden);
  const int64_t joined = v.merge * v.merge * v.hidden;
  return v.layers * (4 * v.hidden * v.hidden + 3 * v.hidden * v.intermediate) +
         v.channels * v.temporal_patch * v.patch * v.patch * v.hidden +
         joined * (joined + v.output);
}

int64_t qwen3_vision(const ConfigFiles& files, const DecoderConfig& decoder) {
  const Qwen3VisionConfig v = read_qwen3_vision(files, decoder);
  const int64_t joined = v.merge * v.merge * v.hidden;
  return v.layers * (4 * v.hidden * v.hidden + 2 * v.hidden * v.intermediate) +
         v.channels * v.temporal_patch * v.patch * v.patch * v.hidden +
         v.position_side * v.position_side * v.hidden +
         (1 + v.levels()) * joined * (joined + v.output);
}

int64_t llava_vision(const ConfigFiles& files, const DecoderConfig& decoder) {
  const SiglipConfig v = read_llava(files).tower;
  return v.layers * (4 * v.hidden * v.hidden + 2 * v.hidden * v.intermediate) +
         decoder.hidden * (v.hidden + decoder.hidden);
}

int64_t decoder_parameters(const DecoderConfig& d) {
  const int64_t layer =
      2 * d.hidden * d.head_size * (d.heads + d.kv_heads) + 3 * d.hidden * d.intermediate;
  return d.layers * layer + (d.tied.value_or(false) ? 1 : 2) * d.vocabulary * d.hidden;
}

std::vector<Published> published() {
  const char* qwen = "2 frames a second, at most 768";
  const auto llava_frames = [](int64_t) { return int64_t{32}; };
  return {
      {"Qwen2.5-VL-3B", "qwen2.5-vl-3b", qwen, qwen_frame_count, plan_qwen, qwen_vision},
      {"Qwen2.5-VL-7B", "qwen2.5-vl-7b", qwen, qwen_frame_count, plan_qwen, qwen_vision},
      {"Qwen3-VL-8B", "qwen3-vl-8b", qwen, qwen_frame_count, plan_qwen3, qwen3_vision, 3},
      {"LLaVA-OneVision-7B", "llava-onevision-7b", "32 frames", llava_frames, plan_llava,
       llava_vision},
  };
}

}  // namespace

std::vector<ModelNeeds> model_needs(const std::vector<int64_t>& minutes) {
  std::vector<ModelNeeds> all;
  for (const Published& model : published()) {
    const ConfigFiles files = model_shape(model.shape).config;
    const DecoderConfig decoder = family_of(files).read(files).decoder;
    ModelNeeds row;
    row.model = model.name;
    row.rule = model.rule;
    row.weight_bytes = 2 * (decoder_parameters(decoder) + model.vision(files, decoder));
    for (const int64_t length : minutes) {
      const auto pictures = static_cast<int64_t>(static_cast<double>(length) * 60 * video_fps);
      VisualSource source;
      source.size = video_size;
      source.frames = model.frames(pictures);
      source.sampled_fps = static_cast<double>(source.frames) / static_cast<double>(length * 60);
      const VisualPlan plan = model.plan(source);
      InputShape input;
      input.moves = true;
      input.frames = source.frames;
      input.frames_per_unit = plan.frames_per_unit;
      input.tokens_per_unit = plan.tokens_per_unit;
      input.trailing_tokens = plan.trailing_tokens;
      input.frame_pixels = plan.frame_size.width * plan.frame_size.height;
      input.coded_pixels = video_size.width * video_size.height;
      input.decoded_pictures = input.indexed_pictures = pictures;
      BudgetRequest request;
      request.inputs = {input};
      request.text_tokens = [](std::span<const int64_t>) { return question_tokens; };
      request.retention = parse_retention("all");
      request.tokens = parse_tokens("all");
      request.token_bytes = decoder.layers * decoder.kv_heads * decoder.head_size * 2 * 2;
      request.weight_bytes = row.weight_bytes;
      request.hidden_size = decoder.hidden;
      request.deep_levels = model.deep_levels;
      request.decode_threads = 2;
      const Cost cost = cost_of(request, std::vector<int64_t>{input.frames}, 1);
      request.token_bytes =
          2 * decoder.layers * decoder.kv_heads * stored_columns(DType::i8, decoder.head_size);
      const Cost packed = cost_of(request, std::vector<int64_t>{input.frames}, 1);
      row.needs.push_back({length, cost.frames, cost.tokens, cost.bytes(), packed.bytes()});
    }
    all.push_back(std::move(row));
  }
  return all;
}

std::string needs_text(bool markdown) {
  const std::vector<int64_t> minutes = {1, 10, 60};
  const std::vector<ModelNeeds> all = model_needs(minutes);
  const auto cell = [](const Need& need) {
    return fmt::format("{} ({} frames, {} tokens)", human_bytes(need.bytes), need.frames,
                       need.tokens);
  };
  std::string text;
  if (markdown) {
    text = "| model | weights |";
    for (const int64_t length : minutes) {
      text += fmt::format(" {} minute{} |", length, length == 1 ? "" : "s");
    }
    text += "\n|---|---|";
    for (size_t i = 0; i < minutes.size(); ++i) text += "---|";
    text += "\n";
    for (const ModelNeeds& row : all) {
      text += fmt::format("| {} | {} |", row.model, human_bytes(row.weight_bytes));
      for (const Need& need : row.needs) text += " " + cell(need) + " |";
      text += "\n";
    }
    return text;
  }
  text =
      "What a question about a video of 1280×720 needs in memory, everything included, with the "
      "frames\nthat each model chooses by itself and 16 bits for weights, keys and values:\n\n";
  for (const ModelNeeds& row : all) {
    text += fmt::format("  {} ({} of weights; {})\n", row.model, human_bytes(row.weight_bytes),
                        row.rule);
    for (const Need& need : row.needs) {
      text += fmt::format("    {:>3} min  {}; {} with --rows int8\n", need.minutes, cell(need),
                          human_bytes(need.packed));
    }
  }
  return text +
         "\n--memory-budget keeps a limit by looking at fewer frames; --quality, --retain, "
         "--tokens "
         "and\n--memory need less of it. 'kinora probe VIDEO -m MODEL' says it for your video and "
         "model.\n";
}

}  // namespace kinora::cli

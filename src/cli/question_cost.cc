#include "cli/question_cost.h"

#include <functional>

#include "base/error.h"
#include "model/families/llava_onevision/processor.h"
#include "model/families/qwen2_5_vl/processor.h"

namespace kinora::cli {
namespace {

// Qwen2-7B, on which all three are built: 28 layers, 4 key/value heads of 128, two bytes each.
constexpr int64_t row_bytes_7b = int64_t{28} * 4 * 128 * 2 * 2;

// Plans do not depend on it.
PixelNormalizer any_normalizer() { return PixelNormalizer({0.5f, 0.5f, 0.5f}, {0.5f, 0.5f, 0.5f}); }

LlavaProcessor llava(VideoNewline newline) {
  LlavaProcessor::Config config;
  config.newline = newline;
  for (int64_t down = 1; down <= 6; ++down)
    for (int64_t across = 1; across <= 6; ++across)
      config.pinpoints.push_back({across * config.side, down * config.side});
  return LlavaProcessor(config, any_normalizer());
}

VisualPlan plan_qwen(const VisualSource& source) {
  return QwenProcessor(QwenProcessor::Config{}, any_normalizer()).plan(source, {});
}

struct Family {
  const char* name;
  const char* rule_text;
  SamplingRule rule;
  std::function<VisualPlan(const VisualSource&)> plan;
};

// LLaVA-Video looks once a second, and evenly when that would be more than 64 times.
SamplingRule llava_video_rule(const VideoInfo& info) {
  return info.duration > 64 ? SamplingRule::uniform(64) : SamplingRule::every(1);
}

}  // namespace

std::vector<QuestionCost> question_costs(Video& video) {
  const VideoInfo& info = video.info();
  const std::vector<Family> families = {
      {"Qwen2.5-VL", "2 frames a second, 4 to 768", SamplingRule::qwen(2.0), plan_qwen},
      {"Qwen2.5-VL", "1 frame a second, 4 to 768", SamplingRule::qwen(1.0), plan_qwen},
      {"LLaVA-OneVision", "32 frames", SamplingRule::uniform(32),
       [](const VisualSource& source) { return llava(VideoNewline::one_token).plan(source); }},
      {"LLaVA-Video", "1 frame a second, at most 64", llava_video_rule(info),
       [](const VisualSource& source) { return llava(VideoNewline::grid).plan(source); }},
  };
  std::vector<QuestionCost> costs;
  for (const Family& family : families) {
    QuestionCost cost;
    cost.family = family.name;
    cost.rule = info.still ? "one picture" : family.rule_text;
    if (info.still && !costs.empty() && costs.back().family == cost.family) continue;
    try {
      VisualSource source;
      source.size = {info.size.width, info.size.height};
      if (info.still) {
        source.modality = Modality::image;
      } else {
        source.frames = static_cast<int64_t>(video.sample(family.rule).size());
        source.sampled_fps =
            info.duration > 0 ? static_cast<double>(source.frames) / info.duration : 1;
      }
      const VisualPlan plan = family.plan(source);
      cost.frames = source.frames;
      cost.size = {plan.frame_size.width, plan.frame_size.height};
      cost.tokens = plan.tokens();
      cost.row_bytes = cost.tokens * row_bytes_7b;
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::cancelled) throw;
      cost.problem = error.what();
    }
    costs.push_back(std::move(cost));
  }
  return costs;
}

}  // namespace kinora::cli

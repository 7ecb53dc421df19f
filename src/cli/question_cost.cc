#include "cli/question_cost.h"

#include <functional>

#include "base/error.h"
#include "model/families/llava_onevision/processor.h"
#include "model/families/qwen2_5_vl/frames.h"
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
  std::function<size_t(Video&)> frames;  // that it looks at
  std::function<VisualPlan(const VisualSource&)> plan;
};

std::function<size_t(Video&)> qwen_at(double fps) {
  return [fps](Video& video) {
    QwenFrameRule rule;
    rule.fps = fps;
    const auto total = static_cast<int64_t>(video.times().size());
    return qwen_frames(rule, 0, total, video.info().fps).size();
  };
}

// LLaVA-Video looks once a second, and evenly when that would be more than 64 times.
size_t llava_video_frames(Video& video) {
  const bool is_long = video.info().duration > 64;
  return video.sample(is_long ? FrameChoice::evenly(64) : FrameChoice::rate(1)).size();
}

}  // namespace

std::vector<QuestionCost> question_costs(Video& video) {
  const VideoInfo& info = video.info();
  const std::vector<Family> families = {
      {"Qwen2.5-VL", "2 frames a second, 4 to 768", qwen_at(2), plan_qwen},
      {"Qwen2.5-VL", "1 frame a second, 4 to 768", qwen_at(1), plan_qwen},
      {"LLaVA-OneVision", "32 frames",
       [](Video& opened) { return opened.sample(FrameChoice::evenly(32)).size(); },
       [](const VisualSource& source) { return llava(VideoNewline::one_token).plan(source); }},
      {"LLaVA-Video", "1 frame a second, at most 64", llava_video_frames,
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
        source.frames = static_cast<int64_t>(family.frames(video));
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

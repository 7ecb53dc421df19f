#include "eval/visual_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "attention/policies/head_table.h"

namespace kinora {
namespace {

class CachingModel final : public Model {
 public:
  CachingModel(std::unique_ptr<Model> model, std::shared_ptr<TokenFolder> folder,
               const std::string& identity)
      : model_(std::move(model)), folder_(std::move(folder)), start_(identity) {}

  const ModelInfo& info() const override { return model_->info(); }
  const Tokenizer& tokenizer() const override { return model_->tokenizer(); }
  const Decoder& decoder() const override { return model_->decoder(); }
  std::vector<PromptRun> render(const Conversation& conversation) const override {
    return model_->render(conversation);
  }
  VisualPlan plan_visual(const VisualSource& source, const VisualLimits& limits) const override {
    return model_->plan_visual(source, limits);
  }
  std::unique_ptr<PositionCounter> positions() const override { return model_->positions(); }
  std::vector<int64_t> choose_frames(int64_t total, double source_fps,
                                     const FrameWish& wish) const override {
    return model_->choose_frames(total, source_fps, wish);
  }
  double default_fps() const override { return model_->default_fps(); }
  int64_t default_max_frames() const override { return model_->default_max_frames(); }

  Tensor encode(const Context& context, const VisualPlan& plan, const FrameGroup& frames,
                bool last) const override {
    const ConstTensorView pixels = frames.pixels;
    if (!pixels.device().is_cpu() || !pixels.contiguous()) {
      return model_->encode(context, plan, frames, last);
    }
    const ContentKey key = key_of(plan, pixels, last);
    if (auto known = folder_->find(key)) return std::move(*known);
    Tensor tokens = model_->encode(context, plan, frames, last);
    if (tokens.view().device().is_cpu()) folder_->store(key, tokens);
    return tokens;
  }

 private:
  // Everything that encode() may look at: the plan, the pixels, whether the item ends here.
  ContentKey key_of(const VisualPlan& plan, ConstTensorView pixels, bool last) const {
    ContentKey key = start_;
    for (const int64_t value :
         {static_cast<int64_t>(plan.source.modality), plan.source.size.width,
          plan.source.size.height, plan.source.images_in_prompt, plan.frame_size.width,
          plan.frame_size.height, plan.frames_per_unit, plan.tokens_per_unit, plan.trailing_tokens,
          plan.grid.width, plan.grid.height, pixels.size(0), int64_t{last}}) {
      key.add(value);
    }
    key.add(pixels.raw(), static_cast<size_t>(pixels.bytes()));
    return key;
  }

  std::unique_ptr<Model> model_;
  std::shared_ptr<TokenFolder> folder_;
  ContentKey start_;
};

}  // namespace

std::string weights_identity(const std::string& directory) {
  namespace fs = std::filesystem;
  const fs::path table = fs::path(head_table_places(directory).front()).filename();
  std::vector<std::string> files;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string extension = entry->path().extension().string();
    if (extension != ".safetensors" && extension != ".json") continue;
    if (entry->path().filename() == table) continue;
    const auto time = entry->last_write_time(error).time_since_epoch().count();
    files.push_back(fmt::format("{} {} {}", fs::weakly_canonical(entry->path(), error).string(),
                                entry->file_size(error), time));
  }
  std::sort(files.begin(), files.end());
  std::string identity;
  for (const std::string& file : files) identity += file + "\n";
  return identity;
}

std::unique_ptr<Model> with_visual_cache(std::unique_ptr<Model> model,
                                         std::shared_ptr<TokenFolder> folder,
                                         const std::string& identity) {
  return std::make_unique<CachingModel>(std::move(model), std::move(folder), identity);
}

std::string default_visual_cache() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0') {
    return join_path(cache, "kinora/visual");
  }
  const char* home = std::getenv("HOME");
  return home != nullptr && *home != '\0' ? join_path(home, ".cache/kinora/visual") : "";
}

}  // namespace kinora

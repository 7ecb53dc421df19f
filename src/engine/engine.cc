#include <kinora/engine.h>

#include "base/error.h"
#include "engine/engine_state.h"
#include "engine/stopwatch.h"

namespace kinora {
namespace {

// The CUDA backend has no ops yet, so `auto` is the CPU and asking for a GPU is refused by name.
Device choose_device(const std::string& name) {
  if (name == "auto") return Device::cpu();
  const Device device = parse_device(name);
  if (!device.is_cpu()) {
    throw Error(ErrorKind::unsupported,
                "models do not run on " + to_string(device) + " yet; use --device cpu");
  }
  return device;
}

int checked_threads(int threads) {
  if (threads < 0) {
    throw Error(ErrorKind::usage,
                "threads is " + std::to_string(threads) + ", but must be 0 or larger");
  }
  return threads;
}

}  // namespace

EngineState::EngineState(const EngineOptions& options, const FileSystem& files)
    : directory(options.model),
      threads(checked_threads(options.threads)),
      context(threads, choose_device(options.device)) {
  const Stopwatch watch;
  model = load_model(context, files, options.model, {.check_finite = options.check_weights});
  load_seconds = watch.seconds();
}

Engine::Engine(const EngineOptions& options)
    : state_(std::make_shared<const EngineState>(options, real_files())) {}

ModelDescription Engine::describe() const {
  const Model& model = *state_->model;
  const ModelInfo& info = model.info();
  RowLayout rows = info.rows;
  rows.dtype = info.weight_dtype == DType::f32 ? DType::f32 : DType::bf16;
  ModelDescription out;
  out.family = info.family;
  out.name = info.name;
  out.weight_type = dtype_name(info.weight_dtype);
  out.parameters = info.parameters;
  out.weight_bytes = info.weight_bytes;
  out.vocabulary = info.vocabulary;
  out.max_position = info.max_position;
  out.hidden_size = model.decoder().hidden_size();
  out.layers = rows.layers;
  out.kv_heads = rows.kv_heads;
  out.head_size = rows.head_size;
  out.row_bytes_per_token = rows.bytes_per_token();
  out.sees = info.sees;
  out.default_fps = model.default_fps();
  out.default_max_frames = model.default_max_frames();
  out.stop_tokens = info.stop_tokens;
  out.load_seconds = state_->load_seconds;
  return out;
}

VisualCost Engine::visual_cost(int64_t width, int64_t height, int64_t frames,
                               double sampled_fps) const {
  const VisualPlan plan = state_->model->plan_visual(
      {Modality::video, {width, height}, frames, sampled_fps}, VisualLimits{});
  return {plan.frame_size.width, plan.frame_size.height, plan.tokens()};
}

}  // namespace kinora

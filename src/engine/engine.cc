#include <kinora/engine.h>
#include <kinora/session.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "engine/engine_state.h"
#include "engine/row_type.h"
#include "engine/scheduler/scheduler.h"
#include "engine/stopwatch.h"
#include "model/weights/gpu_weights.h"
#include "ops/matmul.h"

namespace kinora {
namespace {

constexpr int oldest_gpu = 8;  // compute capability: the kernels need bf16 arithmetic

// `auto` is the first GPU that kinora runs on, else the CPU. A GPU asked for by name is refused
// when it is too old.
Device choose_device(const std::string& name) {
  const auto devices = cuda_devices();
  const auto fits = [&](size_t index) { return devices[index].major >= oldest_gpu; };
  if (name == "auto") {
    for (size_t i = 0; i < devices.size(); ++i) {
      if (fits(i)) return Device::cuda(static_cast<int>(i));
    }
    return Device::cpu();
  }
  const Device device = parse_device(name);
  if (!device.is_cpu() && !fits(static_cast<size_t>(device.index))) {
    const CudaDeviceInfo& info = devices[static_cast<size_t>(device.index)];
    throw Error(ErrorKind::unsupported,
                to_string(device) + " is a " + info.name + " of compute capability " +
                    std::to_string(info.major) + "." + std::to_string(info.minor) +
                    "; kinora needs 8.0 or newer: use the device cpu",
                ErrorHint::use_cpu);
  }
  return device;
}

// What a guess of seconds uses besides the measured rate.
constexpr double multiply_share = 0.6;   // of it that whole layers reach
constexpr double patches_per_token = 4;  // of the vision tower, for one token of the decoder
constexpr double decoded_pixels_per_core = 4e8;  // per second; H.264, no filters skipped
constexpr double gpu_multiply_rate = 3e14;
constexpr double cpu_bytes_per_second = 1e10;  // of weights, read for one token
constexpr double gpu_bytes_per_second = 1e12;

// Operations a second of a product of the size that prefill has.
double measure_multiply_rate(const Context& context, DType weights, bool native_bf16) {
  constexpr int64_t rows = 256, width = 512;
  const Tensor a = Tensor::zeros(DType::f32, {rows, width});
  const Tensor weight = Tensor::zeros(weights, {width, width});
  Tensor out(DType::f32, {rows, width});
  MatmulOptions options;
  options.native_bf16 = native_bf16;
  double best = 0;
  for (int i = 0; i < 4; ++i) {  // the first ones wake the threads
    const Stopwatch watch;
    matmul(context, a, weight, out, options);
    best = std::max(best, 2.0 * rows * width * width / std::max(watch.seconds(), 1e-6));
  }
  return best;
}

int checked_threads(int threads) {
  if (threads < 0) {
    throw Error(ErrorKind::usage,
                "threads is " + std::to_string(threads) + ", but must be 0 or larger");
  }
  return threads;
}

VideoPromptForm parse_video_prompt(const std::string& text) {
  if (text == "auto") return VideoPromptForm::by_file;
  if (text == "4.57") return VideoPromptForm::transformers_4_57;
  if (text == "5.10") return VideoPromptForm::transformers_5_10;
  throw Error(ErrorKind::usage,
              "unknown form of video prompts '" + text + "': give auto, 4.57 or 5.10");
}

}  // namespace

EngineState::EngineState(const EngineOptions& options, const FileSystem& files)
    : directory(options.model),
      threads(checked_threads(options.threads)),
      context(threads, choose_device(options.device)) {
  const Stopwatch watch;
  LoadOptions load;
  load.check_finite = options.check_weights;
  load.native_bf16 = options.native_bf16;
  load.gpu_exact = options.gpu_exact;
  load.video_prompt = parse_video_prompt(options.video_prompt);
  try {
    model = load_model(context, files, options.model, load);
  } catch (const Error& error) {
    // A GPU that was not asked for and cannot take the model (memory, libraries) is passed over.
    const bool about_the_gpu = error.kind() == ErrorKind::resource ||
                               error.kind() == ErrorKind::unsupported ||
                               error.hint() == ErrorHint::use_cpu;
    if (options.device != "auto" || context.device.is_cpu() || !about_the_gpu) throw;
    log_warning(std::string(error.what()) + "; using the CPU");
    context.device = Device::cpu();
    model = load_model(context, files, options.model, load);
  }
  load_seconds = watch.seconds();
  scheduler = std::make_unique<Scheduler>(context, model->decoder());
  native_bf16 = options.native_bf16;
  activations = activation_type(context, model->info().weight_dtype,
                                gpu_precision(options.gpu_exact, options.native_bf16));
  if (options.memory_budget == 0) return;
  const int64_t weights = model->info().weight_bytes;
  if (options.memory_budget <= weights) {
    throw Error(ErrorKind::resource, "the weights alone take " + std::to_string(weights) +
                                         " bytes, the memory budget is " +
                                         std::to_string(options.memory_budget) + ": raise it");
  }
  rows.set_limit(options.memory_budget - weights);
}

EngineState::EngineState(const std::string& device, int thread_count, const MakeModel& make)
    : threads(checked_threads(thread_count)), context(threads, choose_device(device)) {
  const Stopwatch watch;
  model = make(context);
  activations =
      activation_type(context, model->info().weight_dtype, gpu_precision(false, native_bf16));
  load_seconds = watch.seconds();
  scheduler = std::make_unique<Scheduler>(context, model->decoder());
}

EngineState::~EngineState() = default;

Speed EngineState::speed() const {
  std::call_once(measured_, [this] {
    multiply_rate_ = context.device.is_cpu()
                         ? measure_multiply_rate(context, model->info().weight_dtype, native_bf16)
                         : gpu_multiply_rate;
  });
  const ModelInfo& info = model->info();
  Speed speed;
  speed.token_operations = 2 * static_cast<double>(info.decoder_parameters);
  speed.attention_operations =
      4 * static_cast<double>(model->decoder().hidden_size()) * info.rows.layers;
  speed.vision_operations = 2 * patches_per_token * static_cast<double>(info.vision_parameters);
  speed.multiply_rate = multiply_rate_ * multiply_share;
  speed.pixel_rate = decoded_pixels_per_core * threads.threads();
  speed.shares_cores = context.device.is_cpu();
  // A step reads all weights of the decoder once.
  const double bytes = 2 * static_cast<double>(info.decoder_parameters);
  speed.step_seconds = bytes / (speed.shares_cores ? cpu_bytes_per_second : gpu_bytes_per_second);
  return speed;
}

Engine::Engine(const EngineOptions& options)
    : state_(std::make_shared<const EngineState>(options, real_files())) {}

ModelDescription Engine::describe() const {
  const Model& model = *state_->model;
  const ModelInfo& info = model.info();
  RowLayout rows = info.rows;
  rows.dtype = row_type_of(*state_, SessionOptions().row_type);
  ModelDescription out;
  out.family = info.family;
  out.name = info.name;
  out.weight_type = dtype_name(info.weight_dtype);
  out.parameters = info.parameters;
  out.weight_bytes = info.weight_bytes;
  out.stored_bytes = info.stored_bytes;
  out.quantization = info.quantization;
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

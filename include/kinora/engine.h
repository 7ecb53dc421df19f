// A loaded model, ready for sessions. Part of the public API: plain types only.
//
//   kinora::Engine engine({.model = "Qwen2.5-VL-3B-Instruct"});
//   kinora::Session session(engine);
//   session.add("talk.mp4");
//   session.ask("What is the talk about?", {}, [](std::string_view piece) { std::cout << piece; });
//
// Failures are kinora::Error (error.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <kinora/api.h>

namespace kinora {

struct EngineOptions {
  std::string model;            // a directory as Hugging Face publishes it
  std::string device = "auto";  // auto, cpu, cuda, cuda:N
  int threads = 0;              // 0: every core
  // Rounds the decoder's activations to bf16 where the weights are bf16 and the CPU has native bf16
  // instructions: faster, but no longer equal to f32.
  bool native_bf16 = false;
  // Bytes for the weights and the rows of all sessions together; 0: no limit. Sessions adapt to
  // what is left when a question is planned. If others take it while a question is being read, the
  // question fails with an error of kind resource and can be asked again.
  int64_t memory_budget = 0;
  bool check_weights = false;  // read all weights and refuse NaN and infinity
  // On a GPU: f32 throughout, whatever the weights are, for comparison with the CPU. Slow.
  bool gpu_exact = false;
  // Where versions of transformers write a video into the prompt in different ways (Qwen3-VL): auto
  // is that of the model's files, 4.57 or 5.10 (and later) that of this version.
  std::string video_prompt = "auto";
};

struct ModelDescription {
  std::string family;  // "qwen2_5_vl", "qwen3_vl", "llava_onevision", "llama", "qwen2", "qwen3"
  std::string name;    // of the directory
  std::string weight_type;
  int64_t parameters = 0;
  int64_t weight_bytes = 0;
  int64_t stored_bytes = 0;  // of the weights in their files
  std::string quantization;  // how they are stored there; empty: in weight_type
  int64_t vocabulary = 0;
  int64_t max_position = 0;
  int64_t hidden_size = 0;
  int layers = 0;
  int kv_heads = 0;
  int head_size = 0;
  int64_t row_bytes_per_token = 0;  // keys and values of one token, all layers
  bool sees = false;
  double default_fps = 0;  // 0: a fixed number of frames, evenly spread
  int64_t default_max_frames = 0;
  std::vector<int32_t> stop_tokens;
  double load_seconds = 0;
};

// What a video would cost.
struct VisualCost {
  int64_t width = 0;  // of the frames as the model sees them
  int64_t height = 0;
  int64_t tokens = 0;
};

struct EngineState;   // inside the library
struct EngineAccess;  // the way to it

// Thread-safe; copies share the model, and sessions keep it alive.
class KINORA_API Engine {
 public:
  explicit Engine(const EngineOptions& options);

  ModelDescription describe() const;
  // The cost of a video of this size with this many frames sampled at this rate. Throws unsupported
  // when the model cannot see.
  VisualCost visual_cost(int64_t width, int64_t height, int64_t frames, double sampled_fps) const;

 private:
  friend struct EngineAccess;
  explicit Engine(std::shared_ptr<const EngineState> state) : state_(std::move(state)) {}

  std::shared_ptr<const EngineState> state_;
};

}  // namespace kinora

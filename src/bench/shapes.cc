#include "bench/shapes.h"

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace kinora::cli {
namespace {

constexpr const char* qwen_7b = R"({
  "model_type": "qwen2_5_vl",
  "hidden_size": 3584, "num_hidden_layers": 28,
  "num_attention_heads": 28, "num_key_value_heads": 4,
  "intermediate_size": 18944, "vocab_size": 152064,
  "max_position_embeddings": 128000, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
  "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
  "tie_word_embeddings": false,
  "image_token_id": 151655, "video_token_id": 151656,
  "vision_config": {
    "hidden_size": 1280, "depth": 32, "num_heads": 16, "intermediate_size": 3420,
    "out_hidden_size": 3584, "fullatt_block_indexes": [7, 15, 23, 31], "tokens_per_second": 2
  }
})";

constexpr const char* qwen_3b = R"({
  "model_type": "qwen2_5_vl",
  "hidden_size": 2048, "num_hidden_layers": 36,
  "num_attention_heads": 16, "num_key_value_heads": 2,
  "intermediate_size": 11008, "vocab_size": 151936,
  "max_position_embeddings": 128000, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
  "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
  "tie_word_embeddings": true,
  "image_token_id": 151655, "video_token_id": 151656,
  "vision_config": {
    "hidden_size": 1280, "depth": 32, "num_heads": 16, "intermediate_size": 3420,
    "out_hidden_size": 2048, "fullatt_block_indexes": [7, 15, 23, 31], "tokens_per_second": 2
  }
})";

constexpr const char* qwen3_vl_8b = R"({
  "model_type": "qwen3_vl",
  "image_token_id": 151655, "video_token_id": 151656, "tie_word_embeddings": false,
  "text_config": {
    "hidden_size": 4096, "num_hidden_layers": 36, "head_dim": 128,
    "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 12288, "vocab_size": 151936,
    "max_position_embeddings": 262144, "rms_norm_eps": 1e-6, "rope_theta": 5e6,
    "rope_scaling": {"rope_type": "default", "mrope_section": [24, 20, 20]}
  },
  "vision_config": {
    "hidden_size": 1152, "depth": 27, "num_heads": 16, "intermediate_size": 4304,
    "out_hidden_size": 4096, "deepstack_visual_indexes": [8, 16, 24]
  }
})";

constexpr const char* llava_7b = R"({
  "model_type": "llava_onevision",
  "image_token_index": 151646, "video_token_index": 151647,
  "text_config": {
    "model_type": "qwen2",
    "hidden_size": 3584, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4,
    "intermediate_size": 18944, "vocab_size": 152128,
    "max_position_embeddings": 128000, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
    "tie_word_embeddings": false
  },
  "vision_config": {
    "model_type": "siglip_vision_model",
    "hidden_size": 1152, "num_hidden_layers": 26, "num_attention_heads": 16,
    "intermediate_size": 4304, "image_size": 384, "patch_size": 14
  }
})";

}  // namespace

ModelShape model_shape(const std::string& name) {
  const auto shape = [&](const char* config, VisionBench vision) {
    return ModelShape{ConfigFiles(nlohmann::json::parse(config), name), vision};
  };
  if (name == "qwen2.5-vl-7b") return shape(qwen_7b, bench_qwen_vision);
  if (name == "qwen2.5-vl-3b" || name == "3b") return shape(qwen_3b, bench_qwen_vision);
  if (name == "qwen3-vl-8b") return shape(qwen3_vl_8b, bench_qwen3_vision);
  if (name == "llava-onevision-7b") return shape(llava_7b, bench_siglip);
  throw Error(ErrorKind::usage, "unknown shape '" + name +
                                    "': give qwen2.5-vl-7b, qwen2.5-vl-3b, qwen3-vl-8b or "
                                    "llava-onevision-7b");
}

}  // namespace kinora::cli

// Weights: the tensors of a model directory bound to the architecture that its config describes.
// Read-only, mapped, in the types they were stored in; shared by all sessions. Both naming
// generations of Hugging Face files are understood.
#pragma once

#include <cstdint>
#include <vector>

#include "base/context.h"
#include "base/tensor.h"
#include "model/config.h"
#include "model/weights/safetensors.h"

namespace kinora {

struct LinearWeights {
  Tensor weight;  // [out, in]
  Tensor bias;    // [out]; undefined when there is none
};

struct NormWeights {
  Tensor weight;  // [width]
  Tensor bias;    // [width]; undefined for RMS norms
};

struct DecoderLayerWeights {
  Tensor input_norm;     // [hidden]
  LinearWeights query;   // [heads × head size, hidden]
  LinearWeights key;     // [kv heads × head size, hidden]
  LinearWeights value;   // the same
  LinearWeights output;  // [hidden, heads × head size]
  Tensor query_norm;     // [head size]; undefined without q/k norm
  Tensor key_norm;       // the same
  Tensor post_norm;      // [hidden]
  Tensor gate;           // [intermediate, hidden]
  Tensor up;             // the same
  Tensor down;           // [hidden, intermediate]
};

struct DecoderWeights {
  Tensor embeddings;  // [vocabulary, hidden]
  std::vector<DecoderLayerWeights> layers;
  Tensor norm;  // [hidden]
  Tensor head;  // [vocabulary, hidden]; the embeddings when tied
};

struct QwenVisionLayerWeights {
  Tensor attention_norm;  // [hidden]
  LinearWeights qkv;      // [3 × hidden, hidden]
  LinearWeights output;   // [hidden, hidden]
  Tensor mlp_norm;        // [hidden]
  LinearWeights gate;     // [intermediate, hidden]
  LinearWeights up;       // the same
  LinearWeights gate_up;  // both, one under the other: on a GPU, where the two above are undefined
  LinearWeights down;     // [hidden, intermediate]
};

struct QwenVisionWeights {
  Tensor patch;  // [hidden, channels × temporal patch × patch × patch]
  std::vector<QwenVisionLayerWeights> layers;
  Tensor merger_norm;        // [hidden]
  LinearWeights merger_in;   // [merge² × hidden, merge² × hidden]
  LinearWeights merger_out;  // [output, merge² × hidden]
};

struct SiglipLayerWeights {
  NormWeights attention_norm;  // [hidden]
  LinearWeights query;         // [hidden, hidden]
  LinearWeights key;
  LinearWeights value;
  LinearWeights output;
  NormWeights mlp_norm;
  LinearWeights up;    // [intermediate, hidden]
  LinearWeights down;  // [hidden, intermediate]
};

struct SiglipWeights {
  LinearWeights patch;  // [hidden, channels × patch × patch]
  Tensor positions;     // [grid², hidden]
  std::vector<SiglipLayerWeights> layers;
};

struct LlavaWeights {
  LinearWeights projector_in;   // [decoder hidden, tower hidden]
  LinearWeights projector_out;  // [decoder hidden, decoder hidden]
  Tensor newline;               // [decoder hidden]
};

struct ModelWeights {
  DecoderWeights decoder;
  QwenVisionWeights qwen_vision;  // by the config's family
  SiglipWeights siglip;
  LlavaWeights llava;
  int64_t parameters = 0;
  int64_t bytes = 0;
};

// Throws one error that lists every missing, extra or misshapen tensor. Nothing is read but the
// headers, unless `check_finite` asks for every number to be looked at.
ModelWeights bind_weights(const Context& context, const ModelConfig& config,
                          const TensorFiles& files, bool check_finite);

}  // namespace kinora

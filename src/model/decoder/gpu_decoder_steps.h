// Decoding steps: a few newest tokens through all layers as one captured graph. What changes from
// step to step (embeddings, positions, where rows lie and how many there are) is read on the
// device, so one graph serves all sessions. Used only by gpu_decoder_cuda.cc.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "attention/cuda/decode_cuda.h"
#include "base/gpu.h"
#include "model/decoder/gpu_decoder.h"

namespace kinora {

class GpuDecoder::Steps {
 public:
  static constexpr int64_t most_tokens = 8;

  Steps(const Context& context, const DecoderConfig& config, const Weights& weights, DType type,
        std::span<const double> frequencies);

  // The group's last hidden rows after the final norm; its rows are added to the store. The group
  // has at most `most_tokens` tokens. Callers on several threads take turns.
  Tensor run(const Context& context, const TokenGroup& group, RowStore& store, int64_t hidden_rows);

 private:
  // One kind of step.
  struct Kind {
    int64_t tokens;
    int splits;
    DType row_type;
    auto operator<=>(const Kind&) const = default;
  };
  struct Captured {
    int64_t used = 0;
    GpuGraph graph;
  };

  void make_buffers(const Context& context);
  void upload(const Context& context, const TokenGroup& group, RowStore& store);
  void replay(const Context& context, const Kind& kind);
  void layers(const Context& context, const Kind& kind);
  void attend(const Context& context, const Kind& kind, int64_t layer);

  const DecoderConfig& config_;
  const Weights& weights_;
  DType type_;
  std::vector<double> frequencies_;
  std::mutex mutex_;
  bool ready_ = false;
  Tensor state_;                    // LayerRows of every layer, then positions [most_tokens, 3] i32
  Tensor columns_;                  // frequencies and axes of the rotation
  Tensor cos_, sin_;                // [most_tokens, head size / 2]
  Tensor hidden_, last_;            // [most_tokens, hidden] f32
  Tensor normed_;                   // [most_tokens, hidden]
  Tensor qkv_;                      // [most_tokens, (heads + 2 × kv heads) × head size]
  Tensor queries_, mixed_;          // [most_tokens, heads × head size]
  Tensor gated_;                    // [most_tokens, intermediate]
  std::map<Kind, Tensor> scratch_;  // of the attention
  std::map<Kind, Captured> captured_;
};

}  // namespace kinora

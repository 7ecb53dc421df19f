// The decoder's weights, and the layers that decoders and vision towers are made of: tensors of a
// model directory bound to the architecture that its config describes. Read-only, in the types they
// were stored in, mapped or, of a small model on a CPU, copied; shared by all sessions. A tower's
// weights are in its family's folder.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "model/config.h"

namespace kinora {

class PackedMatrix;
class PackedStrips;
class WeightsBinder;

struct LinearWeights {
  Tensor weight;  // [out, in]; undefined where it is packed
  Tensor bias;    // [out]; undefined when there is none
  // The weight in 4 or 8 bits: decoder layers of quantised directories, as they are read and as a
  // CPU uses them; and the same, maybe of several layers, where a GPU uses it.
  std::shared_ptr<const PackedMatrix> packed = nullptr;
  std::shared_ptr<const PackedStrips> strips = nullptr;
};

struct NormWeights {
  Tensor weight;  // [width]
  Tensor bias;    // [width]; undefined for RMS norms
};

struct DecoderLayerWeights {
  Tensor input_norm;    // [hidden]; undefined where the input goes unnormed
  Tensor beside_norm;   // [hidden] of the rows beside; undefined where there are none
  LinearWeights query;  // [heads × head size, hidden]; with rows beside twice as wide, theirs first
  LinearWeights key;    // [kv heads × head size, the same]
  LinearWeights value;   // the same
  LinearWeights output;  // [hidden, heads × head size]
  Tensor query_norm;     // [head size]; undefined without q/k norm
  Tensor key_norm;       // the same
  Tensor post_norm;      // [hidden]
  LinearWeights gate;    // [intermediate, hidden]
  LinearWeights up;      // the same
  LinearWeights down;    // [hidden, intermediate]
};

struct DecoderWeights {
  Tensor embeddings;  // [vocabulary, hidden]
  std::vector<DecoderLayerWeights> layers;
  Tensor norm;         // [hidden]
  LinearWeights head;  // [vocabulary, hidden]; the embeddings when tied
};

// Of all tensors of a model.
struct WeightCount {
  int64_t parameters = 0;
  int64_t bytes = 0;         // in memory
  int64_t stored_bytes = 0;  // in the files: fewer where they hold 8 or 4 bits
};

// What does not fit is noted in the binder, whose finish() throws it.
DecoderWeights take_decoder(WeightsBinder& binder, const DecoderConfig& config);
// One layer, whose tensors' names begin with `name`.
DecoderLayerWeights take_decoder_layer(WeightsBinder& binder, const DecoderConfig& config,
                                       const std::string& name);

}  // namespace kinora

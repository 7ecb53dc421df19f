// A decoder of a published size with random bf16 weights, written to a file and mapped as a real
// one would be.
#pragma once

#include <string>
#include <vector>

#include "base/context.h"
#include "model/config.h"
#include "model/decoder/transformer_decoder.h"

namespace kinora::bench {

std::vector<std::string> shape_names();
DecoderConfig shape_config(const std::string& name);

// A directory that lasts as long as the object.
class RandomModel {
 public:
  RandomModel(const Context& context, const DecoderConfig& config, bool native_bf16);
  ~RandomModel();
  RandomModel(const RandomModel&) = delete;
  RandomModel& operator=(const RandomModel&) = delete;

  const TransformerDecoder& decoder() const { return *decoder_; }
  double load_seconds() const { return load_seconds_; }
  // Of the decoder layers, and of the output head.
  int64_t layer_parameters() const { return layer_parameters_; }
  int64_t head_parameters() const { return head_parameters_; }

 private:
  std::string directory_;
  std::unique_ptr<TransformerDecoder> decoder_;
  double load_seconds_ = 0;
  int64_t layer_parameters_ = 0;
  int64_t head_parameters_ = 0;
};

}  // namespace kinora::bench

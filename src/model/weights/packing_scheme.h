// What a config says about how the weights beside it are packed. Used by quantized_files.cc, which
// reads them.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/tensor.h"
#include "model/config_files.h"

namespace kinora {

// What `quantization_config` says.
struct PackingScheme {
  enum class Kind { plain, fp8, compressed, awq, gptq };
  Kind kind = Kind::plain;
  int bits = 8;
  int64_t group = 0;                      // inputs that share a scale; 0: all of an output
  std::array<int64_t, 2> block = {0, 0};  // outputs and inputs that share a scale; 0: no blocks
  int zero_offset = 0;                    // added to stored zero points
  bool groups_listed = false;             // every layer says which group an input belongs to
  std::string format;                     // of compressed-tensors
  DType result = DType::bf16;             // of fp8 with scales in f32
  std::string text;                       // for people; empty for plain weights

  bool mixed() const { return format == "mixed-precision"; }  // layers differ in their packing
};

// Throws unsupported with the name of a scheme that kinora does not read.
PackingScheme read_packing_scheme(const ConfigFiles& files);

}  // namespace kinora

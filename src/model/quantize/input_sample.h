// What enters every product of a decoder while it reads a sample text: how large each input is.
// Rounding can then spare the inputs that matter (AWQ, arXiv 2306.00978). Used by
// quantize_directory.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "base/context.h"
#include "base/file.h"
#include "base/progress.h"
#include "model/decoder/product_observer.h"

namespace kinora {

struct InputSizes {
  std::vector<double> magnitude;  // mean |x| of every input
  std::vector<double> square;     // mean x²
};

class InputSample {
 public:
  // Runs the first `tokens` tokens of the text through the directory's decoder. Throws bad_input
  // where the text has fewer than a hundred tokens.
  static InputSample take(const Context& context, const FileSystem& files,
                          const std::string& directory, const std::string& text, int64_t tokens,
                          Progress* progress, const CancelToken& cancel);

  int64_t tokens() const { return tokens_; }
  const InputSizes& of(int layer, Product product) const {
    return layers_[static_cast<size_t>(layer)][static_cast<size_t>(product)];
  }

 private:
  int64_t tokens_ = 0;
  std::vector<std::array<InputSizes, 4>> layers_;
};

}  // namespace kinora

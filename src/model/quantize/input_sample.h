// What enters every product of a decoder while it reads a sample text: how large each input is, so
// that rounding can spare the inputs that matter (AWQ, arXiv 2306.00978), and for 4 bits how
// neighbouring ones go together, so that their weights can make up for errors (compensation.h).
// Used by quantize_directory.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/cancel.h"
#include "base/context.h"
#include "base/file.h"
#include "base/progress.h"
#include "model/decoder/product_observer.h"
#include "model/quantize/input_moments.h"

namespace kinora {

struct InputSizes {
  std::vector<double> magnitude;  // mean |x| of every input
  std::vector<double> square;     // mean x²
};

class InputSample {
 public:
  // Runs the first `tokens` tokens of the text through the directory's decoder, and collects the
  // moments too if they are wanted: about a kilobyte for every input of every product. Throws
  // bad_input where the text has fewer than a hundred tokens, or where moments are not finite.
  static InputSample take(const Context& context, const FileSystem& files,
                          const std::string& directory, const std::string& text, int64_t tokens,
                          bool moments, Progress* progress, const CancelToken& cancel);

  int64_t tokens() const { return tokens_; }
  const InputSizes& of(int layer, Product product) const {
    return layers_[static_cast<size_t>(layer)][static_cast<size_t>(product)];
  }
  // Gives them away, as they are large; of nothing where they were not collected.
  InputMoments take_moments(int layer, Product product) {
    return std::exchange(moments_[static_cast<size_t>(layer)][static_cast<size_t>(product)], {});
  }

 private:
  int64_t tokens_ = 0;
  std::vector<std::array<InputSizes, 4>> layers_;
  std::vector<std::array<InputMoments, 4>> moments_;
};

}  // namespace kinora

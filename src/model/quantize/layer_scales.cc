#include "model/quantize/layer_scales.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>

namespace kinora {
namespace {

constexpr int exponents = 11;           // 0, 0.1 … 1 of the inputs' sizes are tried
constexpr int64_t rows_compared = 256;  // of each weight, evenly spread: enough to choose

using Names = std::map<std::string, std::string, std::less<>>;

// size^exponent for each input, so that the largest and the smallest are reciprocal.
std::vector<float> scales_for(const InputSizes& sizes, double exponent) {
  std::vector<float> scales;
  double low = std::numeric_limits<double>::infinity(), high = 0;
  for (const double size : sizes.magnitude) {
    const double scale = std::pow(std::max(size, 1e-6), exponent);
    low = std::min(low, scale);
    high = std::max(high, scale);
    scales.push_back(static_cast<float>(scale));
  }
  const auto middle = static_cast<float>(std::sqrt(low * high));
  for (float& scale : scales) scale = std::clamp(scale / middle, 1e-4f, 1e4f);
  return scales;
}

// The error in the outputs when some rows are rounded with these scales on their inputs.
double output_error(const ThreadPool& threads, const std::vector<std::vector<float>>& weights,
                    int64_t columns, const InputSizes& sizes, const std::vector<float>& scales,
                    const Rounding& rounding) {
  double error = 0;
  std::mutex lock;
  std::vector<float> importance;
  for (size_t i = 0; i < scales.size(); ++i) {
    importance.push_back(static_cast<float>(sizes.square[i] / (scales[i] * scales[i])));
  }
  for (const std::vector<float>& matrix : weights) {
    const int64_t rows = static_cast<int64_t>(matrix.size()) / columns;
    threads.parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
      const auto width = static_cast<size_t>(columns);
      std::vector<float> scaled(width), back(width);
      std::vector<float> found(static_cast<size_t>(rounding.groups(columns)));
      std::vector<uint8_t> codes(width);
      double own = 0;
      for (int64_t row = begin; row < end; ++row) {
        const float* from = matrix.data() + row * columns;
        for (size_t i = 0; i < width; ++i) scaled[i] = from[i] * scales[i];
        round_row(rounding, scaled.data(), columns, nullptr, codes.data(), found.data());
        unround_row(rounding, codes.data(), found.data(), columns, back.data());
        for (size_t i = 0; i < width; ++i) {
          const double left = back[i] - scaled[i];
          own += left * left * importance[i];
        }
      }
      const std::lock_guard guard(lock);
      error += own;
    });
  }
  return error;
}

class Chooser {
 public:
  Chooser(const ThreadPool& threads, const TensorFiles& files, const Names& names,
          const Rounding& rounding)
      : threads_(threads), files_(files), names_(names), rounding_(rounding) {
    rounding_.search = false;
  }

  // The best scales for weights that share their inputs.
  std::vector<float> best(const std::vector<std::string>& weights, const InputSizes& sizes) const {
    const auto columns = static_cast<int64_t>(sizes.magnitude.size());
    std::vector<std::vector<float>> matrices;
    for (const std::string& name : weights) matrices.push_back(some_rows(name));
    Rounding rounding = rounding_;
    rounding.group = std::min(rounding.group, columns);
    std::vector<float> chosen;
    double least = std::numeric_limits<double>::infinity();
    for (int i = 0; i < exponents; ++i) {
      std::vector<float> scales = scales_for(sizes, i / (exponents - 1.0));
      const double error = output_error(threads_, matrices, columns, sizes, scales, rounding);
      if (error < least) {
        least = error;
        chosen = std::move(scales);
      }
    }
    return chosen;
  }

 private:
  std::vector<float> some_rows(const std::string& name) const {
    const Tensor tensor = files_.tensor(names_.find(name)->second);
    const int64_t rows = tensor.size(0), columns = tensor.size(1);
    const int64_t count = std::min(rows, rows_compared);
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = i * rows / count;
      for (int64_t j = 0; j < columns; ++j) {
        const int64_t at = row * columns + j;
        values.push_back(tensor.dtype() == DType::bf16  ? tensor.data<bf16>()[at].to_float()
                         : tensor.dtype() == DType::f16 ? tensor.data<f16>()[at].to_float()
                                                        : tensor.data<float>()[at]);
      }
    }
    return values;
  }

  const ThreadPool& threads_;
  const TensorFiles& files_;
  const Names& names_;
  Rounding rounding_;
};

std::vector<float> importance_of(const InputSizes& sizes, const std::vector<float>& scales) {
  std::vector<float> importance;
  for (size_t i = 0; i < sizes.square.size(); ++i) {
    const double scale = scales.empty() ? 1.0 : scales[i];
    importance.push_back(static_cast<float>(sizes.square[i] / (scale * scale)));
  }
  return importance;
}

// A norm that is divided is rounded to its type again: the weights undo what it then really does.
void make_exact(const Tensor& before, std::vector<float>& scales) {
  if (before.rank() != 1) return;  // a matrix, which is itself rounded after it was divided
  const std::vector<float> values = values_of(before);
  for (size_t i = 0; i < scales.size(); ++i) {
    const float divided = values[i] / scales[i];
    const float kept = before.dtype() == DType::bf16  ? bf16::from_float(divided).to_float()
                       : before.dtype() == DType::f16 ? f16::from_float(divided).to_float()
                                                      : divided;
    if (kept != 0 && std::isfinite(kept)) scales[i] = values[i] / kept;
  }
}

}  // namespace

std::vector<float> values_of(const Tensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = tensor.dtype() == DType::bf16  ? tensor.data<bf16>()[i].to_float()
                : tensor.dtype() == DType::f16 ? tensor.data<f16>()[i].to_float()
                                               : tensor.data<float>()[i];
  }
  return values;
}

std::map<std::string, TensorScales> choose_scales(const ThreadPool& threads,
                                                  const TensorFiles& files, const Names& names,
                                                  InputSample& sample, int64_t layers,
                                                  const Rounding& rounding,
                                                  const CancelToken& cancel, Progress* progress) {
  const Chooser chooser(threads, files, names, rounding);
  std::map<std::string, TensorScales> result;
  for (int64_t layer = 0; layer < layers; ++layer) {
    cancel.check();
    if (progress != nullptr) progress->update("scales", layer, layers);
    const auto number = static_cast<int>(layer);
    const std::string own = fmt::format("model.language_model.layers.{}.", layer);
    const auto change = [&](const std::string& name) -> TensorScales& {
      return result[names.find(own + name)->second];
    };
    // What weights that share their inputs know of these.
    const auto weigh = [&](const std::vector<std::string>& parts, Product product,
                           const std::vector<float>& scales) {
      if (rounding.kind == PackedKind::int4) {
        const auto compensation = std::make_shared<const Compensation>(
            threads, sample.take_moments(number, product), scales);
        for (const std::string& part : parts) change(part).compensation = compensation;
        return;
      }
      for (const std::string& part : parts) {
        change(part).importance = importance_of(sample.of(number, product), scales);
      }
    };
    const auto together = [&](const std::vector<std::string>& parts, Product product,
                              const std::string& before) {
      const InputSizes& sizes = sample.of(number, product);
      std::vector<std::string> whole;
      for (const std::string& part : parts) whole.push_back(own + part);
      std::vector<float> scales = chooser.best(whole, sizes);
      make_exact(files.tensor(names.find(own + before)->second), scales);
      for (const std::string& part : parts) change(part).columns = scales;
      weigh(parts, product, scales);
      change(before).rows = scales;
    };
    together({"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"},
             Product::qkv, "input_layernorm.weight");
    together({"mlp.gate_proj.weight", "mlp.up_proj.weight"}, Product::gate_up,
             "post_attention_layernorm.weight");
    together({"mlp.down_proj.weight"}, Product::down, "mlp.up_proj.weight");
    // Several query heads share a value head, so that nothing before can divide.
    weigh({"self_attn.o_proj.weight"}, Product::output, {});
  }
  return result;
}

}  // namespace kinora

#include "model/decoder/rotary.h"

#include <array>
#include <numbers>

namespace kinora {

std::vector<double> rotary_frequencies(const RopeConfig& rope, int64_t head_size) {
  std::vector<double> frequencies = rope_inverse_frequencies(head_size, rope.theta);
  if (!rope.llama3) return frequencies;
  // In f32 step by step, as the reference computes them: slow frequencies are divided by the
  // factor, fast ones kept, those between blended.
  const auto factor = static_cast<float>(rope.llama3->factor);
  const auto low = static_cast<float>(rope.llama3->low_frequency_factor);
  const auto high = static_cast<float>(rope.llama3->high_frequency_factor);
  const auto context = static_cast<float>(rope.llama3->original_max_position);
  for (double& frequency : frequencies) {
    const auto plain = static_cast<float>(frequency);
    const float wavelength = 2 * std::numbers::pi_v<float> / plain;
    if (wavelength > context / low) {
      frequency = plain / factor;
    } else if (wavelength >= context / high) {
      const float smooth = (context / wavelength - low) / (high - low);
      frequency = (1 - smooth) * plain / factor + smooth * plain;
    }
  }
  return frequencies;
}

std::vector<int32_t> rotary_axes(const RopeConfig& rope, int64_t head_size) {
  std::vector<int32_t> axes(static_cast<size_t>(head_size / 2), 0);
  if (!rope.sections) return axes;
  const auto& sections = *rope.sections;
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto column = static_cast<int64_t>(i);
    if (rope.interleaved) {
      const size_t axis = i % 3;
      if (column < 3 * sections[axis]) axes[i] = static_cast<int32_t>(axis);
      continue;
    }
    axes[i] = column < sections[0] ? 0 : column < sections[0] + sections[1] ? 1 : 2;
  }
  return axes;
}

RopeTable rotary_table(const Context& context, const RopeConfig& rope,
                       std::span<const double> frequencies, std::span<const Position> positions) {
  if (rope.sections) {
    std::vector<std::array<int64_t, 3>> turns(positions.size());
    for (size_t i = 0; i < positions.size(); ++i) {
      for (size_t k = 0; k < 3; ++k) turns[i][k] = positions[i][k];
    }
    const auto head_size = static_cast<int64_t>(2 * frequencies.size());
    return mrope_table(context, frequencies, turns, rotary_axes(rope, head_size));
  }
  std::vector<int64_t> turns(positions.size());
  for (size_t i = 0; i < positions.size(); ++i) turns[i] = positions[i][0];
  return rope_table(context, frequencies, turns);
}

}  // namespace kinora

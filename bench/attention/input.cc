#include "input.h"

#include <cmath>

#include "base/random.h"

namespace kinora::bench {

Input::Input(const InputShape& shape, uint64_t seed) : shape_(shape) {
  Random random(seed);
  const auto fill = [&](std::vector<float>& data, int64_t heads) {
    const int64_t size = shape.head_size;
    // What a place within a frame looks like, the same in every frame.
    std::vector<float> place(static_cast<size_t>(shape.frame * heads * size));
    for (float& value : place) value = static_cast<float>(random.normal());
    data.resize(static_cast<size_t>(shape.tokens * heads * size));
    for (int64_t token = 0; token < shape.tokens; ++token) {
      const float* like = &place[static_cast<size_t>(token % shape.frame * heads * size)];
      float* to = &data[static_cast<size_t>(token * heads * size)];
      for (int64_t i = 0; i < heads * size; ++i) {
        to[i] = 0.7f * like[i] + 0.7f * static_cast<float>(random.uniform(-1.7, 1.7));
      }
    }
  };
  fill(queries_, shape.heads);
  fill(keys_, shape.kv_heads);
  fill(values_, shape.kv_heads);
  // A prompt before the video and a question after it.
  const int64_t head = 32, tail = 96;
  for (int64_t token = 0; token < shape.tokens; ++token) {
    ordinals_.push_back(static_cast<int32_t>(token));
    modalities_.push_back(token < head || token >= shape.tokens - tail ? Modality::text
                                                                       : Modality::video);
  }
}

QueryView Input::queries(int64_t count) const {
  return {ConstTensorView::of(queries_.data(), {count, shape_.heads, shape_.head_size}),
          std::span(ordinals_).first(static_cast<size_t>(count)),
          std::span(modalities_).first(static_cast<size_t>(count))};
}

RowSet Input::rows(int64_t count) const {
  const Shape size{count, shape_.kv_heads, shape_.head_size};
  return {ConstTensorView::of(keys_.data(), size), ConstTensorView::of(values_.data(), size),
          std::span(ordinals_).first(static_cast<size_t>(count)),
          std::span(modalities_).first(static_cast<size_t>(count))};
}

float Input::scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.head_size)); }

}  // namespace kinora::bench

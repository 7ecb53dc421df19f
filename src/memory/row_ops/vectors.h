// Arithmetic of long vectors, in the widest registers that the processor has: means of keys and
// what is near to them, for every row of every frame.
#pragma once

#include <cstddef>

namespace kinora {

// Σ a b
float dot(const float* a, const float* b, size_t count);
// Σ (a − b)²
float squared_distance(const float* a, const float* b, size_t count);
void multiply(float* vector, float factor, size_t count);

// mean += share (point − mean). Gives back Σ (point − mean)² from before and Σ mean² from after.
struct MovedMean {
  float distance = 0;
  float squares = 0;
};
MovedMean move_mean(float* mean, const float* point, float share, size_t count);

}  // namespace kinora

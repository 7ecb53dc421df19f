// A colour scale for values in [0, 1], from nearly black over violet and orange to pale yellow: its
// brightness rises evenly, so that it also reads in gray.
#pragma once

#include "draw/image.h"

namespace kinora {

Colour heat_colour(double value);  // clamped; NaN is mid-gray

// Colours that are easy to tell apart, for the bars of a chart; repeats after eight.
Colour series_colour(int index);

}  // namespace kinora

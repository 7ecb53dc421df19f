#include "draw/colours.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace kinora {

Colour heat_colour(double value) {
  constexpr double anchors[][3] = {{6, 6, 18},    {48, 20, 92},   {112, 32, 120}, {176, 52, 100},
                                   {228, 88, 60}, {248, 152, 40}, {250, 210, 90}, {252, 250, 200}};
  if (std::isnan(value)) return {128, 128, 128};
  constexpr int last = static_cast<int>(std::size(anchors)) - 1;
  const double position = std::clamp(value, 0.0, 1.0) * last;
  const int low = std::min(static_cast<int>(position), last - 1);
  const double part = position - low;
  const auto mix = [&](int c) {
    return static_cast<uint8_t>(
        std::lround(anchors[low][c] * (1 - part) + anchors[low + 1][c] * part));
  };
  return {mix(0), mix(1), mix(2)};
}

Colour series_colour(int index) {
  constexpr Colour colours[] = {{66, 133, 214},  {230, 126, 50}, {76, 164, 88},   {204, 70, 78},
                                {142, 100, 190}, {150, 110, 84}, {222, 130, 188}, {120, 170, 180}};
  constexpr int count = static_cast<int>(std::size(colours));
  return colours[((index % count) + count) % count];
}

}  // namespace kinora

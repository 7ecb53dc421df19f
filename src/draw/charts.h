// Tables of numbers as pictures: heat maps with a legend, horizontal bars. Used by `kinora inspect`
// and the timelines.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "draw/image.h"

namespace kinora {

struct HeatMapOptions {
  std::string title;
  std::string row_name;     // along the left side, written at the top
  std::string column_name;  // along the bottom
  double low = 0;           // value of the darkest colour; low == high: taken from the values
  double high = 0;
  int cell = 0;  // pixels a value; 0: so that the longer side is about 512
};

// `values` is [rows, columns], row by row. Larger maps than 4096 a side are averaged down first.
Image heat_map(std::span<const float> values, int rows, int columns,
               const HeatMapOptions& options = {});

struct Bar {
  std::string label;
  double value = 0;  // not negative
  std::string text;  // beside the bar; empty: the value
};

Image bar_chart(const std::vector<Bar>& bars, const std::string& title, int width = 640);

}  // namespace kinora

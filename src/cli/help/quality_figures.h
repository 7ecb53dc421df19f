// What the presets gave with the bundled model, for `kinora help quality`. The build makes the
// source file from the tables of docs/results/ (cmake/QualityFigures.cmake), so that nobody types
// figures.
#pragma once

#include <string>
#include <vector>

namespace kinora::cli {

// A line for every figure: what it is, then the figure of each preset. The first has their names.
const std::vector<std::vector<std::string>>& quality_figures();
// When these were measured, in order.
const std::vector<std::string>& quality_dates();

}  // namespace kinora::cli

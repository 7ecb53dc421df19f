// Rounding in which weights make up for one another's errors (the idea of GPTQ, arXiv 2210.17323).
// Inputs of a block go together, so that much of what one of them would have added is there in
// those that follow it. The columns of a row are rounded one after the other, and what an error
// changes in the output is given to the weights that are still to be rounded. Used by
// quantize_directory, for 4 bits with a sample.
#pragma once

#include <cstdint>
#include <vector>

#include "base/threads.h"
#include "model/quantize/input_moments.h"
#include "model/quantize/rounding.h"

namespace kinora {

class Compensation {
 public:
  // `scales` are what the columns of the weights are multiplied by, and the inputs divided by;
  // empty: nothing. The sums must be finite.
  Compensation(const ThreadPool& threads, const InputMoments& moments,
               const std::vector<float>& scales);

  int64_t columns() const { return columns_; }

  // One row of scaled weights [columns] → codes [columns] and scales [groups], as round_row does
  // for int4. `row` is used up: it ends as what was rounded, errors of earlier columns included.
  void round_row(const Rounding& rounding, float* row, uint8_t* codes, float* scales) const;

 private:
  int64_t columns_ = 0;
  // Of every column: the sum of squares of the part of its input that later ones do not tell. An
  // error there can no longer be made up for.
  std::vector<float> importance_;
  // Of every column, one after the other: how much of its error each later one of the block gets.
  std::vector<float> shares_;
};

}  // namespace kinora

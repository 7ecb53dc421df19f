// Rounding in which weights make up for one another's errors (the idea of GPTQ, arXiv 2210.17323).
// Inputs of a block go together, so that much of what one of them adds to an output is there in the
// others. The weights of a row are rounded one after the other, and what an error changes in the
// output is given to those of the block that are still to be rounded. Used by quantize_directory,
// for 4 bits with a sample.
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

  // All columns, block after block, in the order in which they are rounded: large inputs come
  // first, while there are many weights left that can make up for an error.
  const std::vector<int64_t>& order() const { return order_; }

  // One row of scaled weights [columns] → codes [columns] and scales [groups], as round_row does
  // for int4.
  void round_row(const Rounding& rounding, const float* row, uint8_t* codes, float* scales) const;

 private:
  std::vector<int64_t> order_;
  // Of every column: the sum of squares of the part of its input that later ones do not tell. An
  // error there can no longer be made up for.
  std::vector<float> importance_;
  // Of every column in that order: how much of its error each later one of the block gets.
  std::vector<float> shares_;
};

}  // namespace kinora

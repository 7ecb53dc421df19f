// The largest entries of one row of logits: greedy choice and top-k candidates in generate/.
#pragma once

#include <cstdint>
#include <vector>

#include "base/context.h"
#include "base/tensor.h"

namespace kinora {

struct Candidate {
  int32_t index = 0;
  float value = 0;
  bool operator==(const Candidate&) const = default;
};

// Index of the largest of x [n] f32; the lowest index among equals. NaN is never chosen; throws
// when there is nothing else (or nothing at all).
int32_t argmax(const Context& context, ConstTensorView x);
// The same for every row of x [rows, n]; a GPU is waited for once.
std::vector<int32_t> argmax_rows(const Context& context, ConstTensorView x);

// The min(k, n) largest of x [n] f32, largest first, lower index first among equals; NaN left out.
std::vector<Candidate> top_k(const Context& context, ConstTensorView x, int64_t k);

// The largest of a row, and its mass: Σ exp(x[i] − largest), NaN left out; 0 where nothing is left.
struct RankedRow {
  std::vector<Candidate> best;
  double mass = 0;
};
// Both for every row of x [rows, n]; a GPU is waited for once.
std::vector<RankedRow> top_k_rows(const Context& context, ConstTensorView x, int64_t k);

// The same for a GPU that goes on with what was found: nothing but launches, so that it can stand
// in a captured graph.
class RankedThere {
 public:
  // Room for up to `rows` rows of `columns` numbers on the context's GPU.
  RankedThere(const Context& context, int64_t rows, int64_t columns, int64_t k);
  static bool takes(int64_t columns, int64_t k);

  void rank(const Context& context, ConstTensorView x);  // [rows, columns] f32

  // In device memory.
  const double* mass() const;       // [rows]
  const Candidate* best() const;    // [rows, k], largest first; none beyond `taken`
  const int32_t* taken() const;     // [rows]
  int64_t k() const { return k_; }  // of each row

 private:
  int64_t rows_, columns_, k_;
  Tensor parts_;    // what blocks have found
  Tensor results_;  // the masses, then the candidates, then how many there are of each row
};

}  // namespace kinora

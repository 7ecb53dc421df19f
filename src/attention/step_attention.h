// Attention of decoding steps on a CPU: one new token of each sequence, all sequences at once. What
// they read is cut into pieces, which all threads share out; a piece that several sequences read,
// as conversations about one video do, is read once for all of them. Partial results merge exactly.
// A sequence's result is the same bits whoever else takes part. Used by batch_runner.cc.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/attention.h"
#include "base/context.h"

namespace kinora {

class StepAttention {
 public:
  // Whether it can compute what attend_densely would: one query, which reads all rows of all sets.
  static bool takes(const QueryView& queries, std::span<const RowSet> sets);

  // One more sequence. What it is given must live until `run`.
  //   out: f32 [1, heads, head size]
  void add(const QueryView& queries, std::span<const RowSet> sets, TensorView out);
  // Computes all that were added, which are then forgotten.
  void run(const Context& context, float scale);
  void clear();

 private:
  struct Reader {
    ConstTensorView query;  // [heads, head size]
    TensorView out;
    int64_t first = 0;  // of its pieces
    int64_t count = 0;
  };
  // Some rows of one set, for one reader.
  struct Stretch {
    const RowSet* set = nullptr;
    int64_t begin = 0;
    int64_t count = 0;
    int64_t reader = 0;
    int64_t place = 0;  // among all stretches: where the results stand
  };
  // One kv head, or all, of stretches that are the same rows.
  struct Job {
    size_t first = 0;  // of stretches_
    size_t end = 0;
    int64_t head_begin = 0;
    int64_t head_end = 0;
    int64_t work = 0;  // rows × readers × kv heads
  };

  static bool same_rows(const Stretch& a, const Stretch& b);
  void share(int threads);
  void work(const Job& job, int64_t kv_head, float scale, float* results) const;

  int64_t kv_heads_ = 0;
  std::vector<Reader> readers_;
  std::vector<Stretch> stretches_;  // reader by reader, until they are ordered by their rows
  std::vector<Job> jobs_;
};

}  // namespace kinora

// What a policy has a GPU do, timed without waiting for it: the times of planning and running and
// the number of pairs are read when somebody asks for the report.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "attention/report.h"
#include "base/context.h"
#include "base/gpu.h"
#include "base/tensor.h"

namespace kinora {

class GpuWork {
 public:
  // One piece of work: begin, planned and end are called in this order, each at its moment.
  void begin(const Context& context, std::string label, int64_t heads);
  void planned(const Context& context);
  void end(const Context& context, int64_t pairs = 0);
  // Pairs of the last piece besides: one u64 in device memory.
  void counted(Tensor pairs) { pieces_.back().counted = std::move(pairs); }

  // Waits for all work and adds it to the report.
  void settle(AttentionReport& report);
  void clear() { pieces_.clear(); }

 private:
  struct Piece {
    std::string label;
    int64_t heads = 0;
    int64_t pairs = 0;
    Tensor counted;
    std::unique_ptr<GpuEvent> begin, planned, end;
  };
  void settle_first(AttentionReport& report);

  std::deque<Piece> pieces_;
  AttentionReport settled_;  // of pieces that made room for others
};

}  // namespace kinora

// What a sparse policy did: how much of dense attention it computed, and where the time went. The
// engine passes it on with every answer.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "attention/attention_dtype.h"

namespace kinora {

struct AttentionReport {
  struct Part {
    int64_t heads = 0;  // summed over calls
    int64_t pairs = 0;  // (query, head, row) triples computed
    double seconds = 0;
  };
  int64_t calls = 0;
  int64_t dense_calls = 0;  // of these, run densely because sparse would have been slower
  int64_t pairs = 0;
  int64_t dense_pairs = 0;   // what dense attention would have computed
  double index_seconds = 0;  // measuring, searching, planning
  double run_seconds = 0;
  std::map<std::string, Part> parts;            // by pattern
  AttentionDtype dtype = AttentionDtype::bf16;  // that was asked for
  AttentionLaunches launches{};                 // on a GPU, where that is fp8

  // Share of the multiply-adds of dense attention; 1 when nothing was computed.
  double share() const {
    return dense_pairs > 0 ? static_cast<double>(pairs) / static_cast<double>(dense_pairs) : 1.0;
  }
};

}  // namespace kinora

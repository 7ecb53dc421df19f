// One layer's attention as a ladder: dense, lists of blocks that get fewer and fewer, rows a stride
// apart, gathered rows (these on a GPU only), and the sparse policies by name; index and run apart,
// the host's part of the time, what was computed, and how much of the attention it holds. Used by
// cli/commands/bench_attention.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "attention/attention_dtype.h"
#include "base/context.h"
#include "bench/video_keys.h"

namespace kinora::cli {

struct AttentionFigure {
  int64_t tokens = 0;
  std::string name;
  double seconds = 0;                                   // by the device's clock, all of it
  double index_seconds = 0;                             // of these, making the lists
  double host_seconds = 0;                              // until the call returns
  double pairs = 0;                                     // (query, head, row) triples computed
  double share = 1;                                     // of what dense attention computes
  std::vector<std::pair<std::string, double>> parts{};  // a policy's, in seconds
  AttentionLaunches launches{};                         // where FP8 was asked for
  std::vector<double> held{};  // share of each head's attention that its lists hold, if asked for
};

struct AttentionBenchOptions {
  AttentionShape shape;
  VideoKeyOptions keys;
  int64_t group = 0;  // only so many queries, the last ones, as a group of a long prompt; 0: all
  int64_t dense_below = 0;
  int repeats = 3;
  bool lists = true;                  // the ladder of blocks and rows, on a GPU
  std::vector<std::string> policies;  // by name
  // A table besides: heads take these in turn, each BOUNDARY/PATTERN, "both/grid:stride=256".
  std::vector<std::string> mix;
  // Instead of in turn, a table for each of these: a head takes the fastest item that holds such a
  // share of its attention, or the one that holds most. Chosen on keys of another seed, as a table
  // is made before its use.
  std::vector<double> hold;
  // FP8: everything in it that can be, after dense attention in bf16.
  AttentionDtype dtype = AttentionDtype::bf16;
  int64_t mass_rows = 0;   // queries whose attention is looked at key by key; 0: none
  bool keys_only = false;  // nothing but that: the weights that heads need
};

// What is told while it is measured; any may be empty.
struct AttentionListener {
  std::function<void(const AttentionFigure& figure)> figure{};
  // The share of its weights that each head needs for 95 % of its attention; before all figures.
  std::function<void(const std::vector<double>& needed)> needed{};
  // An item for each head, chosen to hold such a share.
  std::function<void(double hold, const std::vector<std::string>& mix)> chosen{};
};

// Dense attention is the first figure, if there are any.
void bench_attention(const Context& context, const AttentionBenchOptions& options, int64_t tokens,
                     const AttentionListener& listener);

}  // namespace kinora::cli

// Between runner.cc, which cuts a plan into jobs, and runner_cpu.cc, which runs them. Private to
// attention/.
#pragma once

#include <cstdint>
#include <span>

#include "attention/cpu/bundle.h"
#include "attention/runner.h"

namespace kinora::attention_cpu {

// Some (query, head) rows of a tile and a stretch of its key list, or all of a bundle.
struct Job {
  int64_t tile = 0;       // of a bundle, the first
  int64_t row_begin = 0;  // rows of a tile run over its queries, heads innermost
  int64_t row_end = 0;
  int64_t key_begin = 0;  // along the tile's list
  int64_t key_end = 0;
  int64_t partial = -1;  // first row in the partial results, or −1: straight to the output
  const Bundle* bundle = nullptr;
};

// Results of jobs whose key list was split; merged afterwards.
struct Partials {
  float* out = nullptr;  // [rows, head size]
  float* max = nullptr;  // [rows]
  float* sum = nullptr;
};

struct Run {
  const Plan& plan;
  const QueryView& queries;
  const RowSet& rows;
  float scale;
  TensorView out;
  RunOptions options;
  Partials partials;
  // The output holds an earlier pass; jobs merge into it. Needs options.state.
  bool merge = false;
  bool few_rows = false;  // no job has more than few_job_rows rows
};

// With at most this many rows (no strip is narrower) keys are not packed.
constexpr int64_t few_job_rows = 8;
// Keys are worked on in blocks of this many; splits of a list fall on multiples of it.
constexpr int64_t job_block = 192;

// Runs the jobs in their order, on all threads. `seconds`, where it is not empty, gets the time of
// each job.
void run_jobs(const Context& context, const Run& run, std::span<const Job> jobs,
              std::span<double> seconds);

}  // namespace kinora::attention_cpu

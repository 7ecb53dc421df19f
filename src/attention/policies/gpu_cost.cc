#include "attention/policies/gpu_cost.h"

#include <algorithm>

namespace kinora {
namespace {

constexpr double processors = 132;
constexpr double tile = 128;  // queries of a list

// What a call takes however little there is to do: the host's launches, which nothing hides where a
// model is small.
constexpr double dense_call = 70e-6;
constexpr double sparse_call = 40e-6;
constexpr double list_call = 20e-6;     // per plan
constexpr double measure_call = 60e-6;  // choosing blocks,
constexpr double measure_head = 4e-6;   // per head
constexpr double measure_row = 1.2e-9;  // and per row
constexpr double probe_call = 150e-6;   // choosing lines,
constexpr double probe_row = 0.9e-9;    // per head and row

// Floating-point operations a second of all processors.
double dense_rate(int64_t head_size) {
  if (head_size == 128) return 640e12;
  return head_size == 64 ? 400e12 : 150e12;
}
constexpr double list_share = 0.85;     // lists reach this share of it
constexpr double measure_share = 0.75;  // as do queries that measure

double pair_seconds(const GpuCall& call) {
  return 4 * static_cast<double>(call.head_size) / dense_rate(call.head_size);
}

// That a query reads.
double mean_rows(const GpuCall& call) {
  return static_cast<double>(call.rows) - static_cast<double>(call.queries) / 2;
}

}  // namespace

double dense_seconds(const GpuCall& call) {
  const auto pairs = static_cast<double>(call.queries * call.heads);
  return dense_call + pairs * mean_rows(call) * pair_seconds(call);
}

double sparse_seconds(const GpuCall& call, const GpuWorkload& work) {
  const auto pairs = static_cast<double>(call.queries * call.heads);
  const auto rows = static_cast<double>(call.rows);
  const double pair = pair_seconds(call);
  double seconds = sparse_call + work.plans * list_call;
  // A processor walks a list by itself: few lists leave some idle, and all wait for the longest.
  const double all = std::max(pairs, tile * processors) * std::min(work.keys, mean_rows(call));
  const double one = tile * processors * static_cast<double>(std::min(work.longest, call.rows));
  seconds += std::max(all / list_share, one) * pair;
  seconds += work.measured * pairs * mean_rows(call) * pair / measure_share;
  seconds += work.measures *
             (measure_call + measure_head * static_cast<double>(call.heads) + measure_row * rows);
  seconds += work.probes * (probe_call + probe_row * rows * static_cast<double>(call.heads));
  return seconds;
}

}  // namespace kinora

#include "attention/runner.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "attention/cpu/runner_cpu.h"
#include "attention/cuda/runner_cuda.h"
#include "attention/cuda/wide_rows.h"
#include "attention/merge.h"
#include "attention/runner_checks.h"
#include "base/error.h"
#include "ops/packed_rows.h"
#include "ops/scratch.h"

namespace kinora {
namespace {

using attention_cpu::Bundle;
using attention_cpu::Job;
using attention_cpu::job_block;
using attention_cpu::job_rows;
using attention_cpu::rows_in_bundle;

constexpr int64_t max_head_size = 1024;
// Where there are so few jobs that cores would idle, lists are split into about this many parts.
// Neither number may depend on the machine: splits change the last bits of a result.
constexpr size_t few_jobs = 32;
constexpr int64_t split_parts = 16;
constexpr int64_t split_keys = 1024;

void check(bool holds, const std::string& what) {
  if (!holds) throw Error(ErrorKind::internal, "run_plan: " + what);
}

int64_t list_length(const Plan& plan, const Tile& tile) {
  int64_t keys = 0;
  for (int64_t i = tile.segment_begin; i < tile.segment_end; ++i) {
    keys += plan.segments[static_cast<size_t>(i)].count;
  }
  return keys;
}

std::vector<Job> cut_jobs(const Plan& plan, int32_t pass) {
  std::vector<Job> jobs;
  for (size_t t = 0; t < plan.tiles.size(); ++t) {
    const Tile& tile = plan.tiles[t];
    if (tile.pass != pass) continue;
    const int64_t rows = tile.queries() * tile.heads;
    const int64_t keys = list_length(plan, tile);
    const int64_t pieces = (rows + job_rows - 1) / job_rows;
    for (int64_t i = 0; i < pieces; ++i) {
      jobs.push_back(
          {static_cast<int64_t>(t), rows * i / pieces, rows * (i + 1) / pieces, 0, keys, -1});
    }
  }
  return jobs;
}

// Runs of jobs, [first, last), each a whole tile, that fit into one job of `rows` rows.
std::vector<std::pair<size_t, size_t>> fitting_jobs(const Plan& plan, std::span<const Job> jobs,
                                                    int64_t rows) {
  const int32_t group = plan.heads / plan.kv_heads;
  const auto tile_of = [&](size_t i) -> const Tile& {
    return plan.tiles[static_cast<size_t>(jobs[i].tile)];
  };
  std::vector<std::pair<size_t, size_t>> runs;
  for (size_t first = 0; first < jobs.size();) {
    size_t last = first;
    int64_t taken = 0;
    for (; last < jobs.size(); ++last) {
      const Tile& tile = tile_of(last);
      taken += rows_in_bundle(tile);
      const bool follows = jobs[last].tile == jobs[first].tile + static_cast<int64_t>(last - first);
      if (taken > rows || !follows || tile.head / group != tile_of(first).head / group) break;
    }
    last = std::max(last, first + 1);
    if (last > first + 1) runs.emplace_back(first, last);
    first = last;
  }
  return runs;
}

// Replaces jobs whose tiles read much the same keys by jobs of bundles, which are appended to
// `bundles`. Fewer than `few_jobs` are never left.
void bundle_jobs(const Context& context, const Plan& plan, std::vector<Job>& jobs,
                 std::vector<Bundle>& bundles) {
  std::vector<std::pair<size_t, size_t>> runs;
  for (int64_t rows = job_rows;; rows /= 2) {
    if (rows < 2 * attention_cpu::bundle_rows) return;
    runs = fitting_jobs(plan, jobs, rows);
    size_t gone = 0;
    for (const auto& [first, last] : runs) gone += last - first - 1;
    if (jobs.size() - gone >= few_jobs) break;
  }
  std::vector<std::optional<Bundle>> made(runs.size());
  context.threads->parallel_for(std::ssize(runs), 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const auto [first, last] = runs[i];
      made[i] = attention_cpu::bundle_tiles(plan, jobs[first].tile, jobs[last - 1].tile + 1);
    }
  });
  bundles.reserve(runs.size());
  std::vector<Job> left;
  size_t next = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto [first, last] = runs[i];
    left.insert(left.end(), jobs.begin() + static_cast<int64_t>(next),
                jobs.begin() + static_cast<int64_t>(made[i] ? first : last));
    next = last;
    if (!made[i]) continue;
    bundles.push_back(std::move(*made[i]));
    left.push_back({jobs[first].tile, 0, 0, 0, 0, -1, &bundles.back()});
  }
  left.insert(left.end(), jobs.begin() + static_cast<int64_t>(next), jobs.end());
  jobs = std::move(left);
}

// Products of rows with keys.
int64_t work_of(const Plan& plan, const Job& job) {
  if (job.bundle == nullptr) return (job.row_end - job.row_begin) * job.key_end;
  int64_t work = 0;
  for (const Bundle::Member& member : job.bundle->members) {
    const Tile& tile = plan.tiles[static_cast<size_t>(member.tile)];
    work += tile.queries() * tile.heads * member.keys;
  }
  return work;
}

// Appends the parts of a job with a long list, or the job itself; `partial_rows` counts the rows of
// partial results that they need.
void split_job(const Job& job, std::vector<Job>& parts, int64_t& partial_rows) {
  const int64_t length = job.key_end - job.key_begin;
  const int64_t wanted = std::max(split_keys, length / split_parts);
  const int64_t step = (wanted + job_block - 1) / job_block * job_block;
  if (length <= step) {
    parts.push_back(job);
    return;
  }
  for (int64_t begin = job.key_begin; begin < job.key_end; begin += step) {
    Job part = job;
    part.key_begin = begin;
    part.key_end = std::min(begin + step, job.key_end);
    part.partial = partial_rows;
    partial_rows += job.row_end - job.row_begin;
    parts.push_back(part);
  }
}

// Joins the parts of every split job, in list order.
void merge_parts(const attention_cpu::Run& run, std::span<const Job> jobs) {
  const int64_t head_size = run.out.size(2);
  for (size_t first = 0; first < jobs.size();) {
    const Job& job = jobs[first];
    size_t end = first + 1;
    if (job.partial >= 0) {
      while (end < jobs.size() && jobs[end].tile == job.tile &&
             jobs[end].row_begin == job.row_begin && jobs[end].key_begin > 0) {
        ++end;
      }
      const Tile& tile = run.plan.tiles[static_cast<size_t>(job.tile)];
      for (int64_t row = job.row_begin; row < job.row_end; ++row) {
        const int64_t query =
            run.plan.query_rows[static_cast<size_t>(tile.query_begin + row / tile.heads)];
        const int64_t head = tile.head + row % tile.heads;
        const int64_t place = query * run.plan.heads + head;
        PartialRow target;
        target.out = run.out.data<float>() + query * run.out.stride(0) + head * run.out.stride(1);
        if (run.merge) {
          target.max = run.options.state.max[place];
          target.sum = run.options.state.sum[place];
        } else {
          std::fill_n(target.out, head_size, 0.0f);
        }
        for (size_t part = first; part < end; ++part) {
          const int64_t from = jobs[part].partial + row - job.row_begin;
          merge_row(target, run.partials.out + from * head_size, run.partials.max[from],
                    run.partials.sum[from], head_size);
        }
        if (run.options.state.max != nullptr) run.options.state.max[place] = target.max;
        if (run.options.state.sum != nullptr) run.options.state.sum[place] = target.sum;
      }
    }
    first = end;
  }
}

void clear_pair(const Plan& plan, const TensorView& out, const SoftmaxState& state, int64_t query,
                int64_t head) {
  std::fill_n(out.data<float>() + query * out.stride(0) + head * out.stride(1), out.size(2), 0.0f);
  const int64_t place = query * plan.heads + head;
  if (state.max) state.max[place] = -std::numeric_limits<float>::infinity();
  if (state.sum) state.sum[place] = 0;
}

// What has read nothing yet; the first pass overwrites those that it covers.
void clear_output(const Plan& plan, const TensorView& out, const SoftmaxState& state) {
  int64_t covered = 0;
  for (const Tile& tile : plan.tiles) {
    if (tile.pass == 0) covered += tile.queries() * tile.heads;
  }
  if (covered == plan.query_count * plan.heads) return;
  for (int64_t query = 0; query < plan.query_count; ++query) {
    for (int64_t head = 0; head < plan.heads; ++head) clear_pair(plan, out, state, query, head);
  }
}

void run_timed(const Context& context, const attention_cpu::Run& run, std::span<const Job> jobs) {
  double* tile_seconds = run.options.tile_seconds;
  std::vector<double> seconds(tile_seconds != nullptr ? jobs.size() : 0);
  attention_cpu::run_jobs(context, run, jobs, seconds);
  for (size_t i = 0; i < seconds.size(); ++i) {
    const Job& job = jobs[i];
    if (job.bundle == nullptr) {
      tile_seconds[job.tile] += seconds[i];
      continue;
    }
    // A tile's part is its part of the products.
    const auto all = static_cast<double>(work_of(run.plan, job));
    for (const Bundle::Member& member : job.bundle->members) {
      const Tile& tile = run.plan.tiles[static_cast<size_t>(member.tile)];
      const auto own = static_cast<double>(tile.queries() * tile.heads * member.keys);
      tile_seconds[member.tile] += seconds[i] * own / all;
    }
  }
}

// Jobs in parts, merged after every few of them: partial results of all would be many times the
// output.
void run_split(const Context& context, attention_cpu::Run& run, std::span<const Job> jobs) {
  const int64_t head_size = run.out.size(2);
  const size_t enough = 8 * static_cast<size_t>(context.threads->threads());
  std::vector<Job> parts;
  for (size_t next = 0; next < jobs.size();) {
    parts.clear();
    int64_t partial_rows = 0;
    while (next < jobs.size() && parts.size() < enough) {
      split_job(jobs[next++], parts, partial_rows);
    }
    const ScratchLease buffer(static_cast<size_t>(partial_rows * (head_size + 2)) * sizeof(float));
    run.partials.out = buffer.as<float>();
    run.partials.max = run.partials.out + partial_rows * head_size;
    run.partials.sum = run.partials.max + partial_rows;
    run_timed(context, run, parts);
    merge_parts(run, parts);
  }
}

// Runs the tiles of one pass.
void run_pass(const Context& context, attention_cpu::Run& run, int32_t pass) {
  std::vector<Job> jobs = cut_jobs(run.plan, pass);
  if (jobs.size() < few_jobs && run.options.observer == nullptr) {
    return run_split(context, run, jobs);
  }
  std::vector<Bundle> bundles;
  // Few rows are laid out otherwise, and so few tiles have nothing to gain.
  if (run.options.observer == nullptr && !run.few_rows) {
    bundle_jobs(context, run.plan, jobs, bundles);
  }
  // Longest first, so that no core is left alone with a long job at the end.
  std::stable_sort(jobs.begin(), jobs.end(), [&](const Job& a, const Job& b) {
    return work_of(run.plan, a) > work_of(run.plan, b);
  });
  run_timed(context, run, jobs);
}

}  // namespace

void check_attention(const Context& context, const QueryView& queries, const RowSet& rows,
                     const TensorView& out, const RunOptions& options) {
  const Device device = context.device;
  check(queries.queries.device() == device && rows.keys.device() == device &&
            rows.values.device() == device && out.device() == device,
        "queries, rows and output must lie on the context's device, " + to_string(device));
  // GPUs take bf16 for f32 anywhere.
  const auto real = [&](DType type) {
    return type == DType::f32 || (!device.is_cpu() && type == DType::bf16);
  };
  const ConstTensorView& q = queries.queries;
  check(q.rank() == 3 && real(q.dtype()), "queries must be [count, heads, d] f32");
  check(rows.keys.rank() == 3 && rows.values.shape() == rows.keys.shape() &&
            rows.values.dtype() == rows.keys.dtype(),
        "keys and values must be [rows, kv heads, d] of one type");
  const DType stored = rows.keys.dtype();
  check(stored == DType::f32 || stored == DType::bf16 || rows_are_packed(stored) ||
            (device.is_cpu() && stored == DType::f16),
        "keys and values must be f32, bf16, 8 bits or, on a CPU, f16");
  check(head_size_of(rows.keys) == q.size(2),
        fmt::format("queries have head size {}, keys {}", q.size(2), head_size_of(rows.keys)));
  check(q.size(2) >= 1 && q.size(2) <= max_head_size,
        fmt::format("head size {} is not in 1 … {}", q.size(2), max_head_size));
  check(out.shape() == q.shape() && real(out.dtype()),
        "the output must be f32 of the queries' shape");
  if (rows.weighted()) {
    check(rows.weights.dtype() == DType::f32 && rows.weights.shape() == Shape{rows.count()} &&
              rows.weights.device() == device,
          "weights must be f32, one for each row, on the context's device");
    check(options.observer == nullptr, "weighted rows cannot be observed");
  }
  check(!options.onto || (options.state.max != nullptr && options.state.sum != nullptr),
        "merging into an output needs its state");
  if (options.observer != nullptr) {
    if (!device.is_cpu()) {
      throw Error(ErrorKind::unsupported,
                  "attention that measures while it runs (momo) needs the CPU; use dense attention "
                  "or the device cpu",
                  ErrorHint::dense_or_cpu);
    }
    const int64_t block = options.observer->block_size();
    check(block == 32 || block == 64, "an observer's block is 32 or 64 keys");
  }
}

void run_plan(const Context& context, const Plan& plan, const QueryView& queries,
              const RowSet& rows, float scale, TensorView out, const RunOptions& options) {
  check_attention(context, queries, rows, out, options);
  validate(plan, queries, rows, context.threads);
  int32_t last_pass = 0;
  for (const Tile& tile : plan.tiles) last_pass = std::max(last_pass, tile.pass);
  check(last_pass == 0 || options.observer == nullptr,
        "a plan of several passes cannot be observed");
  if (!context.device.is_cpu()) {
    const WideRows wide(context, rows);
    return cuda_attention::run_plan(context, plan, queries, wide.rows(), scale, out, options);
  }

  attention_cpu::Run run{plan, queries, rows, scale, out, options, {}};
  // Told by the shape of the problem, not of a tile: the two ways differ in the last bits.
  run.few_rows = plan.query_count * (plan.heads / plan.kv_heads) <= attention_cpu::few_job_rows &&
                 options.observer == nullptr;
  std::vector<float> state;
  if (last_pass > 0) {
    const auto pairs = static_cast<size_t>(plan.query_count * plan.heads);
    state.resize(2 * pairs);
    if (run.options.state.max == nullptr) run.options.state.max = state.data();
    if (run.options.state.sum == nullptr) run.options.state.sum = state.data() + pairs;
  }
  if (!options.onto) clear_output(plan, out, run.options.state);
  for (int32_t pass = 0; pass <= last_pass; ++pass) {
    run.merge = pass > 0 || options.onto;
    run_pass(context, run, pass);
  }
}

}  // namespace kinora

// Plans on a device as plans of the host, for comparing them as sets, and problems to make plans
// for.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>
#include <vector>

#include "attention/cuda/device_plan.h"
#include "attention/cuda/device_test_support.h"
#include "attention/plan/plan.h"
#include "base/buffer.h"

namespace kinora::testing {

// Two for Hopper's kernels, which are the portable one elsewhere; the portable one; plain f32.
struct Kind {
  int64_t head_size;
  DType type;
};
constexpr Kind kernel_kinds[] = {
    {128, DType::bf16}, {64, DType::bf16}, {80, DType::bf16}, {40, DType::f32}};

inline Problem problem_of(Random& random, const Kind& kind, int64_t queries, int64_t earlier) {
  Problem problem = make_problem(random, {.queries = queries,
                                          .earlier = earlier,
                                          .heads = 6,
                                          .kv_heads = 2,
                                          .head_size = kind.head_size,
                                          .dtype = kind.type});
  narrow_queries(problem);
  return problem;
}

// Whatever only one of the two chose weighs as much as the weakest of the others.
inline void expect_strongest(const std::vector<int32_t>& chosen, const std::vector<float>& weights,
                             int32_t wanted, int32_t forced) {
  const auto size = static_cast<int32_t>(weights.size());
  forced = std::min(forced, size);
  wanted = std::clamp(wanted, forced, size);
  ASSERT_EQ(chosen.size(), static_cast<size_t>(wanted));
  EXPECT_TRUE(std::is_sorted(chosen.begin(), chosen.end()));
  const std::set<int32_t> taken(chosen.begin(), chosen.end());
  EXPECT_EQ(taken.size(), chosen.size());
  for (int32_t i = 0; i < forced; ++i) EXPECT_TRUE(taken.count(i)) << i;
  float weakest = std::numeric_limits<float>::infinity(), strongest_left = 0;
  for (int32_t i = forced; i < size; ++i) {
    float& bound = taken.count(i) ? weakest : strongest_left;
    const float weight = weights[static_cast<size_t>(i)];
    bound = taken.count(i) ? std::min(bound, weight) : std::max(bound, weight);
  }
  EXPECT_GE(weakest, strongest_left * 0.999f - 1e-9f);
}

template <typename T>
std::vector<T> read_back(const T* from, int64_t count, Device device) {
  std::vector<T> items(static_cast<size_t>(count));
  if (count > 0) {
    copy_bytes(items.data(), Device::cpu(), from, device, items.size() * sizeof(T));
  }
  return items;
}

inline std::vector<int32_t> ints_of(const Tensor& tensor) {
  const Tensor here = tensor.to(Device::cpu());
  return {here.data<int32_t>(), here.data<int32_t>() + here.elements()};
}

// The queries of a job.
inline std::vector<int32_t> queries_of(const CudaPlanView& view, const CudaJob& job,
                                       Device device) {
  if (job.listed != 0) {
    return read_back(view.queries + job.query_begin + job.row_begin, job.rows, device);
  }
  std::vector<int32_t> queries;
  for (int32_t row = 0; row < job.rows; ++row) {
    queries.push_back(static_cast<int32_t>(job.query_begin + job.row_begin + row));
  }
  return queries;
}

// The rows in its list.
inline std::vector<int32_t> keys_of(const CudaPlanView& view, const CudaJob& job, Device device) {
  std::vector<int32_t> keys;
  for (CudaSegment segment : read_back(view.segments + job.segment_begin, job.segments, device)) {
    segment.trim(job.low, job.high);
    if (segment.stride > 0) {
      for (int64_t i = 0; i < segment.count; ++i) {
        keys.push_back(static_cast<int32_t>(segment.begin + i * segment.stride));
      }
    } else if (segment.stride == piece_stride) {
      for (const CudaPiece& piece :
           read_back(view.pieces + segment.begin, segment.count / piece_keys, device)) {
        for (int32_t i = 0; i < piece.count; ++i) {
          const int32_t row = piece.begin + segment.shift + i;
          if (row >= 0) keys.push_back(row);
        }
      }
    } else {
      const auto columns = read_back(view.gathered + segment.begin, segment.count, device);
      const auto masks = read_back(view.masks + segment.shift, (segment.count + 31) / 32, device);
      for (size_t i = 0; i < columns.size(); ++i) {
        if (masks[i / 32] >> i % 32 & 1u) keys.push_back(columns[i]);
      }
    }
  }
  return keys;
}

// Every job of an unsplit plan as a tile, its keys gathered.
inline Plan host_plan(const cuda_attention::DevicePlan& device_plan, int32_t kv_heads,
                      Device device) {
  Plan plan;
  plan.heads = device_plan.heads;
  plan.kv_heads = kv_heads;
  plan.query_count = device_plan.query_count;
  plan.row_count = device_plan.row_count;
  const CudaPlanView& view = device_plan.view;
  for (const CudaJob& job : read_back(view.jobs, device_plan.passes.back().job_end, device)) {
    if (job.rows == 0) continue;
    const auto query_begin = static_cast<int64_t>(plan.query_rows.size());
    const auto queries = queries_of(view, job, device);
    plan.query_rows.insert(plan.query_rows.end(), queries.begin(), queries.end());
    const auto gathered_begin = static_cast<int64_t>(plan.gathered.size());
    const auto keys = keys_of(view, job, device);
    plan.gathered.insert(plan.gathered.end(), keys.begin(), keys.end());
    plan.tiles.push_back({job.head, 1, 0, query_begin, static_cast<int64_t>(plan.query_rows.size()),
                          static_cast<int64_t>(plan.segments.size()),
                          static_cast<int64_t>(plan.segments.size()) + 1});
    plan.segments.push_back({gathered_begin, static_cast<int64_t>(keys.size()), 0, true});
  }
  return plan;
}

// Counts what every query reads: masks[head][query · rows + row]. Rows of the plan are those from
// `row_begin` on, or those of a list.
inline void add_reads(const cuda_attention::DevicePlan& device_plan, Device device,
                      int64_t row_begin, const std::vector<int32_t>& row_list, int64_t rows,
                      std::vector<std::vector<uint8_t>>& masks) {
  const CudaPlanView& view = device_plan.view;
  std::vector<int32_t> limits;
  if (view.limits != nullptr) limits = read_back(view.limits, device_plan.query_count, device);
  for (const CudaJob& job : read_back(view.jobs, device_plan.passes.back().job_end, device)) {
    if (job.rows == 0) continue;
    const auto keys = keys_of(view, job, device);
    for (const int32_t query : queries_of(view, job, device)) {
      const int32_t own =
          limits.empty() ? view.limit_base + query : limits[static_cast<size_t>(query)];
      for (const int32_t key : keys) {
        if (key >= own - job.back) continue;
        const int64_t row =
            row_list.empty() ? row_begin + key : row_list.at(static_cast<size_t>(key));
        ++masks[static_cast<size_t>(job.head)][static_cast<size_t>(query * rows + row)];
      }
    }
  }
}

}  // namespace kinora::testing

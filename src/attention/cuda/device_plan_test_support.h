// Plans on a device as plans of the host, for comparing them as sets.
#pragma once

#include <vector>

#include "attention/cuda/device_plan.h"
#include "attention/plan/plan.h"
#include "base/buffer.h"

namespace kinora::testing {

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

// Every job of an unsplit plan as a tile, its keys gathered.
inline Plan host_plan(const cuda_attention::DevicePlan& device_plan, int32_t kv_heads,
                      Device device) {
  Plan plan;
  plan.heads = device_plan.heads;
  plan.kv_heads = kv_heads;
  plan.query_count = device_plan.query_count;
  plan.row_count = device_plan.row_count;
  const CudaPlanView& view = device_plan.view;
  const auto jobs = read_back(view.jobs, device_plan.passes.back().job_end, device);
  for (const CudaJob& job : jobs) {
    if (job.rows == 0) continue;
    const auto query_begin = static_cast<int64_t>(plan.query_rows.size());
    if (job.listed != 0) {
      const auto listed =
          read_back(view.queries + job.query_begin + job.row_begin, job.rows, device);
      plan.query_rows.insert(plan.query_rows.end(), listed.begin(), listed.end());
    }
    for (int32_t row = 0; job.listed == 0 && row < job.rows; ++row) {
      plan.query_rows.push_back(static_cast<int32_t>(job.query_begin + job.row_begin + row));
    }
    const auto gathered_begin = static_cast<int64_t>(plan.gathered.size());
    for (CudaSegment segment : read_back(view.segments + job.segment_begin, job.segments, device)) {
      segment.trim(job.low, job.high);
      if (segment.stride > 0) {
        for (int64_t i = 0; i < segment.count; ++i) {
          plan.gathered.push_back(static_cast<int32_t>(segment.begin + i * segment.stride));
        }
      } else if (segment.stride == piece_stride) {
        for (const CudaPiece& piece :
             read_back(view.pieces + segment.begin, segment.count / piece_keys, device)) {
          for (int32_t i = 0; i < piece.count; ++i) {
            const int32_t row = piece.begin + segment.shift + i;
            if (row >= 0) plan.gathered.push_back(row);
          }
        }
      } else {
        const auto columns = read_back(view.gathered + segment.begin, segment.count, device);
        const auto masks = read_back(view.masks + segment.shift, (segment.count + 31) / 32, device);
        for (size_t i = 0; i < columns.size(); ++i) {
          if (masks[i / 32] >> i % 32 & 1u) plan.gathered.push_back(columns[i]);
        }
      }
    }
    plan.tiles.push_back({job.head, 1, 0, query_begin, static_cast<int64_t>(plan.query_rows.size()),
                          static_cast<int64_t>(plan.segments.size()),
                          static_cast<int64_t>(plan.segments.size()) + 1});
    plan.segments.push_back(
        {gathered_begin, static_cast<int64_t>(plan.gathered.size()) - gathered_begin, 0, true});
  }
  return plan;
}

}  // namespace kinora::testing

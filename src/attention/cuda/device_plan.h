// A plan whose lists lie in device memory: uploaded from a plan of the host, or made on the device
// by looking at the keys (line_plan_cuda.h, block_plan_cuda.h). Running one needs nothing from the
// host but launches, and it may be run any number of times, for every layer if its lists do not
// depend on the keys. Private to attention/.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attention/attention.h"
#include "attention/cuda/cuda_compile.h"
#include "attention/cuda/cuda_plan.h"
#include "base/buffer.h"
#include "base/context.h"
#include "base/tensor.h"

namespace kinora::cuda_attention {

// The kernels that run plans; lists are cut for one of them.
enum class Kernel : uint8_t { hopper, portable, simple };

// The fastest one that takes these tensors on the context's device.
Kernel choose_kernel(const Context& context, const ConstTensorView& queries, const RowSet& rows,
                     const ConstTensorView& out);
CudaCut cut_for(const Context& context, Kernel kernel);

struct DevicePlan {
  Kernel kernel = Kernel::simple;
  CudaPlanView view{};  // of all passes; `next` has a counter for each
  const CudaMerge* merges = nullptr;
  std::vector<CudaPass> passes{};
  int64_t partial_rows = 0;
  int32_t repeats = 1;
  bool row_lists = false;   // segments to be read row by row
  bool pieces = false;      // pieces or columns; never together with row lists or `strides`
  bool covers_all = false;  // the first pass writes every query of every head
  ListStart start = ListStart::scattered;
  std::vector<int32_t> strides{};  // of strided segments, as CudaPlan has them
  int64_t query_count = 0;         // of the queries and rows it was made for
  int64_t row_count = 0;
  int32_t heads = 0;
  // Columns: head h has the places [h · head_columns, (h + 1) · head_columns) of `gathered`; −1
  // where there are fewer.
  int32_t head_columns = 0;
  // Strided segments of plans made on the device: [heads] on the device, the stride of each head or
  // 0; CudaSegment::shift is the head.
  const int32_t* head_strides = nullptr;
  std::vector<std::shared_ptr<Buffer>> memory{};  // what the pointers point into,
  std::vector<Tensor> lists{};                    // and what they share with others
};

// Sends a compiled plan to the device, in stream order; the host does not wait.
DevicePlan upload_plan(const Context& context, Kernel kernel, const CudaPlan& plan,
                       const CudaShape& shape);

// The number of (query, head, row) triples that a plan computes, as attended_pairs counts them: one
// u64 on the device. For plans made there: lists are whole, and the queries of a tile are in order.
Tensor count_pairs(const Context& context, const DevicePlan& plan);

// How many rows each query may read, for kernels: `base` + query where there is no list.
struct DeviceLimits {
  Tensor list;  // i32 [queries], or undefined
  int32_t base = 0;

  const int32_t* data() const {
    return list.defined() ? reinterpret_cast<const int32_t*>(list.view().raw()) : nullptr;
  }
};
DeviceLimits device_limits(const Context& context, const QueryView& queries, const RowSet& rows);

// Whether rows and queries are without gaps, so that a query's limit is affine and a distance
// between ordinals is one between rows.
bool unbroken(const QueryView& queries, const RowSet& rows);

}  // namespace kinora::cuda_attention

#include "memory/retention/question.h"

#include <span>

#include "ops/rows.h"

namespace kinora {
namespace {

// Adds query rows [rows, heads, head size] to `sum`, [kv heads, head size].
template <typename T>
void add_queries(ConstTensorView queries, int64_t kv_heads, std::span<double> sum) {
  const int64_t heads = queries.size(1), size = queries.size(2);
  for (int64_t i = 0; i < queries.size(0); ++i) {
    const T* query = queries.row<T>(i);
    for (int64_t head = 0; head < heads; ++head) {
      double* target = sum.data() + head / (heads / kv_heads) * size;
      for (int64_t k = 0; k < size; ++k) target[k] += widen(query[head * size + k]);
    }
  }
}

}  // namespace

Tensor queries_on_host(ConstTensorView queries) {
  Tensor on_host(queries.dtype(), queries.shape());
  for (int64_t i = 0; i < queries.size(0); ++i) {  // rows may be strided
    copy_bytes(on_host.view()[i].raw(), Device::cpu(), queries[i].raw(), queries.device(),
               static_cast<size_t>(queries[i].bytes()));
  }
  return on_host;
}

std::vector<double> sum_queries(ConstTensorView queries, int64_t kv_heads) {
  Tensor on_host;
  if (!queries.device().is_cpu()) {
    on_host = queries_on_host(queries);
    queries = on_host;
  }
  std::vector<double> sum(static_cast<size_t>(kv_heads * queries.size(2)), 0.0);
  with_float_type(queries.dtype(), [&]<typename T>(T) { add_queries<T>(queries, kv_heads, sum); });
  return sum;
}

}  // namespace kinora

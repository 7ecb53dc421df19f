#include "base/no_cuda.h"

#include "memory/mosaic/cluster_ranks.h"
#include "memory/mosaic/cluster_table.h"
#include "memory/row_ops/attention_mass.h"
#include "memory/row_ops/best_rows.h"
#include "memory/row_ops/mean_rows.h"
#include "memory/row_ops/move_rows.h"

namespace kinora::cuda {

void move_rows_up(int, std::byte*, int64_t, std::span<const int32_t>) { no_cuda(); }
void move_rows_up(const Context&, std::byte*, int64_t, ConstTensorView) { no_cuda(); }
void move_lists_up(const Context&, std::span<std::byte* const>, int64_t, std::span<const int32_t>) {
  no_cuda();
}
void copy_rows(const Context&, std::span<const RowCopy>, int64_t, std::span<const int32_t>) {
  no_cuda();
}
void arrange_queries(const Context&, ConstTensorView, float, const MassQueries&, TensorView,
                     TensorView) {
  no_cuda();
}
bool score_keys(const Context&, ConstTensorView, ConstTensorView, TensorView) { no_cuda(); }
void sum_attention_mass(const Context&, ConstTensorView, const MassQueries&, const MassTerms&, bool,
                        bool, TensorView, TensorView) {
  no_cuda();
}

void count_rows(const Context&, const ClusterEntries&, const CountedRows&, bool, TensorView) {
  no_cuda();
}
void best_clusters(const Context&, ConstTensorView, ConstTensorView, TensorView) { no_cuda(); }
void order_clusters(const Context&, const ClusterEntries&, int64_t, int64_t, TensorView,
                    TensorView) {
  no_cuda();
}
void put_clusters(const Context&, const StagedClusters&, const ClusterRows&) { no_cuda(); }
void unit_rows(const Context&, ConstTensorView, TensorView) { no_cuda(); }
void nearest_clusters(const Context&, ConstTensorView, ConstTensorView, ConstTensorView,
                      ConstTensorView, int64_t, TensorView, TensorView) {
  no_cuda();
}
void nearest_earlier(const Context&, ConstTensorView, ConstTensorView, TensorView) { no_cuda(); }
void cluster_means(const Context&, const ClusterPieces&, ConstTensorView, ConstTensorView,
                   TensorView, TensorView) {
  no_cuda();
}
void mean_rows(const Context&, ConstTensorView, ConstTensorView, TensorView) { no_cuda(); }

Tensor best_rows(const Context&, const RowChoice&, std::span<const double>,
                 std::span<const Modality>) {
  no_cuda();
}

}  // namespace kinora::cuda

// Clusters in order on a GPU: by what attention would give them, and by partition and time. The
// table of clusters (cluster_table.h) keeps what these go by, an entry for each place.
#pragma once

#include <cstdint>

#include "base/context.h"
#include "base/tensor.h"

namespace kinora::cuda {

// i32 [places] each, on the GPU.
struct ClusterEntries {
  ConstTensorView rows;        // of each cluster; 0: the place is free
  ConstTensorView partitions;  // where there is a cluster
  ConstTensorView middles;     // tokens of the middle rows, the same
};

// Clusters that do not count with all their rows.
struct CountedRows {
  ConstTensorView changed;   // i32 [2, n]: places, and rows that count; undefined: none
  ConstTensorView searched;  // i32 [partitions]: 0 where none counts; undefined: all count
};
// out f32 [places] = rows that count, or their natural logarithms, −∞ where none does.
void count_rows(const Context& context, const ClusterEntries& clusters, const CountedRows& counted,
                bool logarithms, TensorView out);

// Places of the clusters with the largest mass, the largest first, of equal ones the lower place;
// those whose log weight is −∞ come last. i32 [n], as many as are wanted. Only starts the work, as
// the next one does.
void best_clusters(const Context& context, ConstTensorView mass, ConstTensorView log_weights,
                   TensorView out);

// Places of clusters by partition, and in each by their middle tokens, then free places: places
// i32 [places] and where each place stands among them, positions i32 [places]. Partitions and
// tokens are below the given numbers.
void order_clusters(const Context& context, const ClusterEntries& clusters, int64_t partitions,
                    int64_t tokens, TensorView places, TensorView positions);

}  // namespace kinora::cuda

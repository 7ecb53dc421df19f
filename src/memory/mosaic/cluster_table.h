// Mean keys and values of all clusters of a mosaic index on a GPU, which there finds the nearest of
// new rows, ranks them for a question and adds up those that stand for others. Kept up while frames
// arrive, cluster by cluster. Forks share one table: it becomes what the index of the moment says,
// which costs nothing where they agree.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "base/context.h"
#include "base/gpu.h"
#include "base/tensor.h"
#include "memory/memory.h"
#include "memory/mosaic/cluster_choice.h"
#include "memory/mosaic/cluster_list.h"
#include "memory/mosaic/cluster_ranks.h"

namespace kinora {

namespace cuda {
struct StagedClusters;
}

class ClusterTable {
 public:
  // Clusters of `most_rows` rows take no more.
  ClusterTable(const RowLayout& layout, Device device, int64_t most_rows);

  // Whoever uses the table of a layer holds this from the update to the last result.
  std::mutex& turn() { return turn_; }

  // Makes the table of a layer that of the index, in two steps: `pack` collects on the host what
  // has changed, for different layers at the same time, and `upload` starts the copy.
  void pack(int layer, const MosaicIndex& index);
  void upload(const Context& context, int layer);
  // It looks at clusters of the index that was packed last: only while that is there.
  const ClusterList& list(int layer) const { return layers_[static_cast<size_t>(layer)].list; }

  // For each of some new keys (f32 [rows, kv heads, head size], not turned) the place of the
  // nearest cluster of its partition that takes rows, and the nearest of the keys before it that is
  // of the same partition, by cosine; −1: none. i32 [rows, 2] on the GPU. Only starts the work.
  Tensor nearest(const Context& context, int layer, ConstTensorView keys,
                 const std::vector<int32_t>& partitions) const;

  // What clusters would get of the attention of queries that are not turned (attention_mass.h),
  // with log weights by place. Waits.
  std::vector<double> scores(const Context& context, int layer, ConstTensorView queries,
                             std::span<const float> log_weights, bool softmax);

  // Places of the best clusters by that, each with its unread rows, at most this many, best first.
  // `searched`, by partition, is 0 where no cluster counts; empty: all count. Those that do not
  // count, and free places, come last. Brings the clusters into order where they are not. Waits;
  // valid until the next call.
  std::span<const int32_t> best(const Context& context, int layer, ConstTensorView queries,
                                bool softmax, const UnreadRows& unread,
                                std::span<const int32_t> searched, int64_t most);
  // As it was when the best were last asked for.
  ClusterOrder order(int layer) const;

  // Means of the keys and values of groups of clusters, each weighted with its unread rows, f32
  // [groups, kv heads, head size]. Only starts the work.
  std::pair<Tensor, Tensor> means(const Context& context, int layer, const ClusterGroups& groups,
                                  const UnreadRows& unread);

  int64_t bytes() const;  // of the GPU

  // Loose clusters that a question has read, by partition and id: to be split by whoever next adds
  // frames.
  struct Wanted {
    int32_t partition = 0;
    int32_t id = 0;
  };
  void want_split(int layer, Wanted cluster);
  std::vector<Wanted> take_wanted(int layer);

 private:
  struct Layer {
    ClusterList list;
    std::vector<uint64_t> known;               // by partition: the stamp of its clusters
    std::vector<std::vector<int32_t>> places;  // by partition and id; −1: none
    std::vector<int32_t> free;
    uint64_t stamp = 0;  // of the index that the list was made from
    // What was packed and not uploaded yet.
    std::vector<int32_t> changed;
    PinnedBuffer staged;  // of [changed]: see StagedClusters
    std::unique_ptr<GpuEvent> read;
    Tensor keys, values;               // [capacity, kv heads × head size]
    Tensor takers, lengths, spreads;   // i32, f32 and f32 [capacity]; see ClusterRows
    Tensor rows, partitions, middles;  // i32 [capacity]; see ClusterEntries
    bool in_order = true;
    Tensor order;             // i32 [2, places]: places by partition and time, and positions …
    PinnedBuffer order_here;  // … and the same on the host
    int64_t ordered = 0;      // places of them
    std::vector<Tensor> old;  // that larger ones are being copied from
    std::vector<Wanted> wanted;
  };

  Layer& at(int layer) { return layers_[static_cast<size_t>(layer)]; }
  int64_t width() const { return kv_heads_ * head_size_; }
  static int64_t places_of(const Layer& layer);
  static cuda::ClusterEntries entries(const Layer& layer, int64_t count);
  void bring_into_order(const Context& context, Layer& table);
  void grow(const Context& context, Layer& layer, int64_t places);
  size_t staged_bytes(size_t clusters) const;
  static cuda::StagedClusters staged_at(const std::byte* bytes, size_t clusters);
  Tensor changed_rows(const Context& context, const UnreadRows& unread);
  // What is known of these places, in memory that the GPU reads.
  cuda::StagedClusters stage(const Layer& table, std::span<const int32_t> changed, std::byte* to,
                             const ThreadPool* threads) const;
  void put(const Context& context, Layer& table, const cuda::StagedClusters& staged);
  void upload_many(const Context& context, Layer& table);

  Device device_;
  int64_t kv_heads_;
  int64_t head_size_;
  int64_t most_rows_;
  DType dtype_;
  std::vector<Layer> layers_;
  PinnedBuffer best_;
  std::mutex turn_;
  std::mutex wanted_turn_;
};

namespace cuda {

// The table of a layer.
struct ClusterRows {
  TensorView keys, values;  // [capacity, width]
  TensorView takers;        // i32 [capacity]: partition + 1 of clusters that take rows; else 0
  TensorView lengths;       // f32 [capacity]: of the keys
  TensorView spreads;       // f32 [capacity]: of the rows' keys around them (SemanticCluster)
  TensorView rows, partitions, middles;  // i32 [capacity]: see ClusterEntries
};
// Clusters on their way there, in pinned memory.
struct StagedClusters {
  int64_t count = 0;
  const int32_t* places = nullptr;
  const int32_t* takers = nullptr;
  const int32_t* rows = nullptr;
  const int32_t* partitions = nullptr;
  const int32_t* middles = nullptr;
  const float* lengths = nullptr;
  const float* spreads = nullptr;
  const float* means = nullptr;  // [count, 2 × width]: keys, then values
};
void put_clusters(const Context& context, const StagedClusters& staged, const ClusterRows& to);

// out [rows, width] = rows of keys divided by their lengths.
void unit_rows(const Context& context, ConstTensorView keys, TensorView out);
// Of products [rows, clusters] of unit keys and clusters from place `first` on: updates the best
// cosine f32 [rows] and its place, near[row, 0].
void nearest_clusters(const Context& context, ConstTensorView products, ConstTensorView partitions,
                      ConstTensorView takers, ConstTensorView lengths, int64_t first,
                      TensorView best, TensorView near);
// Of products [rows, rows] of unit keys: the nearest earlier one, near[row, 1].
void nearest_earlier(const Context& context, ConstTensorView products, ConstTensorView partitions,
                     TensorView near);

// Groups of table rows in pieces, so that large ones keep all of a GPU busy.
struct ClusterPieces {
  ConstTensorView ranges;     // i32 [pieces, 2]: of `places`, begin and end; or a place and −1
  ConstTensorView places;     // i32
  ConstTensorView weights;    // f32, by place
  ConstTensorView of_groups;  // i32 [groups + 1]: of pieces
};
void cluster_means(const Context& context, const ClusterPieces& pieces, ConstTensorView keys,
                   ConstTensorView values, TensorView mean_keys, TensorView mean_values);

}  // namespace cuda
}  // namespace kinora

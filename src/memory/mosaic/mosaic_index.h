// The index of a mosaic memory: frames in visual clusters by the cosine of their embeddings, and in
// each of these, for every layer, K/V rows in semantic clusters by the cosine of their keys as they
// were before they were turned, all kv heads joined. Kept up while frames arrive:
//
// - A frame joins the nearest visual cluster if that stays cohesive, else it begins one. So the
//   first cluster is the first frame, and how many there are the video decides. Visual clusters
//   never split, so that no row ever changes its partition.
// - A row joins the nearest semantic cluster of its partition that is not full. If the cluster
//   would become too loose, it splits by k-means with two centres: at once if all its rows are at
//   hand. Otherwise it is marked, the row waits beside it as a cluster of its own, and the split is
//   made when a question next fetches the cluster. A full cluster takes no more rows: it is one
//   copy.
//
// An index is a value: copies share all clusters, and a change copies what they share. What nobody
// shares changes in place.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/files/byte_stream.h"
#include "memory/mosaic/cluster.h"

namespace kinora {

// What is grouped: frames and, in each visual cluster, keys; or one of the two, so that the rows of
// a visual cluster are cut where a cluster is full, or all frames are one; or nothing, each row
// being a cluster. All but the first are there to be compared with it.
enum class ClusterBy : uint8_t { nested, visual, semantic, nothing };

struct MosaicRules {
  ClusterBy by = ClusterBy::nested;
  LoosenessRule visual{.strict = 0.2, .loose = 0.3, .transition = 16};
  LoosenessRule semantic{.strict = 0.3, .loose = 0.5, .transition = 16};
  int64_t cluster_rows = 32;  // of a full cluster
  int64_t mean_rows = 0;      // while clusters have fewer on average, none is split; 0: no matter
  int64_t resident = 0;       // newest tokens whose rows are at hand; 0: all

  int64_t most_rows() const { return by == ClusterBy::nothing ? 1 : cluster_rows; }
  bool sees_frames() const { return by == ClusterBy::nested || by == ClusterBy::visual; }
};

// A row as it comes: its token, key (not turned) and value.
struct MosaicRow {
  int32_t token = 0;
  std::span<const float> key;
  std::span<const float> value;
};
// A key divided by its length.
struct UnitKey {
  std::vector<float> direction;
  double length = 0;

  explicit UnitKey(std::span<const float> key);
};

// Where a row that comes with others may belong, found for all of them at once: the cluster that
// was nearest to it before they came, and the earlier one of them that is nearest to it. −1: none.
struct NearRow {
  int32_t cluster = -1;  // an id
  int32_t earlier = -1;  // a place among the rows
};

struct SemanticCluster {
  Cohesion keys;                 // as unit vectors
  double length = 0;             // mean length of the keys
  std::vector<float> value;      // mean
  std::vector<int32_t> tokens;   // of its rows, increasing
  int32_t id = 0;                // in its partition and layer
  uint64_t stamp = 0;            // changes whenever anything else here does
  int32_t waits_for = -1;        // a single row that belongs to this loose cluster
  bool loose = false;            // to be split when it is next fetched
  std::vector<int32_t> waiting;  // ids of single rows that wait for that

  int64_t rows() const { return keys.count; }
  // Those that wait count: they will be of the parts that it is split into.
  bool takes_rows(int64_t most) const {
    return rows() + static_cast<int64_t>(waiting.size()) < most && waits_for < 0;
  }
  void add(const MosaicRow& row, const UnitKey& key);
  std::vector<float> key() const;  // the mean direction with the mean length
  float spread() const;            // standard deviation of a component of the keys, on average
};

// Gives the rows of tokens again: [tokens, width] each. False if they are not at hand; what is to
// be done with them is then put off.
using FetchRows = std::function<bool(std::span<const int32_t> tokens, std::vector<float>& keys,
                                     std::vector<float>& values)>;

class MosaicIndex {
 public:
  // The rows of one partition in one layer.
  struct Layer {
    std::vector<std::shared_ptr<const SemanticCluster>> clusters;
    std::vector<int32_t> open;    // places of those that take more rows
    std::vector<int32_t> places;  // by id; −1: there is none any more
    int32_t next_id = 0;
    // Equal stamps mean equal clusters, in whatever copies of an index.
    uint64_t stamp = 0;

    // Null if there is none with this id any more.
    const SemanticCluster* find(int32_t id) const;
    // Ids of clusters that were changed, begun or removed since it had this stamp, each once or
    // more often. False if that is not known.
    bool changed_since(uint64_t earlier, std::vector<int32_t>& ids) const;

   private:
    friend class MosaicIndex;
    struct Change {
      uint64_t stamp = 0;
      int32_t id = 0;
    };
    std::vector<Change> changes_;  // the newest, by stamp …
    uint64_t changes_after_ = 0;   // … behind this one

    void forget_old_changes();
    // One that nobody else has, to be changed at once: a copy, unless it is that already.
    SemanticCluster& own(size_t place);
    void put(size_t place, std::shared_ptr<SemanticCluster> cluster);
    void add(std::shared_ptr<SemanticCluster> cluster);  // with the next id
    void remove(int32_t id);
  };
  struct Partition {
    Cohesion frames;  // their embeddings as unit vectors
  };

  MosaicIndex(const MosaicRules& rules, int layers);

  // Frames in their order; the embedding need not be a unit vector. Returns its partition.
  int32_t add_frame(std::span<const float> embedding);
  int64_t frames() const { return static_cast<int64_t>(assigned_.size()); }
  int32_t partition_of(int64_t frame) const { return assigned_[static_cast<size_t>(frame)]; }

  // The next rows of a layer, in the order of their tokens, all of one partition. Different layers
  // may be added to at the same time.
  void add_rows(int layer, int32_t partition, std::span<const MosaicRow> rows,
                const FetchRows& fetch);
  // The same where somebody has looked for their clusters: of the two that each may belong to, the
  // nearer one takes it if it can. One index is added to in one of these ways only. Rows of several
  // partitions may come one after another, though their tokens are mixed.
  void add_near_rows(int layer, int32_t partition, std::span<const MosaicRow> rows,
                     std::span<const NearRow> near, const FetchRows& fetch);
  // Makes the splits of these clusters that were put off; for clusters that are being fetched.
  void split_loose(int layer, int32_t partition, std::span<const int32_t> ids,
                   const FetchRows& fetch);

  const std::vector<std::shared_ptr<const Partition>>& partitions() const { return partitions_; }
  const Layer& layer(int32_t partition, int layer) const;
  // Equal numbers mean equal rows of a layer, in whatever copies of an index.
  uint64_t stamp(int layer) const { return layers_[static_cast<size_t>(layer)].stamp; }
  // The token behind the newest that a layer knows.
  int32_t known(int layer) const { return layers_[static_cast<size_t>(layer)].known; }
  // Variance of all keys of a layer, as unit vectors.
  double variance(int layer) const { return layers_[static_cast<size_t>(layer)].all_keys.variance; }
  int64_t splits() const;
  int64_t bytes() const;

  // By token: the number of its cluster among all of a layer; −1: none.
  std::vector<int32_t> cluster_numbers(int layer) const;

  // As sections of a saved file: what is known of frames, and then every layer, which may be read
  // at the same time. What is read must be of this many tokens, and of keys this wide.
  std::string pack_frames() const;
  std::string pack_layer(int layer) const;
  void unpack_frames(ByteReader& in);
  void unpack_layer(int layer, ByteReader& in, int64_t tokens, size_t width);

 private:
  struct LayerIndex {
    Cohesion all_keys;
    int32_t known = 0;
    int64_t splits = 0;
    int64_t clusters = 0;
    uint64_t stamp = 0;
    std::vector<std::shared_ptr<const Layer>> partitions;  // as far as they have rows
  };

  // A number that no other rows have.
  static uint64_t next_stamp();
  Layer& own(int32_t partition, int layer);
  void open_again(Layer& layer) const;
  bool split(LayerIndex& index, Layer& layer, size_t place, std::span<const MosaicRow> more,
             const FetchRows& fetch);
  bool takes_rows(const SemanticCluster& cluster) const {
    return cluster.takes_rows(rules_.most_rows());
  }
  std::vector<UnitKey> count_in(LayerIndex& index, std::span<const MosaicRow> rows) const;
  // Returns the id of the row's cluster.
  int32_t begin_cluster(LayerIndex& index, Layer& layer, const MosaicRow& row, const UnitKey& key,
                        int32_t waits_for);
  int32_t join(LayerIndex& index, Layer& layer, size_t place, const MosaicRow& row,
               const UnitKey& key, int32_t newest, const FetchRows& fetch);

  MosaicRules rules_;
  std::vector<std::shared_ptr<const Partition>> partitions_;
  std::vector<int32_t> assigned_;  // frame → partition
  Cohesion all_frames_;
  std::vector<LayerIndex> layers_;
};

}  // namespace kinora

#include "memory/mosaic/mosaic_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <mutex>
#include <numeric>
#include <utility>

#include "memory/row_ops/attention_mass.h"

namespace kinora {
namespace {

// Newest rows of a layer that stay on the host for splits, where all others are on a GPU.
constexpr int64_t kept_on_host = 4096;
// Loose clusters of a layer that are split with one group of frames, at most.
constexpr size_t most_splits = 64;

// Gives the index rows of the memory again.
FetchRows fetch_from(const Context& context, const StoredRows& rows) {
  return [&context, &rows](std::span<const int32_t> tokens, std::vector<float>& keys,
                           std::vector<float>& values) {
    std::vector<int32_t> places;
    for (const int32_t token : tokens) places.push_back(static_cast<int32_t>(rows.row_of(token)));
    keys = rows.plain_keys(context, places);
    values = rows.values(context, places);
    return true;
  };
}

// Places in a list of known length, added in any order and given back increasing.
class PlaceSet {
 public:
  explicit PlaceSet(int64_t most) : words_(static_cast<size_t>(most / 64 + 1)) {}
  void add(int64_t place) { words_[static_cast<size_t>(place / 64)] |= uint64_t{1} << place % 64; }
  std::vector<int32_t> list(int64_t count) const {
    std::vector<int32_t> out;
    out.reserve(static_cast<size_t>(count));
    for (size_t i = 0; i < words_.size(); ++i) {
      for (uint64_t word = words_[i]; word != 0; word &= word - 1) {
        out.push_back(static_cast<int32_t>(64 * i) + std::countr_zero(word));
      }
    }
    return out;
  }

 private:
  std::vector<uint64_t> words_;
};

struct Ranked {
  double score = 0;
  int32_t place = 0;
  int32_t rows = 0;

  bool operator<(const Ranked& other) const {  // best first; equal ones by place
    return score > other.score || (score == other.score && place < other.place);
  }
};

// Sorts [begin, begin + count), the best of all that come at `begin` or later.
void best_first(std::vector<Ranked>& order, size_t begin, size_t count) {
  const auto first = order.begin() + static_cast<int64_t>(begin);
  const auto past = order.begin() + static_cast<int64_t>(begin + count);
  if (past != order.end()) std::nth_element(first, past, order.end());
  std::sort(first, past);
}

}  // namespace

MosaicRows::MosaicRows(const MosaicOptions& options, const RowLayout& layout, Device device)
    : options_(options),
      layout_(layout),
      device_(device),
      index_(std::make_shared<const MosaicIndex>(options.rules, layout.layers)) {
  if (device.is_cpu()) return;
  table_ = std::make_shared<ClusterTable>(layout, device, options.rules.cluster_rows);
}

void MosaicRows::settle() const {
  if (finishing_.valid()) finishing_.get();
}

std::unique_ptr<RowChooser> MosaicRows::clone() const {
  settle();
  auto other = std::make_unique<MosaicRows>(options_, layout_, device_);
  other->index_ = index_;
  other->asked_ = asked_;
  other->table_ = table_;
  return other;
}

// A copy costs as much as there are visual clusters; they themselves are shared.
MosaicIndex& MosaicRows::own() {
  auto mine = std::make_shared<MosaicIndex>(*index_);
  MosaicIndex& out = *mine;
  index_ = std::move(mine);
  return out;
}

std::shared_ptr<const void> MosaicRows::save() const {
  settle();
  return index_;
}

void MosaicRows::restore(const std::shared_ptr<const void>& saved, int64_t tokens) {
  if (finishing_.valid()) {
    finishing_.wait();
    finishing_ = {};  // whatever came of it is given up
  }
  index_ = std::static_pointer_cast<const MosaicIndex>(saved);
  asked_.clear();
  asked_order_.clear();
  pending_.clear();
  if (arriving_) arriving_->forget(tokens);
}

MemoryBytes MosaicRows::bytes() const {
  settle();
  return {.device = table_ ? table_->bytes() : 0, .host = index_->bytes()};
}

void MosaicRows::begin(const Context& context, const MemoryGroup& group, const FrameTable& frames,
                       int64_t first) {
  settle();
  pending_.clear();  // of a group that was given up
  asked_order_.clear();
  const bool embedded = group.embeddings.raw() != nullptr;
  const auto known = static_cast<size_t>(index_->frames());
  const bool text = frames.frames().size() == known;
  if (text && (!embedded || options_.visual == VisualMatch::query)) return;
  if (text) {
    const auto count = static_cast<int32_t>(group.tokens.size());
    asked_ = mean_rows(context, group.embeddings, std::vector<int32_t>{0, count});
    return;
  }
  // Means of all between the frames' beginnings and ends; every second one is between two frames.
  std::vector<int32_t> begins;
  const auto fresh = frames.frames().subspan(known);
  for (const Frame& frame : fresh) {
    begins.push_back(static_cast<int32_t>(frame.begin - first));
    begins.push_back(static_cast<int32_t>(frame.end - first));
  }
  const std::vector<float> means =
      embedded ? mean_rows(context, group.embeddings, begins) : std::vector<float>();
  const size_t width = embedded ? static_cast<size_t>(group.embeddings.size(1)) : 0;
  MosaicIndex& index = own();
  for (size_t i = 0; i < fresh.size(); ++i) {
    index.add_frame(std::span(means).subspan(2 * i * width, width));
  }
}

MosaicRows::NewRows MosaicRows::new_rows(int layer, const StoredRows& rows) const {
  const auto frames = rows.frames().frames_before(rows.first_token());
  const int32_t known = index_->known(layer);
  const auto frame = std::partition_point(frames.begin(), frames.end(),
                                          [&](const Frame& any) { return any.end <= known; });
  NewRows fresh;
  for (auto f = static_cast<int64_t>(frame - frames.begin()); f < std::ssize(frames); ++f) {
    const auto [begin, end] = rows.rows_of(frames[static_cast<size_t>(f)]);
    for (int64_t row = begin; row < end; ++row) {
      if (rows.ordinal(row) < known) continue;
      fresh.places.push_back(static_cast<int32_t>(row));
      fresh.partitions.push_back(index_->partition_of(f));
    }
  }
  return fresh;
}

namespace {

// Runs of rows that belong to one partition go in together.
void add_runs(MosaicIndex& index, int layer, std::span<const MosaicRow> rows,
              std::span<const int32_t> partitions, const FetchRows& fetch) {
  for (size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
    while (end < rows.size() && partitions[end] == partitions[begin]) ++end;
    index.add_rows(layer, partitions[begin], rows.subspan(begin, end - begin), fetch);
  }
}

}  // namespace

void MosaicRows::learn(const Context& context, int layer, const StoredRows& rows) {
  NewRows fresh = new_rows(layer, rows);
  if (device_.is_cpu()) {
    if (!fresh.places.empty()) take_in(context, layer, rows, fresh);
    return;
  }
  start_taking_in(context, layer, rows, std::move(fresh));
  if (layer + 1 < layout_.layers) return;
  // While the host puts rows into clusters, the GPU goes on: with the last layer, and with what
  // comes next, such as looking at further frames.
  finishing_ = std::async(std::launch::async, [this, context] { finish_taking_in(context); });
}

void MosaicRows::take_in(const Context& context, int layer, const StoredRows& rows,
                         const NewRows& fresh) {
  const std::vector<float> keys = rows.plain_keys(context, fresh.places);
  const std::vector<float> values = rows.values(context, fresh.places);
  const auto width = static_cast<size_t>(layout_.kv_heads * layout_.head_size);
  std::vector<MosaicRow> all;
  for (size_t i = 0; i < fresh.places.size(); ++i) {
    all.push_back({rows.ordinal(fresh.places[i]), std::span(keys).subspan(i * width, width),
                   std::span(values).subspan(i * width, width)});
  }
  add_runs(own(), layer, all, fresh.partitions, fetch_from(context, rows));
}

// The host goes on with the next layer while the rows of this one are on their way.
void MosaicRows::start_taking_in(const Context& context, int layer, const StoredRows& rows,
                                 NewRows fresh) {
  if (!arriving_) {
    const int64_t kept = options_.rules.resident > 0 ? options_.rules.resident : kept_on_host;
    arriving_ = std::make_unique<ArrivingRows>(layout_.layers, kept);
  }
  pending_.resize(static_cast<size_t>(layout_.layers));
  if (fresh.places.empty()) return;
  // Loose clusters that questions have read are split by the way. What is too much for one group
  // stays loose until it is read again.
  std::vector<ClusterTable::Wanted> splits = table_->take_wanted(layer);
  if (splits.size() > most_splits) splits.resize(most_splits);
  std::vector<int32_t> older;
  for (const ClusterTable::Wanted& wanted : splits) {
    for (const auto& cluster : index_->layer(wanted.partition, layer).clusters) {
      if (cluster->waits_for != wanted.id && !(cluster->id == wanted.id && cluster->loose))
        continue;
      for (const int32_t token : cluster->tokens) {
        older.push_back(static_cast<int32_t>(rows.row_of(token)));
      }
    }
  }
  std::vector<int32_t> all = fresh.places, tokens;
  all.insert(all.end(), older.begin(), older.end());
  for (const int32_t row : all) tokens.push_back(rows.ordinal(row));
  const Tensor keys = rows.plain_keys_there(context, all), values = rows.values_there(context, all);
  Tensor near;
  {
    const std::lock_guard lock(table_->turn());
    update_table(context, layer);
    near = table_->nearest(context, layer, keys.view().rows(0, std::ssize(fresh.places)),
                           fresh.partitions);
  }
  arriving_->start(context, layer, std::move(tokens), fresh.places.size(), keys, values, near);
  fresh.splits = std::move(splits);
  pending_[static_cast<size_t>(layer)] = std::move(fresh);
}

namespace {

// Partition by partition. `near` has places of the table, which say what is near as long as the
// table is that of this index; where a fork has used it since, they are only bad advice.
void add_arrived(MosaicIndex& index, int layer, const ArrivingRows::Arrived& arrived,
                 std::span<const int32_t> partitions, const ClusterList& list,
                 const FetchRows& fetch) {
  std::vector<int32_t> order(partitions.begin(), partitions.end());
  std::sort(order.begin(), order.end());
  order.erase(std::unique(order.begin(), order.end()), order.end());
  std::vector<int32_t> place_in_run(partitions.size());
  for (const int32_t partition : order) {
    std::vector<MosaicRow> rows;
    std::vector<NearRow> near;
    for (size_t i = 0; i < partitions.size(); ++i) {
      if (partitions[i] != partition) continue;
      place_in_run[i] = static_cast<int32_t>(rows.size());
      rows.push_back(arrived.rows[i]);
      const auto [found, earlier] = arrived.near[i];
      NearRow one;
      const auto place = static_cast<size_t>(found);
      if (found >= 0 && place < list.count() && list.rows[place] > 0 &&
          list.partitions[place] == partition) {
        one.cluster = list.clusters[place]->id;
      }
      if (earlier >= 0) one.earlier = place_in_run[static_cast<size_t>(earlier)];
      near.push_back(one);
    }
    index.add_near_rows(layer, partition, rows, near, fetch);
  }
}

}  // namespace

// Layers are independent of each other: all threads take part.
void MosaicRows::finish_taking_in(const Context& context) {
  const std::lock_guard lock(table_->turn());
  MosaicIndex& index = own();
  context.threads->parallel_for(std::ssize(pending_), 1, [&](int64_t begin, int64_t end) {
    for (auto layer = static_cast<int>(begin); layer < static_cast<int>(end); ++layer) {
      const NewRows& pending = pending_[static_cast<size_t>(layer)];
      if (pending.places.empty()) continue;
      const FetchRows fetch = arriving_->fetch(layer);
      add_arrived(index, layer, arriving_->wait(layer), pending.partitions, table_->list(layer),
                  fetch);
      for (const ClusterTable::Wanted& wanted : pending.splits) {
        index.split_loose(layer, wanted.partition, {&wanted.id, 1}, fetch);
      }
      table_->pack(layer, index);
    }
  });
  for (int layer = 0; layer < layout_.layers; ++layer) table_->upload(context, layer);
  pending_.clear();
}

void MosaicRows::update_table(const Context& context, int layer) const {
  table_->pack(layer, *index_);
  table_->upload(context, layer);
}

// What a question's queries make of visual clusters: of their mean keys, which are means of
// clusters by rows, so that their products are means of products. Attention would go to the largest
// of them, which show what is always there.
std::vector<double> MosaicRows::ranks_of_partitions(const Context& context, int layer,
                                                    ConstTensorView question,
                                                    const ClusterList& list) const {
  const std::vector<float> rows(list.rows.begin(), list.rows.end());
  const std::vector<double> of_clusters =
      rank(context, layer, ClusterRank::mean, question, list, rows);
  std::vector<double> ranks(index_->partitions().size()), all(ranks.size());
  for (size_t i = 0; i < list.count(); ++i) {
    if (rows[i] == 0) continue;
    const auto partition = static_cast<size_t>(list.partitions[i]);
    ranks[partition] += double{rows[i]} * of_clusters[i];
    all[partition] += double{rows[i]};
  }
  for (size_t p = 0; p < ranks.size(); ++p) ranks[p] /= std::max(all[p], 1.0);
  return ranks;
}

// Which visual clusters are searched: the best, until they hold as many rows as the search may see.
std::vector<bool> MosaicRows::searched(const Context& context, int layer, ConstTensorView question,
                                       const ClusterList& list, std::span<const float> rows) const {
  const auto& partitions = index_->partitions();
  if (options_.search == 0) return std::vector<bool>(partitions.size(), true);
  std::vector<double> held(partitions.size());
  double total = 0;
  for (size_t i = 0; i < list.count(); ++i) {
    if (rows[i] == 0) continue;
    held[static_cast<size_t>(list.partitions[i])] += double{rows[i]};
    total += double{rows[i]};
  }
  const bool everything = total <= static_cast<double>(options_.search);
  std::vector<bool> chosen(partitions.size(), everything);
  if (everything) return chosen;
  const bool asked = options_.visual == VisualMatch::embedding && !asked_.empty();
  std::vector<int32_t> order = asked ? asked_order_ : std::vector<int32_t>();
  if (order.size() != partitions.size()) {
    std::vector<double> ranks;
    if (asked) {
      std::vector<float> unit = asked_;
      make_unit(unit);
      for (const auto& partition : partitions) {
        const Cohesion& frames = partition->frames;
        ranks.push_back(frames.mean.size() == unit.size() ? frames.cosine(unit) : 0.0);
      }
    } else {
      ranks = ranks_of_partitions(context, layer, question, list);
    }
    order.resize(partitions.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return ranks[static_cast<size_t>(a)] > ranks[static_cast<size_t>(b)];
    });
    if (asked) asked_order_ = order;  // the same for every layer
  }
  double room = static_cast<double>(options_.search);
  for (size_t i = 0; i < order.size() && room > 0; ++i) {
    const auto partition = static_cast<size_t>(order[i]);
    chosen[partition] = true;
    room -= held[partition];
  }
  return chosen;
}

// By place; `rows` is 0 where a cluster is not searched.
std::vector<double> MosaicRows::rank(const Context& context, int layer, ClusterRank by,
                                     ConstTensorView question, const ClusterList& list,
                                     std::span<const float> rows) const {
  std::vector<float> logs = list.log_rows;
  for (size_t i = 0; i < logs.size(); ++i) {
    if (static_cast<int32_t>(rows[i]) != list.rows[i]) logs[i] = std::log(rows[i]);
  }
  const bool softmax = by == ClusterRank::mass;
  if (table_) return table_->scores(context, layer, question, logs, softmax);
  const int64_t width = layout_.kv_heads * layout_.head_size;
  Tensor keys = Tensor::zeros(DType::f32, {static_cast<int64_t>(list.count()), width});
  for (size_t i = 0; i < list.count(); ++i) {
    if (rows[i] == 0) continue;
    const std::vector<float> key = list.clusters[i]->key();
    std::copy(key.begin(), key.end(), keys.data<float>() + static_cast<int64_t>(i) * width);
  }
  return attention_mass(context, question, keys, layout_.kv_heads, logs, softmax);
}

// The clusters that the question looks at most, of those that are searched, as far as they fit.
std::shared_ptr<MosaicRows::Held> MosaicRows::select(const Context& context, int layer,
                                                     const StoredRows& rows,
                                                     ConstTensorView question) const {
  const auto held = std::make_shared<Held>();
  if (table_) {
    held->lock = std::unique_lock(table_->turn());
    update_table(context, layer);
  } else {
    held->clusters = list_clusters(*index_, layer);
  }
  const ClusterList& list = table_ ? table_->list(layer) : held->clusters;

  const std::vector<int32_t> newest = newest_rows(rows, newest_read());
  const int32_t recent = newest.empty() ? rows.first_token() : rows.ordinal(newest.front());
  // At first rows of each cluster that are not read anyway.
  std::vector<float>& left = held->left;
  left.resize(list.count());
  const auto older = [&](const SemanticCluster& cluster) {
    return std::lower_bound(cluster.tokens.begin(), cluster.tokens.end(), recent) -
           cluster.tokens.begin();
  };
  int64_t all = 0;
  for (size_t i = 0; i < left.size(); ++i) {
    const bool whole = list.rows[i] == 0 || list.newest[i] < recent;
    left[i] = static_cast<float>(whole ? list.rows[i] : older(*list.clusters[i]));
    all += left[i] > 0;
  }
  const std::vector<bool> search = searched(context, layer, question, list, left);
  std::vector<float> seen = left;
  for (size_t i = 0; i < seen.size(); ++i) {
    if (seen[i] > 0 && !search[static_cast<size_t>(list.partitions[i])]) seen[i] = 0;
  }
  const std::vector<double> ranks = rank(context, layer, options_.rank, question, list, seen);
  std::vector<Ranked> found;
  found.reserve(seen.size());
  for (size_t i = 0; i < seen.size(); ++i) {
    if (seen[i] > 0) {
      found.push_back({ranks[i], static_cast<int32_t>(i), static_cast<int32_t>(seen[i])});
    }
  }

  const int64_t budget = options_.reading.rows - static_cast<int64_t>(newest.size());
  held->standing = std::min(
      {options_.representatives,
       static_cast<int64_t>(options_.representative_share * static_cast<double>(budget)), all});
  int64_t room = budget - held->standing;
  PlaceSet chosen(rows.total());
  for (const int32_t row : newest) chosen.add(row);
  size_t sorted = 0;
  for (size_t i = 0; i < found.size() && room > 0; ++i) {
    if (i == sorted) {  // most of a long list is never looked at
      const bool fits = std::any_of(found.begin() + static_cast<int64_t>(i), found.end(),
                                    [&](const Ranked& any) { return any.rows <= room; });
      if (!fits) break;
      const size_t more = std::max<size_t>(256, 2 * sorted);
      sorted = std::min(found.size(), sorted + more);
      best_first(found, i, sorted - i);
    }
    const auto place = static_cast<size_t>(found[i].place);
    const int64_t count = found[i].rows;
    if (count > room) continue;
    const SemanticCluster& cluster = *list.clusters[place];
    room -= count;
    left[place] = 0;
    for (int64_t k = 0; k < count; ++k) {
      chosen.add(rows.row_of(cluster.tokens[static_cast<size_t>(k)]));
    }
    if (cluster.loose) held->loose.push_back({list.partitions[place], cluster.id});
  }
  held->rows = chosen.list(options_.reading.rows);
  return held;
}

std::vector<int32_t> MosaicRows::likely(const Context& context, int layer,
                                        const StoredRows& rows) const {
  if (!question_.defined() || !new_rows(layer, rows).places.empty()) return {};
  return select(context, layer, rows, question_)->rows;
}

FrameRows MosaicRows::choose(const Context& context, int layer, const StoredRows& rows,
                             const QueryView& queries) {
  if (NewRows fresh = new_rows(layer, rows); !fresh.places.empty()) {
    if (device_.is_cpu()) {
      take_in(context, layer, rows, fresh);
    } else {
      start_taking_in(context, layer, rows, std::move(fresh));
      finish_taking_in(context);
    }
  }
  question_ = plain_queries_there(context, rows.memory(), queries);
  const std::shared_ptr<Held> held = select(context, layer, rows, question_);
  FrameRows out{held->rows};
  out.stand_ins = [this, &context, layer, held] {
    const ClusterList& list = table_ ? table_->list(layer) : held->clusters;
    return stand_for(context, layer, list, held->left, held->standing);
  };
  if (table_) {
    for (const ClusterTable::Wanted& wanted : held->loose) table_->want_split(layer, wanted);
  } else if (!held->loose.empty()) {
    MosaicIndex& index = own();
    const FetchRows fetch = fetch_from(context, rows);
    for (const ClusterTable::Wanted& wanted : held->loose) {
      index.split_loose(layer, wanted.partition, {&wanted.id, 1}, fetch);
    }
  }
  return out;
}

// One row for each cluster that is left; where these are too many, for each visual cluster, and
// where those are too many, for the largest of them. It stands in the middle of what it stands for:
// at the middle row of a cluster, or of the cluster in the middle.
StandIns MosaicRows::stand_for(const Context& context, int layer, const ClusterList& list,
                               std::span<const float> rows, int64_t most) {
  StandIns out;
  struct StandIn {
    int32_t token = 0;
    double rows = 0;
    size_t begin = 0, end = 0;  // of `places`
  };
  std::vector<int32_t> places;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] > 0) places.push_back(static_cast<int32_t>(i));
  }
  const auto at = [&](const auto& values, int32_t place) {
    return values[static_cast<size_t>(place)];
  };
  const bool joined = std::ssize(places) > most;
  if (joined) {  // by partition, each in the order of places
    std::vector<size_t> next(index_->partitions().size() + 1);
    for (const int32_t place : places) ++next[static_cast<size_t>(at(list.partitions, place)) + 1];
    std::partial_sum(next.begin(), next.end(), next.begin());
    std::vector<int32_t> by_partition(places.size());
    for (const int32_t place : places) {
      by_partition[next[static_cast<size_t>(at(list.partitions, place))]++] = place;
    }
    places = std::move(by_partition);
  }
  std::vector<StandIn> all;
  for (size_t begin = 0, end = 0; begin < places.size(); begin = end) {
    StandIn standing{.begin = begin};
    do {
      standing.rows += double{at(rows, places[end++])};
    } while (joined && end < places.size() &&
             at(list.partitions, places[end]) == at(list.partitions, places[begin]));
    standing.end = end;
    std::vector<int32_t> middles;
    for (size_t i = begin; i < end; ++i) {
      const auto place = static_cast<size_t>(places[i]);
      const auto left = static_cast<int32_t>(rows[place]);  // some may be read as recent ones
      middles.push_back(left == list.rows[place]
                            ? list.middles[place]
                            : list.clusters[place]->tokens[static_cast<size_t>(left) / 2]);
    }
    const auto middle = middles.begin() + std::ssize(middles) / 2;
    std::nth_element(middles.begin(), middle, middles.end());
    standing.token = *middle;
    all.push_back(standing);
  }
  if (std::ssize(all) > most) {
    std::stable_sort(all.begin(), all.end(),
                     [](const StandIn& a, const StandIn& b) { return a.rows > b.rows; });
    all.resize(static_cast<size_t>(std::max<int64_t>(0, most)));
  }
  std::sort(all.begin(), all.end(),
            [](const StandIn& a, const StandIn& b) { return a.token < b.token; });
  ClusterTable::Groups groups;
  for (const StandIn& standing : all) {
    out.tokens.push_back(standing.token);
    out.weights.push_back(static_cast<float>(standing.rows));
    for (size_t i = standing.begin; i < standing.end; ++i) {
      groups.places.push_back(places[i]);
      groups.weights.push_back(at(rows, places[i]));
    }
    groups.begins.push_back(static_cast<int32_t>(groups.places.size()));
  }
  if (all.empty()) return out;
  if (table_) {
    std::tie(out.keys, out.values) = table_->means(context, layer, groups);
    return out;
  }
  const Shape shape{std::ssize(all), layout_.kv_heads, layout_.head_size};
  out.keys = Tensor(DType::f32, shape);
  out.values = Tensor(DType::f32, shape);
  const auto width = static_cast<size_t>(layout_.kv_heads * layout_.head_size);
  for (size_t g = 0; g < all.size(); ++g) {
    std::vector<double> key(width), value(width);
    for (auto i = static_cast<size_t>(groups.begins[g]);
         i < static_cast<size_t>(groups.begins[g + 1]); ++i) {
      const SemanticCluster& cluster = *at(list.clusters, groups.places[i]);
      const std::vector<float> mean = cluster.key();
      for (size_t k = 0; k < width; ++k) {
        key[k] += double{groups.weights[i]} * double{mean[k]};
        value[k] += double{groups.weights[i]} * double{cluster.value[k]};
      }
    }
    for (size_t k = 0; k < width; ++k) {
      out.keys.data<float>()[g * width + k] = static_cast<float>(key[k] / all[g].rows);
      out.values.data<float>()[g * width + k] = static_cast<float>(value[k] / all[g].rows);
    }
  }
  return out;
}

}  // namespace kinora

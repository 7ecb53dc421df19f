#include "memory/mosaic/mosaic_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <mutex>
#include <numeric>
#include <utility>

#include "base/own_copy.h"
#include "memory/row_ops/attention_mass.h"
#include "memory/row_ops/mean_rows.h"
#include "memory/row_ops/sort_more.h"

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

}  // namespace

MosaicRows::MosaicRows(const MosaicOptions& options, const RowLayout& layout, Device device)
    : options_(options),
      layout_(layout),
      device_(device),
      index_(std::make_shared<MosaicIndex>(options.rules, layout.layers)) {
  if (device.is_cpu()) return;
  table_ = std::make_shared<ClusterTable>(layout, device, options.rules.most_rows());
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

// One that nobody else has. A copy costs as much as there are visual clusters, which are shared.
MosaicIndex& MosaicRows::own() { return own_copy(index_); }

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
    const MosaicIndex::Layer& clusters = index_->layer(wanted.partition, layer);
    const SemanticCluster* loose = clusters.find(wanted.id);
    if (loose == nullptr || !loose->loose) continue;
    const auto bring = [&](const SemanticCluster& cluster) {
      for (const int32_t token : cluster.tokens) {
        older.push_back(static_cast<int32_t>(rows.row_of(token)));
      }
    };
    bring(*loose);
    for (const int32_t id : loose->waiting) bring(*clusters.find(id));
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
        one.cluster = list.ids[place];
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
  const std::vector<double> of_clusters =
      scores(context, layer, ClusterRank::mean, question, list, list.rows);
  std::vector<double> ranks(index_->partitions().size());
  for (size_t i = 0; i < list.count(); ++i) {
    if (list.rows[i] == 0) continue;
    ranks[static_cast<size_t>(list.partitions[i])] += double(list.rows[i]) * of_clusters[i];
  }
  for (size_t p = 0; p < list.rows_of.size(); ++p) {
    ranks[p] /= static_cast<double>(std::max<int64_t>(list.rows_of[p], 1));
  }
  return ranks;
}

// The best visual clusters, until they hold as many rows as the search may see.
std::vector<int32_t> MosaicRows::searched(const Context& context, int layer,
                                          ConstTensorView question,
                                          const UnreadRows& unread) const {
  if (options_.search == 0) return {};
  const std::vector<int64_t> held = unread.rows_by_partition();
  if (std::accumulate(held.begin(), held.end(), int64_t{0}) <= options_.search) return {};
  const auto& partitions = index_->partitions();
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
      ranks = ranks_of_partitions(context, layer, question, unread.list());
    }
    order.resize(partitions.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return ranks[static_cast<size_t>(a)] > ranks[static_cast<size_t>(b)];
    });
    if (asked) asked_order_ = order;  // the same for every layer
  }
  std::vector<int32_t> chosen(partitions.size());
  int64_t room = options_.search;
  for (size_t i = 0; i < order.size() && room > 0; ++i) {
    const auto partition = static_cast<size_t>(order[i]);
    chosen[partition] = 1;
    if (partition < held.size()) room -= held[partition];
  }
  return chosen;
}

std::vector<double> MosaicRows::scores(const Context& context, int layer, ClusterRank by,
                                       ConstTensorView question, const ClusterList& list,
                                       std::span<const int32_t> rows) const {
  std::vector<float> logs;
  for (const int32_t count : rows) logs.push_back(std::log(static_cast<float>(count)));
  const bool softmax = by == ClusterRank::mass;
  if (table_) return table_->scores(context, layer, question, logs, softmax);
  const int64_t width = layout_.kv_heads * layout_.head_size;
  Tensor keys = Tensor::zeros(DType::f32, {static_cast<int64_t>(list.count()), width});
  for (size_t i = 0; i < list.count(); ++i) {
    if (rows[i] == 0) continue;
    const std::vector<float> key = list.clusters[i]->key();
    std::copy(key.begin(), key.end(), keys.data<float>() + static_cast<int64_t>(i) * width);
  }
  return attention_mass(context, question, keys, layout_.kv_heads, logs, softmax, spreads_of(list));
}

BestClusters MosaicRows::read_best_here(const Context& context, int layer, ConstTensorView question,
                                        UnreadRows& unread, int64_t room, int64_t more) const {
  const ClusterList& list = unread.list();
  const std::vector<int32_t> search = searched(context, layer, question, unread);
  std::vector<int32_t> rows(list.count()), order;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (unread[i] == 0) continue;
    if (!search.empty() && search[static_cast<size_t>(list.partitions[i])] == 0) continue;
    rows[i] = unread[i];
    order.push_back(static_cast<int32_t>(i));
  }
  const std::vector<double> found = scores(context, layer, options_.rank, question, list, rows);
  const auto better = [&](int32_t a, int32_t b) {  // of equal ones the lower place
    const double of_a = found[static_cast<size_t>(a)], of_b = found[static_cast<size_t>(b)];
    return of_a > of_b || (of_a == of_b && a < b);
  };
  size_t given = 0;
  return read_best(unread, room, more, [&] {  // most of a long list is never looked at
    const size_t begin = std::exchange(given, sort_more(order, given, better));
    return std::span<const int32_t>(order).subspan(begin, given - begin);
  });
}

BestClusters MosaicRows::read_best_there(const Context& context, int layer,
                                         ConstTensorView question, UnreadRows& unread, int64_t room,
                                         int64_t more) const {
  const std::vector<int32_t> search = searched(context, layer, question, unread);
  int64_t left = unread.clusters();
  if (!search.empty()) {
    const std::vector<int32_t> clusters = unread.clusters_by_partition();
    left = std::inner_product(clusters.begin(), clusters.end(), search.begin(), int64_t{0});
  }
  // One at least, since stand-ins need what comes with it. Those that do not count come last.
  std::span<const int32_t> best =
      table_->best(context, layer, question, options_.rank == ClusterRank::mass, unread, search,
                   std::max<int64_t>(room + more, 1));
  best = best.first(std::min(best.size(), static_cast<size_t>(left)));
  return read_best(unread, room, more, [&] { return std::exchange(best, {}); });
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
  UnreadRows& unread = held->unread.emplace(
      list, newest.empty() ? UnreadRows::none_is_recent : rows.ordinal(newest.front()));
  const int64_t budget = options_.reading.rows - static_cast<int64_t>(newest.size());
  held->standing =
      std::min({options_.representatives,
                static_cast<int64_t>(options_.representative_share * static_cast<double>(budget)),
                unread.clusters()});
  const int64_t room = budget - held->standing;
  PlaceSet chosen(rows.total());
  for (const int32_t row : newest) chosen.add(row);
  BestClusters best = table_
                          ? read_best_there(context, layer, question, unread, room, held->standing)
                          : read_best_here(context, layer, question, unread, room, held->standing);
  held->next = std::move(best.next);
  for (const ReadCluster& read : best.read) {
    const auto place = static_cast<size_t>(read.place);
    const SemanticCluster& cluster = *list.clusters[place];
    for (size_t k = 0; k < static_cast<size_t>(read.rows); ++k) {
      chosen.add(rows.row_of(cluster.tokens[k]));
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
  out.stand_ins = [this, &context, layer, held] { return stand_for(context, layer, *held); };
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

StandIns MosaicRows::stand_for(const Context& context, int layer, Held& held) const {
  UnreadRows& unread = *held.unread;
  std::optional<OwnClusterOrder> own;
  if (!table_ && unread.clusters() > held.standing) own.emplace(unread.list());
  const ClusterOrder order = table_ ? table_->order(layer) : own ? own->view() : ClusterOrder();
  const StandInPlan plan = plan_stand_ins(unread, held.next, order, held.standing);
  StandIns out{plan.tokens, {}, {}, plan.weights};
  const ClusterGroups& groups = plan.groups;
  if (groups.count() == 0) return out;
  if (table_) {
    std::tie(out.keys, out.values) = table_->means(context, layer, groups, unread);
    return out;
  }
  const Shape shape{static_cast<int64_t>(groups.count()), layout_.kv_heads, layout_.head_size};
  out.keys = Tensor(DType::f32, shape);
  out.values = Tensor(DType::f32, shape);
  const auto width = static_cast<size_t>(layout_.kv_heads * layout_.head_size);
  for (size_t g = 0; g < groups.count(); ++g) {
    std::vector<double> key(width), value(width);
    const auto add = [&](size_t place, double rows) {
      const SemanticCluster& cluster = *unread.list().clusters[place];
      const std::vector<float> mean = cluster.key();
      for (size_t k = 0; k < width; ++k) {
        key[k] += rows * double{mean[k]};
        value[k] += rows * double{cluster.value[k]};
      }
    };
    const auto begin = static_cast<size_t>(groups.begins[g]);
    if (groups.ends[g] == ClusterGroups::alone) {
      add(begin, double{plan.weights[g]});
    } else {
      for (size_t i = begin; i < static_cast<size_t>(groups.ends[g]); ++i) {
        const auto place = static_cast<size_t>(order.places[i]);
        if (unread[place] > 0) add(place, double(unread[place]));
      }
    }
    const double rows = double{plan.weights[g]};
    for (size_t k = 0; k < width; ++k) {
      out.keys.data<float>()[g * width + k] = static_cast<float>(key[k] / rows);
      out.values.data<float>()[g * width + k] = static_cast<float>(value[k] / rows);
    }
  }
  return out;
}

}  // namespace kinora

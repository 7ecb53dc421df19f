#include "memory/mosaic/mosaic_rows.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace kinora {
namespace {

// Gives the index rows of the memory again.
FetchRows fetch_from(const Context& context, const StoredRows& rows) {
  return [&context, &rows](std::span<const int32_t> tokens, std::vector<float>& keys,
                           std::vector<float>& values) {
    std::vector<int32_t> places;
    for (const int32_t token : tokens) places.push_back(static_cast<int32_t>(rows.row_of(token)));
    keys = rows.plain_keys(context, places);
    values = rows.values(context, places);
  };
}

}  // namespace

MosaicRows::MosaicRows(const MosaicOptions& options, const RowLayout& layout)
    : options_(options),
      kv_heads_(layout.kv_heads),
      head_size_(layout.head_size),
      index_(std::make_shared<const MosaicIndex>(options.rules, layout.layers)) {}

// A copy costs as much as there are visual clusters; they themselves are shared.
MosaicIndex& MosaicRows::own() {
  auto mine = std::make_shared<MosaicIndex>(*index_);
  MosaicIndex& out = *mine;
  index_ = std::move(mine);
  return out;
}

std::shared_ptr<const void> MosaicRows::save() const { return index_; }

void MosaicRows::restore(const std::shared_ptr<const void>& saved, int64_t) {
  index_ = std::static_pointer_cast<const MosaicIndex>(saved);
  asked_.clear();
}

void MosaicRows::write(const std::shared_ptr<const void>& saved, int64_t,
                       ArchiveWriter& out) const {
  out.add("mosaic", static_cast<const MosaicIndex*>(saved.get())->pack());
}

void MosaicRows::read(const Archive& in, const FrameTable& frames) {
  const std::string bytes = in.read("mosaic");
  ByteReader from(bytes, in.path());
  MosaicIndex& index = own();
  const auto all = frames.frames();
  index.unpack(from, all.empty() ? 0 : all.back().end,
               static_cast<size_t>(kv_heads_ * head_size_));
  from.end();
  if (index.frames() > static_cast<int64_t>(all.size())) {
    from.refuse("holds clusters of other frames");
  }
}

void MosaicRows::begin(const Context& context, const MemoryGroup& group, const FrameTable& frames,
                       int64_t first) {
  const bool embedded = group.embeddings.raw() != nullptr;
  const auto known = static_cast<size_t>(index_->frames());
  const bool text = frames.frames().size() == known;
  if (text && (!embedded || options_.visual == VisualMatch::query)) return;
  const size_t width = embedded ? static_cast<size_t>(group.embeddings.size(1)) : 0;
  const std::vector<float> embeddings =
      embedded ? floats_on_host(context, group.embeddings) : std::vector<float>();
  const auto mean_of = [&](int64_t begin, int64_t end) {
    std::vector<double> sum(width);
    for (int64_t i = begin; i < end; ++i) {
      const float* row = embeddings.data() + static_cast<size_t>(i) * width;
      for (size_t k = 0; k < width; ++k) sum[k] += double{row[k]};
    }
    std::vector<float> mean(width);
    for (size_t k = 0; k < width; ++k) {
      mean[k] = static_cast<float>(sum[k] / static_cast<double>(end - begin));
    }
    return mean;
  };
  if (text) {
    asked_ = mean_of(0, static_cast<int64_t>(group.tokens.size()));
    return;
  }
  MosaicIndex& index = own();
  for (const Frame& frame : frames.frames().subspan(known)) {
    index.add_frame(mean_of(frame.begin - first, frame.end - first));
  }
}

void MosaicRows::learn(const Context& context, int layer, const StoredRows& rows) {
  const auto frames = rows.frames().frames_before(rows.first_token());
  const int32_t known = index_->known(layer);
  auto frame = std::partition_point(frames.begin(), frames.end(),
                                    [&](const Frame& any) { return any.end <= known; });
  if (frame == frames.end()) return;
  const auto first_frame = static_cast<int64_t>(frame - frames.begin());
  std::vector<int32_t> places, partitions;
  for (auto f = first_frame; f < static_cast<int64_t>(frames.size()); ++f) {
    const auto [begin, end] = rows.rows_of(frames[static_cast<size_t>(f)]);
    for (int64_t row = begin; row < end; ++row) {
      if (rows.ordinal(row) < known) continue;
      places.push_back(static_cast<int32_t>(row));
      partitions.push_back(index_->partition_of(f));
    }
  }
  const std::vector<float> keys = rows.plain_keys(context, places);
  const std::vector<float> values = rows.values(context, places);
  const auto width = static_cast<size_t>(kv_heads_ * head_size_);
  std::vector<MosaicRow> run;
  MosaicIndex& index = own();
  const FetchRows fetch = fetch_from(context, rows);
  for (size_t i = 0; i < places.size(); ++i) {
    run.push_back({rows.ordinal(places[i]), std::span(keys).subspan(i * width, width),
                   std::span(values).subspan(i * width, width)});
    if (i + 1 < places.size() && partitions[i + 1] == partitions[i]) continue;
    index.add_rows(layer, partitions[i], run, fetch);
    run.clear();
  }
}

MosaicRows::Question MosaicRows::question_of(const Context& context, const Memory& memory,
                                             const QueryView& queries) const {
  Question question;
  question.queries = plain_queries(context, memory, queries);
  question.heads = queries.queries.size(1);
  const int64_t share = question.heads / kv_heads_;
  question.sum.assign(static_cast<size_t>(kv_heads_ * head_size_), 0.0f);
  for (size_t i = 0; i < question.queries.size(); ++i) {
    const int64_t place = static_cast<int64_t>(i) % (question.heads * head_size_);
    const int64_t head = place / head_size_ / share;
    question.sum[static_cast<size_t>(head * head_size_ + place % head_size_)] +=
        question.queries[i];
  }
  return question;
}

// Of mean keys [count, kv heads × head size] that each stand for `weights` rows.
std::vector<double> MosaicRows::scores(ClusterRank rank, const Question& question,
                                       std::span<const float> keys,
                                       std::span<const double> weights) const {
  const size_t count = weights.size();
  const auto width = static_cast<size_t>(kv_heads_ * head_size_);
  const auto size = static_cast<size_t>(head_size_);
  std::vector<double> out(count);
  if (rank == ClusterRank::mean) {
    for (size_t i = 0; i < count; ++i) {
      for (size_t k = 0; k < width; ++k) {
        out[i] += double{question.sum[k]} * double{keys[i * width + k]};
      }
    }
    return out;
  }
  const auto pairs = static_cast<int64_t>(question.queries.size() / size);
  const float scale = 1 / std::sqrt(static_cast<float>(head_size_));
  std::vector<float> logs(count), row(count);
  for (size_t i = 0; i < count; ++i) logs[i] = static_cast<float>(std::log(weights[i]));
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const float* query = question.queries.data() + pair * head_size_;
    const auto kv_head = static_cast<size_t>(pair % question.heads / (question.heads / kv_heads_));
    float largest = -INFINITY;
    for (size_t i = 0; i < count; ++i) {
      const float* key = keys.data() + i * width + kv_head * size;
      float dot = 0;
      for (size_t k = 0; k < size; ++k) dot += query[k] * key[k];
      row[i] = dot * scale + logs[i];
      largest = std::max(largest, row[i]);
    }
    double sum = 0;
    for (float& score : row) sum += double{score = std::exp(score - largest)};
    for (size_t i = 0; i < count; ++i) out[i] += double{row[i]} / sum;
  }
  return out;
}

// Which visual clusters are searched: the best, until they hold as many rows as the search may see.
std::vector<bool> MosaicRows::searched(const Question& question, int layer,
                                       const std::vector<Candidate>& all) const {
  const auto& partitions = index_->partitions();
  std::vector<int64_t> rows(partitions.size(), 0);
  int64_t total = 0;
  for (const Candidate& any : all) {
    rows[static_cast<size_t>(any.partition)] += static_cast<int64_t>(any.rows.size());
    total += static_cast<int64_t>(any.rows.size());
  }
  const bool everything = options_.search == 0 || total <= options_.search;
  std::vector<bool> chosen(partitions.size(), everything);
  if (everything) return chosen;
  const auto width = static_cast<size_t>(kv_heads_ * head_size_);
  std::vector<double> ranks;
  if (options_.visual == VisualMatch::embedding && !asked_.empty()) {
    std::vector<float> unit = asked_;
    make_unit(unit);
    for (const auto& partition : partitions) {
      ranks.push_back(partition->frames.mean.size() == unit.size() ? partition->frames.cosine(unit)
                                                                   : 0.0);
    }
  } else {
    std::vector<float> keys(partitions.size() * width);
    std::vector<double> weights(partitions.size());
    for (size_t p = 0; p < partitions.size(); ++p) {
      std::vector<double> sum(width);
      for (const auto& cluster : index_->layer(static_cast<int32_t>(p), layer).clusters) {
        const auto count = static_cast<double>(cluster->rows());
        weights[p] += count;
        for (size_t k = 0; k < width; ++k) {
          sum[k] += count * cluster->length * double{cluster->keys.mean[k]};
        }
      }
      weights[p] = std::max(weights[p], 1.0);
      for (size_t k = 0; k < width; ++k) {
        keys[p * width + k] = static_cast<float>(sum[k] / weights[p]);
      }
    }
    // Attention would go to the largest of them, which show what is always there.
    ranks = scores(ClusterRank::mean, question, keys, weights);
  }
  std::vector<size_t> order(partitions.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return ranks[a] > ranks[b]; });
  int64_t room = options_.search;
  for (size_t i = 0; i < order.size() && room > 0; ++i) {
    chosen[order[i]] = true;
    room -= rows[order[i]];
  }
  return chosen;
}

FrameRows MosaicRows::choose(const Context& context, int layer, const StoredRows& rows,
                             const QueryView& queries) {
  learn(context, layer, rows);
  FrameRows out;
  out.rows = newest_rows(rows, std::min(options_.recent, options_.reading.rows / 2));
  const int32_t recent = out.rows.empty() ? rows.first_token() : rows.ordinal(out.rows.front());
  std::vector<Candidate> all;
  for (int32_t p = 0; p < static_cast<int32_t>(index_->partitions().size()); ++p) {
    for (const auto& cluster : index_->layer(p, layer).clusters) {
      Candidate candidate{p, cluster.get(), {}};
      for (const int32_t token : cluster->tokens) {
        if (token >= recent) break;
        candidate.rows.push_back(static_cast<int32_t>(rows.row_of(token)));
      }
      if (!candidate.rows.empty()) all.push_back(std::move(candidate));
    }
  }
  const Question question = question_of(context, rows.memory(), queries);
  const std::vector<bool> search = searched(question, layer, all);
  std::vector<size_t> found;
  std::vector<float> keys;
  std::vector<double> weights;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!search[static_cast<size_t>(all[i].partition)]) continue;
    found.push_back(i);
    const std::vector<float> key = all[i].cluster->key();
    keys.insert(keys.end(), key.begin(), key.end());
    weights.push_back(static_cast<double>(all[i].rows.size()));
  }
  const std::vector<double> ranks = scores(options_.rank, question, keys, weights);
  for (size_t i = 0; i < found.size(); ++i) all[found[i]].score = ranks[i];
  std::stable_sort(found.begin(), found.end(),
                   [&](size_t a, size_t b) { return all[a].score > all[b].score; });

  const int64_t budget = options_.reading.rows - static_cast<int64_t>(out.rows.size());
  const int64_t standing =
      std::min({options_.representatives,
                static_cast<int64_t>(options_.representative_share * static_cast<double>(budget)),
                static_cast<int64_t>(all.size())});
  int64_t room = budget - standing;
  std::vector<std::vector<int32_t>> fetched(index_->partitions().size());  // ids
  for (const size_t i : found) {
    Candidate& candidate = all[i];
    const auto count = static_cast<int64_t>(candidate.rows.size());
    if (count > room) continue;
    room -= count;
    candidate.fetched = true;
    out.rows.insert(out.rows.end(), candidate.rows.begin(), candidate.rows.end());
    if (candidate.cluster->loose) {
      fetched[static_cast<size_t>(candidate.partition)].push_back(candidate.cluster->id);
    }
  }
  std::sort(out.rows.begin(), out.rows.end());
  std::erase_if(all, [](const Candidate& candidate) { return candidate.fetched; });
  stand_for(all, standing, rows, out);

  const bool loose =
      std::any_of(fetched.begin(), fetched.end(), [](const auto& ids) { return !ids.empty(); });
  if (!loose) return out;
  MosaicIndex& index = own();
  const FetchRows fetch = fetch_from(context, rows);
  for (size_t p = 0; p < fetched.size(); ++p) {
    index.split_loose(layer, static_cast<int32_t>(p), fetched[p], fetch);
  }
  return out;
}

// One row for each cluster that is left; where these are too many, for each visual cluster, and
// where those are too many, for the largest of them.
void MosaicRows::stand_for(std::vector<Candidate>& left, int64_t most, const StoredRows& rows,
                           FrameRows& out) const {
  struct StandIn {
    int32_t token = 0;
    double rows = 0;
    std::vector<double> key, value;
  };
  const bool joined = static_cast<int64_t>(left.size()) > most;
  std::vector<StandIn> all;
  int32_t partition = -1;
  std::vector<int32_t> tokens;
  const auto close = [&] {  // stands in the middle of what it stands for
    if (tokens.empty()) return;
    std::sort(tokens.begin(), tokens.end());
    all.back().token = tokens[tokens.size() / 2];
    tokens.clear();
  };
  for (const Candidate& candidate : left) {
    if (!joined || candidate.partition != partition) {
      close();
      all.emplace_back();
      partition = candidate.partition;
    }
    StandIn& standing = all.back();
    const auto count = static_cast<double>(candidate.rows.size());
    const std::vector<float> key = candidate.cluster->key();
    standing.key.resize(key.size());
    standing.value.resize(key.size());
    for (size_t k = 0; k < key.size(); ++k) {
      standing.key[k] += count * double{key[k]};
      standing.value[k] += count * double{candidate.cluster->value[k]};
    }
    standing.rows += count;
    for (const int32_t row : candidate.rows) tokens.push_back(rows.ordinal(row));
  }
  close();
  if (static_cast<int64_t>(all.size()) > most) {
    std::stable_sort(all.begin(), all.end(),
                     [](const StandIn& a, const StandIn& b) { return a.rows > b.rows; });
    all.resize(static_cast<size_t>(std::max<int64_t>(0, most)));
  }
  std::sort(all.begin(), all.end(),
            [](const StandIn& a, const StandIn& b) { return a.token < b.token; });
  for (const StandIn& standing : all) {
    out.stand_ins.tokens.push_back(standing.token);
    out.stand_ins.weights.push_back(static_cast<float>(standing.rows));
    for (size_t k = 0; k < standing.key.size(); ++k) {
      out.stand_ins.keys.push_back(static_cast<float>(standing.key[k] / standing.rows));
      out.stand_ins.values.push_back(static_cast<float>(standing.value[k] / standing.rows));
    }
  }
}

}  // namespace kinora

#include "memory/compact_memory.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "memory/partial/stored_rows.h"
#include "memory/policies.h"
#include "memory/row_ops/attention_mass.h"
#include "memory/row_ops/move_rows.h"
#include "ops/elementwise.h"

namespace kinora {
namespace {

// Tokens of the first text whose queries stand for any question.
constexpr size_t generic_tokens = 32;

// How much recency counts against attention: all in the first tenth of the layers, nothing in the
// last three, and between them ever less, down to a tenth.
double recency_share(int layer, int layers) {
  const double depth = static_cast<double>(layer) / static_cast<double>(layers);
  if (depth < 0.1) return 1;
  if (depth >= 0.7) return 0;
  return 1 - 0.9 * (depth - 0.1) / 0.6;
}

}  // namespace

CompactMemory::CompactMemory(const RowLayout& layout, Device device, const Retention& retention,
                             const CompactOptions& options)
    : layout_(layout),
      device_(device),
      retention_(retention),
      options_(options),
      kept_(static_cast<size_t>(layout.layers)),
      newest_(std::make_shared<FlatMemory>(layout, device, retention)),
      generic_(kept_.size()),
      newest_ordinals_(kept_.size()) {
  if (layout.state_bytes.empty()) return;
  throw Error(ErrorKind::unsupported,
              "a compact memory keeps rows only, and some layers of this model keep a state; "
              "choose another memory");
}

std::span<const Position> CompactMemory::begin(const Context& context, const MemoryGroup& group) {
  const int64_t first = token_count(), before = frames_.visual_tokens();
  const auto positions = newest_->begin(context, group);
  group_ = first;
  frames_.update(*this, first, first + static_cast<int64_t>(group.tokens.size()));
  visual_ = frames_.visual_tokens() > before;
  goes_on_ = !visual_ && (group.tokens.size() == 1 || !group.parents.empty());
  return positions;
}

QueryView CompactMemory::queries() const {
  QueryView queries = newest_->queries();
  group_ordinals_.assign(queries.ordinals.begin(), queries.ordinals.end());
  for (int32_t& ordinal : group_ordinals_) ordinal += static_cast<int32_t>(folded());
  queries.ordinals = group_ordinals_;
  return queries;
}

void CompactMemory::read(const Context& context, int layer, const QueryView&,
                         std::vector<RowSet>& out) {
  if (const auto& kept = kept_[static_cast<size_t>(layer)]; kept != nullptr && kept->rows() > 0) {
    out.push_back(
        {kept->keys.view(), kept->values.view(), kept->ordinals, kept->modalities, kept->times});
  }
  std::vector<RowSet> sets;
  newest_->read(context, layer, newest_->queries(), sets);
  std::vector<int32_t>& ordinals = newest_ordinals_[static_cast<size_t>(layer)];
  for (RowSet& set : sets) {  // one: nobody forks it
    ordinals.assign(set.ordinals.begin(), set.ordinals.end());
    for (int32_t& ordinal : ordinals) ordinal += static_cast<int32_t>(folded());
    set.ordinals = ordinals;
    out.push_back(set);
  }
}

void CompactMemory::after(const Context& context, int layer, const QueryView& queries) {
  QueryView inner = newest_->queries();
  inner.queries = queries.queries;
  newest_->after(context, layer, inner);
  if (!goes_on_) learn_generic(context, layer, queries);
  if (!visual_ || layer + 1 < layout_.layers) return;
  const auto text = static_cast<int64_t>(frames_.text().size());
  for (int any = 0; any < layout_.layers; ++any) {
    if (row_count(any) - text > options_.rows) return fold(context);
  }
}

void CompactMemory::learn_generic(const Context& context, int layer, const QueryView& queries) {
  Generic& generic = generic_[static_cast<size_t>(layer)];
  if (generic.tokens.size() >= generic_tokens || queries.queries.raw() == nullptr) return;
  std::vector<float> plain;
  const auto width = static_cast<size_t>(queries.queries.size(1) * queries.queries.size(2));
  for (size_t i = 0; i < queries.modalities.size(); ++i) {
    if (queries.modalities[i] != Modality::text) continue;
    if (plain.empty()) plain = plain_queries(context, *this, queries);
    if (generic.tokens.size() >= generic_tokens) break;
    generic.tokens.push_back(queries.ordinals[i]);
    const auto from = plain.begin() + static_cast<int64_t>(i * width);
    generic.queries.insert(generic.queries.end(), from, from + static_cast<int64_t>(width));
  }
}

// All rows of a layer, those of newer groups behind those that were kept.
std::shared_ptr<const CompactMemory::Kept> CompactMemory::join(const Context& context, int layer,
                                                               const Saved& from) const {
  std::vector<RowSet> sets;
  from.newest->read(context, layer, from.newest->queries(), sets);
  const std::shared_ptr<const Kept>& old = from.kept[static_cast<size_t>(layer)];
  auto joined = old == nullptr ? std::make_shared<Kept>() : std::make_shared<Kept>(*old);
  const int64_t count = from.mark.rows[static_cast<size_t>(layer)];
  if (count == 0) return joined;
  const RowSet& fresh = sets.front();
  const int64_t before = joined->rows();
  const Shape shape = layout_.shape(before + count);
  const auto together = [&](const Tensor& first, ConstTensorView second) {
    Tensor out(layout_.dtype, shape, device_);
    if (first.defined()) {
      copy_bytes(out.view().raw(), device_, first.view().raw(), device_,
                 static_cast<size_t>(first.bytes()));
    }
    const TensorView rest = out.view().rows(before, count);
    copy_bytes(rest.raw(), device_, second.raw(), device_, static_cast<size_t>(rest.bytes()));
    return out;
  };
  joined->keys = together(joined->keys, fresh.keys);
  joined->values = together(joined->values, fresh.values);
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    joined->ordinals.push_back(fresh.ordinals[i] + static_cast<int32_t>(from.folded));
    joined->modalities.push_back(fresh.modalities[i]);
    joined->times.push_back(fresh.times[i]);
    joined->positions.push_back(token(joined->ordinals.back()).position);
  }
  return joined;
}

// Of every row: how new it is, e^(−rows after it / budget), and the attention of the generic
// question, which stands right behind the newest token, as a share of the largest; mixed.
std::vector<double> CompactMemory::score(const Context& context, int layer, const Kept& all) const {
  const auto count = static_cast<size_t>(all.rows());
  const double recency =
      options_.by == KeepBy::attention ? 0 : recency_share(layer, layout_.layers);
  const Generic& generic = generic_[static_cast<size_t>(layer)];
  std::vector<double> attention(count);
  if (recency < 1 && !generic.tokens.empty()) {
    const auto asked = static_cast<int64_t>(generic.tokens.size());
    const int64_t size = layout_.head_size;
    const int64_t heads = static_cast<int64_t>(generic.queries.size()) / asked / size;
    Tensor turned(DType::f32, {asked, heads, size}, device_);
    copy_bytes(turned.view().raw(), device_, generic.queries.data(), Device::cpu(),
               generic.queries.size() * sizeof(float));
    const int32_t next = token(token_count() - 1).position[0] + 1;
    const std::vector<Position> places(static_cast<size_t>(asked), {next, next, next});
    turn_by(context, layout_, places, turned);
    Tensor room;
    const ConstTensorView rows = plain_rows(context, all.keys, room);
    const int64_t width = layout_.kv_heads * size;
    const ConstTensorView keys(rows.raw(), rows.dtype(), Shape{all.rows(), width}, rows.device());
    Tensor wide;  // a CPU adds up floats
    if (device_.is_cpu() && keys.dtype() != DType::f32) {
      wide = Tensor(DType::f32, keys.shape());
      convert(context, keys, wide);
    }
    std::vector<float> logs(count);
    for (size_t row = 0; row < count; ++row) {
      if (all.modalities[row] == Modality::text) logs[row] = -INFINITY;
    }
    attention = attention_mass(context, turned, wide.defined() ? wide.view() : keys,
                               layout_.kv_heads, logs);
    const double most = *std::max_element(attention.begin(), attention.end());
    for (double& share : attention) share /= most;
  }
  std::vector<double> mixed(count);
  for (size_t row = 0; row < count; ++row) {
    const double age = static_cast<double>(count - 1 - row) / static_cast<double>(options_.rows);
    const double share = generic.tokens.empty() ? 1 : recency;
    mixed[row] = share * std::exp(-age) + (1 - share) * attention[row];
  }
  return mixed;
}

std::shared_ptr<const CompactMemory::Kept> CompactMemory::reduce(const Context& context, int layer,
                                                                 const Kept& all) const {
  std::vector<int32_t> rows, frames;
  for (size_t row = 0; row < all.ordinals.size(); ++row) {
    (all.modalities[row] == Modality::text ? rows : frames).push_back(static_cast<int32_t>(row));
  }
  if (static_cast<int64_t>(frames.size()) > options_.rows) {
    const std::vector<double> scores = score(context, layer, all);
    const auto better = [&](int32_t a, int32_t b) {
      const double x = scores[static_cast<size_t>(a)], y = scores[static_cast<size_t>(b)];
      return x > y || (x == y && a < b);
    };
    std::nth_element(frames.begin(), frames.begin() + options_.rows, frames.end(), better);
    frames.resize(static_cast<size_t>(options_.rows));
  }
  rows.insert(rows.end(), frames.begin(), frames.end());
  std::sort(rows.begin(), rows.end());
  auto kept = std::make_shared<Kept>();
  for (const int32_t row : rows) {
    const auto from = static_cast<size_t>(row);
    kept->ordinals.push_back(all.ordinals[from]);
    kept->modalities.push_back(all.modalities[from]);
    kept->times.push_back(all.times[from]);
    kept->positions.push_back(all.positions[from]);
  }
  const Shape shape = layout_.shape(kept->rows());
  kept->keys = Tensor(layout_.dtype, shape, device_);
  kept->values = Tensor(layout_.dtype, shape, device_);
  copy_row_pairs(context, all.keys, all.values, rows, kept->keys, kept->values);
  if (options_.positions == Placing::consecutive) {
    const auto next = static_cast<int32_t>(token_count());
    const std::vector<Position> placed = near_positions(*this, frames_, kept->ordinals, next);
    std::vector<Position> moves(placed.size());
    for (size_t i = 0; i < placed.size(); ++i) {
      for (size_t axis = 0; axis < 3; ++axis) {
        moves[i][axis] = placed[i][axis] - kept->positions[i][axis];
      }
    }
    turn_by(context, layout_, moves, kept->keys);
    kept->positions = placed;
  }
  return kept;
}

void CompactMemory::fold(const Context& context) {
  const Saved now{newest_, newest_->mark(), kept_, folded()};
  AllKept kept(kept_.size());
  for (int layer = 0; layer < layout_.layers; ++layer) {
    kept[static_cast<size_t>(layer)] = reduce(context, layer, *join(context, layer, now));
  }
  auto empty = std::make_shared<FlatMemory>(layout_, device_, retention_);
  const int64_t count = newest_->token_count();
  for (int64_t i = 0; i < count; ++i) tokens_.append({&newest_->token(i), 1});
  kept_ = std::move(kept);
  newest_ = std::move(empty);
}

TensorView CompactMemory::state(int layer, int32_t node) { return newest_->state(layer, node); }

void CompactMemory::accept(const Context& context, std::span<const int32_t> tokens) {
  newest_->accept(context, tokens);
  frames_.update(*this, group_, token_count());
}

MemoryMark CompactMemory::mark() const {
  auto saved = std::make_shared<Saved>(Saved{newest_, newest_->mark(), kept_, folded()});
  MemoryMark mark{token_count(), {}, nullptr};
  for (int layer = 0; layer < layout_.layers; ++layer) mark.rows.push_back(row_count(layer));
  mark.more = std::move(saved);
  return mark;
}

const CompactMemory::Saved& CompactMemory::saved_of(const MemoryMark& mark) {
  if (mark.more == nullptr) throw Error(ErrorKind::internal, "a mark of another memory");
  return *static_cast<const Saved*>(mark.more.get());
}

void CompactMemory::rewind(const MemoryMark& mark) {
  const Saved& saved = saved_of(mark);
  if (mark.rows.size() != kept_.size() || mark.tokens > token_count()) {
    throw Error(ErrorKind::internal, "a mark of another session, or of a moment already undone");
  }
  newest_ = saved.newest;
  newest_->rewind(saved.mark);
  kept_ = saved.kept;
  tokens_.truncate(static_cast<size_t>(saved.folded));
  frames_.update(*this, mark.tokens, mark.tokens);
  forget_generic(mark.tokens);
  visual_ = goes_on_ = false;
  group_ = mark.tokens;
}

void CompactMemory::forget_generic(int64_t tokens) {
  for (Generic& generic : generic_) {
    const auto past = std::lower_bound(generic.tokens.begin(), generic.tokens.end(), tokens);
    const auto left = static_cast<size_t>(past - generic.tokens.begin());
    if (left == generic.tokens.size()) continue;
    generic.queries.resize(generic.queries.size() / generic.tokens.size() * left);
    generic.tokens.resize(left);
  }
}

// What a fork begins with is a bounded number of rows, and is copied.
std::unique_ptr<Memory> CompactMemory::fork(const MemoryMark& mark) {
  const Saved& saved = saved_of(mark);
  if (mark.rows.size() != kept_.size() || mark.tokens > token_count()) {
    throw Error(ErrorKind::internal, "a mark of another session, or of a moment already undone");
  }
  auto other = std::make_unique<CompactMemory>(layout_, device_, retention_, options_);
  const ThreadPool threads(1);
  const Context context(threads, device_);
  for (int layer = 0; layer < layout_.layers; ++layer) {
    other->kept_[static_cast<size_t>(layer)] = join(context, layer, saved);
  }
  other->tokens_ = tokens_.share();
  other->tokens_.truncate(static_cast<size_t>(std::min(folded(), mark.tokens)));
  for (int64_t i = folded(); i < mark.tokens; ++i) other->tokens_.append({&token(i), 1});
  other->frames_ = frames_;
  other->frames_.update(*other, mark.tokens, mark.tokens);
  other->generic_ = generic_;
  other->forget_generic(mark.tokens);
  other->group_ = mark.tokens;
  return other;
}

int64_t CompactMemory::row_count(int layer) const {
  const auto& kept = kept_[static_cast<size_t>(layer)];
  return newest_->row_count(layer) + (kept == nullptr ? 0 : kept->rows());
}

MemoryBytes CompactMemory::bytes() const {
  MemoryBytes bytes = newest_->bytes();
  int64_t& here = device_.is_cpu() ? bytes.host : bytes.device;
  for (const auto& kept : kept_) {
    if (kept != nullptr && kept->rows() > 0) here += kept->keys.bytes() + kept->values.bytes();
  }
  return bytes;
}

MemoryPolicy compact_policy() {
  Settings<CompactOptions> settings;
  settings.count("rows", &CompactOptions::rows, {1}, "rows of frames that stay in each layer")
      .bare();
  const std::vector<std::pair<std::string, Placing>> words{{"original", Placing::original},
                                                           {"consecutive", Placing::consecutive}};
  settings.choice("positions", &CompactOptions::positions, words,
                  "where rows that stay stand: where they were, or right before what comes next");
  const std::vector<std::pair<std::string, KeepBy>> ways{{"depth", KeepBy::depth},
                                                         {"attention", KeepBy::attention}};
  settings.choice("by", &CompactOptions::by, ways,
                  "what keeps a row: being new in shallow layers and the attention of a generic "
                  "question in deep ones, or that attention in all");
  MemoryPolicy policy;
  policy.info = {"compact",
                 "a fixed number of rows stays: the newest, and what a generic question looks at",
                 settings.info()};
  policy.make = [settings](std::span<const GivenSetting> given, const MemoryOptions& options) {
    return std::make_unique<CompactMemory>(options.layout, options.device, options.retention,
                                           settings.read(given));
  };
  return policy;
}

}  // namespace kinora

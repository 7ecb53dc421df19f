#include "memory/partial/partial_memory.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/gpu.h"

namespace kinora {
namespace {

// Layers that do without reading ahead after one for which it was in vain.
constexpr int ahead_rest = 8;

// Rows [begin, end) of a set.
RowSet part_of(const RowSet& set, int64_t begin, int64_t end) {
  RowSet part = set;
  const auto first = static_cast<size_t>(begin), count = static_cast<size_t>(end - begin);
  part.keys = set.keys.rows(begin, end - begin);
  part.values = set.values.rows(begin, end - begin);
  part.ordinals = set.ordinals.subspan(first, count);
  part.modalities = set.modalities.subspan(first, count);
  if (!set.times.empty()) part.times = set.times.subspan(first, count);
  return part;
}

Tensor joined(const Tensor& first, const Tensor& second) {
  Tensor out(first.dtype(), Shape{first.size(0) + second.size(0), first.size(1), first.size(2)},
             first.device());
  const auto copy = [&](int64_t row, const Tensor& from) {
    if (from.size(0) == 0) return;
    copy_bytes(out.view().rows(row, from.size(0)).raw(), out.device(), from.view().raw(),
               from.device(), static_cast<size_t>(from.bytes()));
  };
  copy(0, first);
  copy(first.size(0), second);
  return out;
}

// Pageable memory is read before the call returns.
Tensor placed(const Context& context, std::span<const float> values, const Shape& shape) {
  Tensor out(DType::f32, shape, context.device);
  if (context.device.is_cpu()) {
    std::copy(values.begin(), values.end(), out.data<float>());
  } else {
    copy_async(context, out.view().raw(), values.data(), values.size_bytes());
  }
  return out;
}

}  // namespace

void add_rows(Settings<PartialOptions>& settings) {
  settings
      .count("rows", &PartialOptions::rows, {1},
             "rows of frames that a question reads in each layer")
      .bare();
}

void add_window(Settings<PartialOptions>& settings) {
  settings.count_or("window", &PartialOptions::window, {1}, {"all", 0},
                    "rows of earlier frames that new frames read");
}

void add_tiers(Settings<PartialOptions>& settings) {
  settings
      .count_or(
          "gpu", [](auto& options) -> auto& { return options.tiers.gpu; }, {1}, {"all", 0},
          "rows of each layer that stay on a GPU; older ones wait in the computer's memory")
      .count_or(
          "host", [](auto& options) -> auto& { return options.tiers.host; }, {1}, {"all", 0},
          "rows of each layer that stay in memory; older ones wait in a file until a "
          "question needs them");
}

std::unique_ptr<Memory> rows_of(const MemoryOptions& options, const PartialOptions& reading) {
  RowTiers tiers = reading.tiers;
  // Rows that may not stay in the computer's memory have to leave the GPU first. What new frames
  // read in every layer, and what a question may read whole, stays on it.
  if (tiers.host > 0 && tiers.gpu == 0) tiers.gpu = tiers.host;
  if (tiers.gpu > 0) tiers.gpu = std::max({tiers.gpu, 2 * reading.window, 2 * reading.rows});
  return std::make_unique<FlatMemory>(options.layout, options.device, options.retention, tiers);
}

void add_positions(Settings<PartialOptions>& settings) {
  const std::vector<std::pair<std::string, Placing>> words{{"original", Placing::original},
                                                           {"consecutive", Placing::consecutive}};
  settings.choice("positions", &PartialOptions::positions, words,
                  "where rows that are read stand: where they were, or right before their reader");
}

std::vector<int32_t> newest_rows(const StoredRows& rows, int64_t most) {
  const auto frames = rows.frames().frames_before(rows.first_token());
  std::vector<int32_t> chosen;
  for (auto frame = frames.rbegin(); frame != frames.rend() && most > 0; ++frame) {
    const auto [begin, end] = rows.rows_of(*frame);
    const int64_t count = std::min(end - begin, most);
    if (count < end - begin && !chosen.empty()) break;
    for (int64_t row = end; row-- > end - count;) chosen.push_back(static_cast<int32_t>(row));
    most -= count;
  }
  std::reverse(chosen.begin(), chosen.end());
  return chosen;
}

void PartialMemory::Fetched::Part::describe(std::vector<int32_t> tokens,
                                            std::span<const TokenInfo> known) {
  ordinals = std::move(tokens);
  modalities.reserve(ordinals.size());
  times.reserve(ordinals.size());
  for (const TokenInfo& token : known) {
    modalities.push_back(token.modality);
    times.push_back(static_cast<float>(token.time));
  }
}

RowSet PartialMemory::Fetched::Part::view() const {
  RowSet set{keys.view(), values.view(), ordinals, modalities, times};
  if (weights.defined()) set.weights = weights.view();
  return set;
}

int64_t PartialMemory::Fetched::Part::bytes() const {
  return ordinals.empty() ? 0 : keys.bytes() + values.bytes();
}

PartialMemory::PartialMemory(std::unique_ptr<Memory> all, std::unique_ptr<RowChooser> chooser,
                             const PartialOptions& options)
    : all_(std::move(all)),
      chooser_(std::move(chooser)),
      options_(options),
      question_(static_cast<size_t>(all_->layout().layers)),
      reading_(question_.size()) {}

bool PartialMemory::known_ahead() const {
  if (!all_->known_ahead()) return false;
  if (visual_) return !chooser_->learns();
  return fits_ || continues_ || !chooser_->needs_queries();
}

std::span<const Position> PartialMemory::begin(const Context& context, const MemoryGroup& group) {
  const int64_t first = all_->token_count();
  const auto positions = all_->begin(context, group);
  first_ = first;
  const int64_t frames_before = frames_.visual_tokens();
  frames_.update(*all_, first, first + static_cast<int64_t>(group.tokens.size()));
  visual_ = frames_.visual_tokens() > frames_before;
  const int64_t most = !visual_              ? options_.rows
                       : options_.window > 0 ? options_.window
                                             : frames_before;
  fits_ = frames_before <= most;
  everything_ = fits_ && all_->all_here();
  // One token, or a tree of drafted ones, goes on with an answer.
  const bool goes_on = !visual_ && (group.tokens.size() == 1 || !group.parents.empty());
  continues_ = goes_on && std::all_of(question_.begin(), question_.end(),
                                      [](const auto& copies) { return copies != nullptr; });
  if (!continues_) std::fill(question_.begin(), question_.end(), nullptr);
  chooser_->begin(context, group, frames_, first);
  return positions;
}

void PartialMemory::read(const Context& context, int layer, const QueryView& queries,
                         std::vector<RowSet>& out) {
  std::vector<RowSet> sets;
  all_->read(context, layer, queries, sets);
  auto& reading = reading_[static_cast<size_t>(layer)];
  auto& question = question_[static_cast<size_t>(layer)];
  if (everything_) {
    reading = nullptr;
    const RowRange all{0, all_->row_count(layer)};
    all_->fetch(context, layer, {&all, 1});
    out.insert(out.end(), sets.begin(), sets.end());
    return;
  }
  const StoredRows rows(*all_, layer, frames_, std::move(sets), static_cast<int32_t>(first_));
  if (continues_) {
    reading = question;
  } else if (fits_) {
    reading = fetch(context, rows, {newest_rows(rows, rows.count()), {}});
    if (!visual_) question = reading;
  } else if (visual_) {
    reading = fetch(context, rows, {newest_rows(rows, options_.window), {}});
  } else {
    const FetchCounts before = all_->fetched();
    reading = fetch(context, rows, chooser_->choose(context, layer, rows, queries));
    question = reading;
    judge_reading_ahead(layer, before);
    read_ahead(context, layer + 1);
  }
  // Since the question there may have been forks, each of which begins a new set.
  const size_t last = rows.sets().size() - 1;
  if (rows.begin_of_set(last) > reading->end) {
    reading = extend(context, rows, *reading);
    if (!visual_) question = reading;
  }
  if (!reading->rows.ordinals.empty()) out.push_back(reading->rows.view());
  if (!reading->stand_ins.ordinals.empty()) out.push_back(reading->stand_ins.view());
  const RowSet& own = rows.sets()[last];
  out.push_back(part_of(own, reading->end - rows.begin_of_set(last), own.count()));
}

// Where less than half of what a layer needed had been read ahead, the disk was kept from what was
// needed instead: the next few layers do without.
void PartialMemory::judge_reading_ahead(int layer, const FetchCounts& before) {
  if (ahead_layer_ != layer) {
    ahead_rest_ = std::max(0, ahead_rest_ - 1);
    return;
  }
  const FetchCounts now = all_->fetched();
  const int64_t late = now.late - before.late, wanted = now.wanted - before.wanted;
  ahead_rest_ = 2 * late > wanted ? ahead_rest : 0;
}

// What a layer's queries look for, the next layer's will probably look for too.
void PartialMemory::read_ahead(const Context& context, int layer) {
  if (!options_.ahead || layer >= layout().layers || ahead_rest_ > 0) return;
  if (all_->bytes().disk == 0) return;
  ahead_layer_ = layer;
  std::vector<RowSet> sets;
  all_->read(context, layer, {}, sets);
  const StoredRows rows(*all_, layer, frames_, std::move(sets), static_cast<int32_t>(first_));
  const std::vector<int32_t> likely = chooser_->likely(context, layer, rows);
  all_->fetch_ahead(context, layer, ranges_of(likely));
}

std::shared_ptr<const PartialMemory::Fetched> PartialMemory::fetch(const Context& context,
                                                                   const StoredRows& rows,
                                                                   const FrameRows& frames) const {
  auto out = std::make_shared<Fetched>();
  out->end = rows.count();
  std::vector<int32_t> text, chosen;
  for (const int32_t token : frames_.text()) {
    if (token >= rows.first_token()) break;
    text.push_back(static_cast<int32_t>(rows.row_of(token)));
  }
  chosen.reserve(text.size() + frames.rows.size());
  std::set_union(text.begin(), text.end(), frames.rows.begin(), frames.rows.end(),
                 std::back_inserter(chosen));
  if (!chosen.empty()) rows.copy(context, chosen, out->rows.keys, out->rows.values);
  std::vector<int32_t> tokens = rows.ordinals(chosen);

  const StandIns stand_ins = frames.stand_ins ? frames.stand_ins() : StandIns();
  std::vector<int32_t> all;
  all.reserve(tokens.size() + stand_ins.tokens.size());
  std::merge(tokens.begin(), tokens.end(), stand_ins.tokens.begin(), stand_ins.tokens.end(),
             std::back_inserter(all));
  const std::vector<TokenInfo> known = look_up(*context.threads, *all_, all);
  std::vector<Position> positions;
  if (options_.positions == Placing::consecutive) {
    positions = near_positions(*all_, frames_, all, known, rows.first_token());
  } else {
    positions.reserve(all.size());
    for (const TokenInfo& token : known) positions.push_back(token.position);
  }
  std::vector<Position> moves, places;
  std::vector<TokenInfo> of_rows, of_stand_ins;
  moves.reserve(tokens.size());
  of_rows.reserve(tokens.size());
  int32_t moved = 0;
  for (size_t i = 0, next = 0; i < all.size(); ++i) {
    const Position& to = positions[i];
    if (next < stand_ins.tokens.size() && stand_ins.tokens[next] == all[i]) {
      places.push_back(to);
      of_stand_ins.push_back(known[i]);
      ++next;
      continue;
    }
    const Position& old = known[i].position;
    moves.push_back({to[0] - old[0], to[1] - old[1], to[2] - old[2]});
    moved |= moves.back()[0] | moves.back()[1] | moves.back()[2];
    of_rows.push_back(known[i]);
  }
  if (moved != 0) turn_by(context, layout(), moves, out->rows.keys);
  out->rows.describe(std::move(tokens), of_rows);
  if (stand_ins.tokens.empty()) return out;

  const auto count = static_cast<int64_t>(stand_ins.tokens.size());
  const auto stored = [&](const Tensor& wide) {
    Tensor narrow(layout().dtype, layout().shape(count), device());
    store_rows(context, wide, narrow);
    return narrow;
  };
  Tensor keys = stand_ins.keys;
  turn_by(context, layout(), places, keys);
  out->stand_ins.keys = stored(keys);
  out->stand_ins.values = stored(stand_ins.values);
  out->stand_ins.weights = placed(context, stand_ins.weights, Shape{count});
  out->stand_ins.describe(stand_ins.tokens, of_stand_ins);
  return out;
}

std::shared_ptr<const PartialMemory::Fetched> PartialMemory::extend(const Context& context,
                                                                    const StoredRows& rows,
                                                                    const Fetched& old) const {
  auto out = std::make_shared<Fetched>(old);
  out->end = rows.begin_of_set(rows.sets().size() - 1);
  std::vector<int32_t> more(static_cast<size_t>(out->end - old.end));
  std::iota(more.begin(), more.end(), static_cast<int32_t>(old.end));
  Tensor keys, values;
  rows.copy(context, more, keys, values);
  Fetched::Part& part = out->rows;
  part.keys = part.keys.defined() ? joined(part.keys, keys) : keys;
  part.values = part.values.defined() ? joined(part.values, values) : values;
  std::vector<int32_t> tokens = std::move(part.ordinals);
  for (const int32_t row : more) tokens.push_back(rows.ordinal(row));
  part.modalities.clear();
  part.times.clear();
  const std::vector<TokenInfo> known = look_up(*context.threads, *all_, tokens);
  part.describe(std::move(tokens), known);
  return out;
}

void PartialMemory::after(const Context& context, int layer, const QueryView& queries) {
  all_->after(context, layer, queries);
  if (!visual_ || !chooser_->learns()) return;
  std::vector<RowSet> sets;
  all_->read(context, layer, queries, sets);
  const auto end = static_cast<int32_t>(all_->token_count());
  chooser_->learn(context, layer, StoredRows(*all_, layer, frames_, std::move(sets), end));
}

void PartialMemory::accept(const Context& context, std::span<const int32_t> tokens) {
  all_->accept(context, tokens);
  frames_.update(*all_, first_, all_->token_count());
}

MemoryMark PartialMemory::mark() const {
  MemoryMark mark = all_->mark();
  auto saved = std::make_shared<Saved>();
  saved->all = std::move(mark.more);
  saved->chooser = chooser_->save();
  saved->question = question_;
  mark.more = std::move(saved);
  return mark;
}

const PartialMemory::Saved& PartialMemory::saved_of(const MemoryMark& mark) {
  if (mark.more == nullptr) throw Error(ErrorKind::internal, "a mark of another memory");
  return *static_cast<const Saved*>(mark.more.get());
}

MemoryMark PartialMemory::inner_mark(const MemoryMark& mark) {
  return {mark.tokens, mark.rows, saved_of(mark).all};
}

void PartialMemory::restore(const MemoryMark& mark) {
  const Saved& saved = saved_of(mark);
  frames_.update(*all_, mark.tokens, mark.tokens);
  chooser_->restore(saved.chooser, mark.tokens);
  question_ = saved.question;
  reading_.assign(reading_.size(), nullptr);
  first_ = mark.tokens;
  visual_ = false;
  fits_ = true;
  everything_ = true;
  continues_ = false;
}

void PartialMemory::rewind(const MemoryMark& mark) {
  all_->rewind(inner_mark(mark));
  restore(mark);
}

std::unique_ptr<Memory> PartialMemory::fork(const MemoryMark& mark) {
  auto other =
      std::make_unique<PartialMemory>(all_->fork(inner_mark(mark)), chooser_->clone(), options_);
  other->frames_ = frames_;
  other->restore(mark);
  return other;
}

// What a question under way was given is not written: a session saves before the first one.
void PartialMemory::save(const MemoryMark& mark, ArchiveWriter& out, const RowGroups&) const {
  all_->save(inner_mark(mark), out, chooser_->groups(saved_of(mark).chooser));
  chooser_->write(saved_of(mark).chooser, mark.tokens, out);
}

// Questions read few of the rows, so that the others may stay where they are.
void PartialMemory::load(const Context& context, const std::shared_ptr<const Archive>& in,
                         Loading) {
  all_->load(context, in, Loading::lazily);
  frames_.update(*all_, 0, all_->token_count());
  chooser_->read(context, *in, frames_);
  first_ = all_->token_count();
}

MemoryBytes PartialMemory::bytes() const {
  MemoryBytes bytes = all_->bytes();
  int64_t& here = device().is_cpu() ? bytes.host : bytes.device;
  for (const auto& copies : question_) {
    if (copies != nullptr) here += copies->rows.bytes() + copies->stand_ins.bytes();
  }
  const MemoryBytes known = chooser_->bytes();
  bytes.host += known.host;
  bytes.device += known.device;
  return bytes;
}

}  // namespace kinora

#include "generate/pruned.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "generate/policies.h"
#include "memory/row_ops/move_rows.h"
#include "model/model.h"

namespace kinora {
namespace {

// Layers alike in what they look at follow each other: the attention of one in four is added up.
constexpr int watched_every = 4;

}  // namespace

std::vector<int32_t> choose_draft_rows(int64_t rows, std::span<const float> mass, int64_t count) {
  std::vector<int32_t> order(static_cast<size_t>(rows));
  std::iota(order.begin(), order.end(), 0);
  const int64_t best = mass.empty() ? 0 : (count + 1) / 2;
  std::nth_element(order.begin(), order.begin() + best, order.end(), [&](int32_t a, int32_t b) {
    if (mass.empty()) return a < b;
    const float left = mass[static_cast<size_t>(a)], right = mass[static_cast<size_t>(b)];
    return left != right ? left > right : a < b;
  });
  std::vector<bool> looked_at(order.size());
  for (int64_t i = 0; i < best; ++i) looked_at[static_cast<size_t>(order[i])] = true;
  std::vector<int32_t> chosen;
  const int64_t rest = rows - best, even = count - best;
  int64_t place = 0, taken = 0;  // among the rest
  for (size_t row = 0; row < order.size(); ++row) {
    const bool stays =
        looked_at[row] || (taken < even && place == (2 * taken + 1) * rest / (2 * even));
    if (stays) chosen.push_back(static_cast<int32_t>(row));
    if (looked_at[row]) continue;
    ++place;
    taken += stays;
  }
  return chosen;
}

void PrunedDrafter::start(const DraftTarget& target) {
  if (!target.memory.layout().state_bytes.empty()) {
    throw Error(ErrorKind::unsupported,
                "a draft over pruned rows needs a model all of whose layers keep rows; choose "
                "another draft");
  }
  target_.emplace(target);
  if (!pace_) pace_.emplace(options_.shape, options_.adapt, target.context.device, 1.0);
  mass_ = nullptr;
  looked_at_.clear();
  memory_ = nullptr;
  copied_ = 0;
}

// By the bytes that a pass reads. Rows that the model's memory has and does not read are counted
// too: what a pass really takes is then measured.
bool PrunedDrafter::could_pay(int64_t text) const {
  const Memory& memory = target_->memory;
  const ModelInfo& info = target_->model.info();
  double weights = static_cast<double>(info.weight_bytes);
  if (info.parameters > 0) {
    weights *= static_cast<double>(info.decoder_parameters) / static_cast<double>(info.parameters);
  }
  double all = 0, kept = 0;
  for (int layer = 0; layer < memory.layout().layers; ++layer) {
    const int64_t rows = memory.row_count(layer), visual = std::max<int64_t>(0, rows - text);
    all += static_cast<double>(rows);
    kept += static_cast<double>(rows - visual) + options_.keep * static_cast<double>(visual);
  }
  const auto bytes = 2 * static_cast<double>(memory.layout().row_bytes());
  if (weights + all == 0) return false;
  return pace_->costs().could_pay(options_.shape.depth + 1,
                                  (weights + kept * bytes) / (weights + all * bytes));
}

// Whether it is known which rows to keep.
bool PrunedDrafter::has_chosen() const {
  return options_.by == DraftRows::even || target_->mass != nullptr || mass_ != nullptr ||
         memory_ != nullptr;
}

RowMass* PrunedDrafter::mass() {
  if (has_chosen() || !pays_ || !pace_->wanted()) return nullptr;
  std::vector<LayerHeads> layers;
  const int count = target_->memory.layout().layers;
  for (int layer = std::min(watched_every / 2, count - 1); layer < count; layer += watched_every) {
    layers.push_back({layer});
  }
  mass_ = std::make_unique<RowMass>(target_->context.device, std::move(layers),
                                    target_->model.info().heads);
  return mass_.get();
}

// Rows that summarise others, with weights, are left out: no plain memory can hold them. Layers
// mostly have rows of the same tokens; `like` is another one.
PrunedDrafter::LayerRows PrunedDrafter::rows_to_copy(int layer, const LayerRows* like) const {
  LayerRows rows;
  target_->memory.read(target_->context, layer, target_->memory.queries(), rows.sets);
  std::erase_if(rows.sets, [](const RowSet& set) { return set.weighted(); });
  for (const RowSet& set : rows.sets) {
    if (set.listed() || set.keys.dtype() != target_->memory.layout().dtype) {
      throw Error(
          ErrorKind::unsupported,
          "rows of this memory cannot be copied for a draft; choose another memory or draft");
    }
  }
  const auto first_new = [&](const RowSet& set) {
    const auto& all = set.ordinals;
    return static_cast<size_t>(std::lower_bound(all.begin(), all.end(), copied_) - all.begin());
  };
  const auto same = [&](const RowSet& a, const RowSet& b) {
    return a.ordinals.size() == b.ordinals.size() &&
           std::ranges::equal(a.ordinals.subspan(first_new(a)), b.ordinals.subspan(first_new(b)));
  };
  if (like != nullptr && std::ranges::equal(rows.sets, like->sets, same)) {
    rows.places = like->places;
    rows.count = like->count;
    return rows;
  }
  std::vector<float> mass;  // of the visual rows
  int64_t visual = 0;
  for (const RowSet& set : rows.sets) {
    for (size_t i = first_new(set); i < set.ordinals.size(); ++i) {
      if (set.modalities[i] == Modality::text) continue;
      ++visual;
      if (looked_at_.empty()) continue;
      const auto token = static_cast<size_t>(set.ordinals[i]);
      mass.push_back(token < looked_at_.size() ? looked_at_[token] : 0);
    }
  }
  const int64_t kept =
      std::clamp<int64_t>(std::llround(options_.keep * static_cast<double>(visual)),
                          std::min<int64_t>(1, visual), visual);
  const std::vector<int32_t> chosen = choose_draft_rows(visual, mass, kept);
  auto next = chosen.begin();
  int32_t place = 0;  // among the visual rows
  for (const RowSet& set : rows.sets) {
    std::vector<int32_t>& places = rows.places.emplace_back();
    for (size_t i = first_new(set); i < set.ordinals.size(); ++i) {
      if (set.modalities[i] != Modality::text) {
        const bool stays = next != chosen.end() && *next == place;
        ++place;
        if (!stays) continue;
        ++next;
      }
      places.push_back(static_cast<int32_t>(i));
    }
    rows.count += std::ssize(places);
  }
  return rows;
}

// Copies what the model has read since the last time. Every copied row stands before whatever is
// drafted and has been turned by its position, so that nobody asks which token it was.
void PrunedDrafter::catch_up() {
  const Context& context = target_->context;
  const int64_t tokens = target_->memory.token_count();
  if (memory_ == nullptr) {
    const RowMass* mass = target_->mass != nullptr ? target_->mass : mass_.get();
    if (options_.by == DraftRows::attention && mass != nullptr) looked_at_ = mass->values(context);
    mass_ = nullptr;
    memory_ = std::make_unique<FlatMemory>(target_->memory.layout(), context.device);
  }
  if (copied_ == tokens) return;
  std::vector<LayerRows> layers;
  int64_t most = 0;
  for (int layer = 0; layer < memory_->layout().layers; ++layer) {
    layers.push_back(rows_to_copy(layer, layers.empty() ? nullptr : &layers.back()));
    most = std::max(most, layers.back().count);
  }
  const std::vector<TokenInfo> any(static_cast<size_t>(most));
  memory_->begin(context, {any});
  for (int layer = 0; layer < memory_->layout().layers; ++layer) {
    const LayerRows& from = layers[static_cast<size_t>(layer)];
    const NewRows to = memory_->append(layer);
    int64_t at = 0;
    for (size_t i = 0; i < from.sets.size(); ++i) {
      const int64_t count = std::ssize(from.places[i]);
      if (count == 0) continue;
      copy_row_pairs(context, from.sets[i].keys, from.sets[i].values, from.places[i],
                     to.keys.rows(at, count), to.values.rows(at, count));
      at += count;
    }
    if (at == most) continue;  // layers may keep different numbers of rows
    std::vector<int32_t> filled(static_cast<size_t>(at));
    std::iota(filled.begin(), filled.end(), 0);
    memory_->retain(layer, filled);
  }
  copied_ = tokens;
}

DraftPace::Level PrunedDrafter::run(Sequence& sequence, int64_t wanted) {
  sequence.memory = memory_.get();
  sequence.attention = &attention_;
  sequence.hidden_rows = wanted;
  const Forwarded result = target_->runner.forward(sequence);
  const Tensor logits = target_->model.decoder().logits(target_->context, result.hidden);
  return {likeliest(target_->context, logits, options_.shape.width), sequence.count(),
          result.usual};
}

// As in SparrowDrafter: a chain goes on from its own rows; where there are several leaves, those
// above them run along.
DraftPace::Level PrunedDrafter::run_level(const DraftTree& tree, std::span<const int32_t> leaves) {
  const int32_t depth = tree.nodes()[static_cast<size_t>(leaves[0])].depth;
  const bool chain = leaves.size() == 1 && chain_rows_ == depth - 1;
  if (!chain) {
    memory_->rewind(newest_);
    chain_rows_ = -1;
  }
  const std::vector<int32_t> nodes =
      chain ? std::vector<int32_t>(leaves.begin(), leaves.end()) : tree.with_ancestors(leaves);
  Sequence sequence;
  for (const int32_t place : nodes) {
    const DraftTree::Node& node = tree.nodes()[static_cast<size_t>(place)];
    sequence.ids.push_back(node.token);
    sequence.tokens.push_back(along_[static_cast<size_t>(node.depth)]);
  }
  if (!chain) sequence.parents = tree.parents_among(nodes);
  if (chain) ++chain_rows_;
  return run(sequence, std::ssize(leaves));
}

Draft PrunedDrafter::propose(std::span<const int32_t> text, int64_t most, int64_t deepest) {
  if (copied_ == 0) pays_ = !options_.adapt || could_pay(std::ssize(text));
  Draft draft;
  if (pace_->begin(pays_ && has_chosen() && target_->memory.known_ahead())) {
    catch_up();
    const MemoryMark before = memory_->mark();
    along_.clear();
    target_->positions.clone()->text(2 + options_.shape.depth, along_);
    Sequence newest;
    newest.ids = {text.back()};
    newest.tokens = {along_[0]};
    const DraftPace::Level first = pace_->timed([&] { return run(newest, 1); });
    newest_ = memory_->mark();
    chain_rows_ = 0;
    draft = pace_->grow(first.followers[0], most, deepest,
                        [&](const DraftTree& tree, std::span<const int32_t> leaves) {
                          return run_level(tree, leaves);
                        });
    memory_->rewind(before);
  }
  pace_->end();
  return draft;
}

void PrunedDrafter::learn(const CheckedDraft& checked) {
  pace_->learn(std::ssize(checked.right), checked.usual);
}

DraftPolicy pruned_policy() {
  Settings<PrunedOptions> settings;
  const std::vector<std::pair<std::string, DraftRows>> rules{{"attention", DraftRows::attention},
                                                             {"even", DraftRows::even}};
  settings
      .share("keep", &PrunedOptions::keep, "share of the visual rows that guesses are made from")
      .bare();
  settings.choice(
      "by", &PrunedOptions::by, rules,
      "which rows these are: half of them what is looked at most as the answer begins, the "
      "others evenly; or all evenly");
  add_pace_settings(settings);
  DraftPolicy policy;
  policy.info = {"pruned",
                 "guesses by the model itself, over all text and few rows of the video; needs no "
                 "weights",
                 settings.info()};
  policy.make = [settings](std::span<const GivenSetting> given) {
    return [options = settings.read(given)](const OpenDraft&) {
      return std::make_unique<PrunedDrafter>(options);
    };
  };
  return policy;
}

}  // namespace kinora

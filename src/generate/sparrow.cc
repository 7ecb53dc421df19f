#include "generate/sparrow.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/gpu.h"
#include "generate/policies.h"
#include "memory/flat_memory.h"
#include "ops/gather.h"

namespace kinora {
namespace {

constexpr int64_t chunk = 512;  // rows made at once, and states held at most
// Text is cut back to where a prompt ended, or by a few tokens of an answer.
constexpr size_t most_answer_ends = 64;

void copy_rows(const Context& context, ConstTensorView from, TensorView to) {
  const auto bytes = static_cast<size_t>(from.bytes());
  if (context.device.is_cpu()) {
    copy_bytes(to.raw(), to.device(), from.raw(), from.device(), bytes);
  } else {
    copy_async(context, to.raw(), from.raw(), bytes);
  }
}

void clear(const Context& context, TensorView rows) {
  const auto bytes = static_cast<size_t>(rows.bytes());
  context.device.is_cpu() ? void(std::memset(rows.raw(), 0, bytes))
                          : clear_async(context, rows.raw(), bytes);
}

Tensor rows_of(const Context& context, const Tensor& tensor, int64_t begin, int64_t count) {
  Tensor out(DType::f32, {count, tensor.size(1)}, tensor.device());
  copy_rows(context, tensor.view().rows(begin, count), out);
  return out;
}

TokenInfo text_at(Position position, int32_t further) {
  for (int32_t& axis : position) axis += further;
  TokenInfo token;
  token.position = position;
  return token;
}

}  // namespace

SparrowDrafter::SparrowDrafter(std::shared_ptr<const DraftModel> model,
                               const SparrowOptions& options)
    : context_(model->context()),
      model_(std::move(model)),
      options_(options),
      memory_(std::make_unique<FlatMemory>(model_->rows(), context_.device)),
      pace_(options.shape, options.adapt, context_.device, 0.2),
      least_(model_->feed().first_row ? 0 : 1),
      begin_(least_),
      node_states_(DType::f32,
                   {1 + options.shape.depth * options.shape.width, model_->hidden_size()},
                   context_.device) {
  if (const auto known = model_->known_pace(options.shape)) pace_.begin_with(*known);
}

SparrowDrafter::~SparrowDrafter() = default;

void SparrowDrafter::cut_rows(int64_t end) {
  const int64_t left = std::max<int64_t>(0, end - begin_);
  if (left < rows()) memory_->rewind({left, {left}, nullptr});
}

// Text tokens from `end` on are not what they were.
void SparrowDrafter::cut(int64_t end) {
  if (end < begin_) return start_at(end);
  cut_rows(end);
  const auto left = static_cast<size_t>(end - begin_);
  ids_.resize(std::min(ids_.size(), left));
  positions_.resize(std::min(positions_.size(), left));
  while (!pieces_.empty() && pieces_.back().end() > end) {
    Piece& last = pieces_.back();
    if (end > last.first) {
      last.count = end - last.first;
    } else {
      pieces_.pop_back();
    }
  }
  edges_.erase(edges_.upper_bound(end), edges_.end());
}

void SparrowDrafter::start_at(int64_t first) {
  memory_->rewind({0, {0}, nullptr});
  begin_ = std::max(first, least_);
  ids_.clear();
  positions_.clear();
  pieces_.clear();
  edges_.clear();
}

void SparrowDrafter::add_states(int64_t first, Tensor states, int64_t count) {
  edges_[first + count] = rows_of(context_, states, count - 1, 1);
  pieces_.push_back({first, std::move(states), count});
}

// The states of the tokens before [first, first + count); zeros where they are not known.
void SparrowDrafter::states_before(int64_t first, TensorView out) const {
  const int64_t count = out.size(0);
  const auto edge = edges_.find(first);
  int64_t known = edge == edges_.end() ? 0 : 1;
  for (const Piece& piece : pieces_) {
    known += std::max<int64_t>(
        0, std::min(piece.end(), first + count - 1) - std::max(piece.first, first));
  }
  if (known < count) clear(context_, out);
  if (edge != edges_.end()) copy_rows(context_, edge->second, out.rows(0, 1));
  for (const Piece& piece : pieces_) {
    const int64_t from = std::max(piece.first, first - 1);
    const int64_t to = std::min(piece.end(), first + count - 1);
    if (from >= to) continue;
    copy_rows(context_, piece.states.view().rows(from - piece.first, to - from),
              out.rows(from - (first - 1), to - from));
  }
}

// Makes the next rows. States that no later row needs are forgotten.
void SparrowDrafter::run_rows(int64_t count, bool last) {
  const int64_t at = rows(), first = begin_ + at;
  const auto ids = std::span(ids_).subspan(static_cast<size_t>(at), static_cast<size_t>(count));
  Sequence sequence;
  Tensor before(DType::f32, {count, model_->hidden_size()}, context_.device);
  states_before(first, before);
  model_->join(ids, before, sequence);
  for (int64_t i = at; i < at + count; ++i) {
    sequence.tokens.push_back(text_at(positions_[static_cast<size_t>(i)], 0));
  }
  sequence.memory = memory_.get();
  sequence.attention = &attention_;
  sequence.hidden_rows = last ? 1 : 0;
  if (last) sequence.states = {0};
  Forwarded result = model_->forward(sequence);
  if (last) {
    newest_state_ = rows_of(context_, result.states[0], count - 1, 1);
    newest_normed_ = std::move(result.hidden);
  }
  forget_states();
}

// A state is used by the row after it.
void SparrowDrafter::forget_states() {
  std::erase_if(pieces_, [&](const Piece& piece) { return piece.end() < begin_ + rows(); });
}

void SparrowDrafter::read(const ReadText& text) {
  const auto count = static_cast<int64_t>(text.ids.size());
  if (count == 0) return;
  if (count != text.states[0].size(0)) {
    throw Error(ErrorKind::internal, "text that was read has one state for each token");
  }
  if (text.first > known_end()) {
    start_at(text.first);
  } else {
    cut(text.first);
  }
  // A first token that gets no row is known by its state alone.
  const int64_t skipped = std::min(count, std::max<int64_t>(0, begin_ - text.first));
  const auto before = static_cast<size_t>(text.first + skipped - begin_);
  const auto own = static_cast<size_t>(skipped);
  ids_.resize(before);
  ids_.insert(ids_.end(), text.ids.begin() + skipped, text.ids.end());
  positions_.resize(before);
  for (const TokenInfo& token : text.tokens.subspan(own)) positions_.push_back(token.position);
  add_states(text.first, model_->state(text.states), count);
  // Rows are made with the first guess, unless that would hold many states until then.
  while (known_end() - begin_ - rows() > chunk) run_rows(chunk, false);
}

// Tokens before `end`, which are known, have rows.
void SparrowDrafter::run_rows_until(int64_t end) {
  while (begin_ + rows() < end) run_rows(std::min(end - begin_ - rows(), chunk), false);
}

// States are never written to once they are there, so that both may have them.
std::unique_ptr<Drafter> SparrowDrafter::fork() {
  auto other = std::make_unique<SparrowDrafter>(model_, options_);
  other->memory_ = memory_->fork(memory_->mark());
  other->begin_ = begin_;
  other->ids_ = ids_;
  other->positions_ = positions_;
  other->pieces_ = pieces_;
  other->edges_ = edges_;
  other->answer_ends_ = answer_ends_;
  return other;
}

// The text is this one; the newest token is the last of those that have no row.
void SparrowDrafter::catch_up(std::span<const int32_t> text) {
  const int64_t before = std::ssize(text) - 1;  // tokens whose states are or should be known
  if (before > known_end() || before < begin_) start_at(before);
  if (known_end() > before) cut(before);
  auto own = text.subspan(static_cast<size_t>(begin_));
  const auto made = ids_.begin() + std::min(rows(), std::ssize(ids_));
  const auto same = std::mismatch(ids_.begin(), made, own.begin(), own.end()).first;
  // The newest token is run again even if it has a row: what follows it is wanted.
  cut_rows(begin_ + std::min<int64_t>(same - ids_.begin(), std::ssize(own) - 1));
  if (begin_ + rows() < (pieces_.empty() ? before : pieces_.front().first)) {
    start_at(before);  // the text is another one, and its states were never shown
    own = own.last(1);
  }
  ids_.assign(own.begin(), own.end());
  positions_.resize(std::min(positions_.size(), own.size()));
  while (positions_.size() < own.size()) {  // what is generated follows text
    const auto place = static_cast<int32_t>(begin_);
    positions_.push_back(positions_.empty() ? Position{place, place, place}
                                            : text_at(positions_.back(), 1).position);
  }
}

// Makes rows until no more than this many tokens have none.
void SparrowDrafter::make_rows(int64_t without) {
  while (std::ssize(ids_) - rows() > without) {
    const int64_t left = std::ssize(ids_) - rows(), step = std::min(left - without, chunk);
    run_rows(step, step == left);
  }
}

// Runs these leaves of the tree and says what may follow each. The rows of a chain stay until the
// tree is complete. Where there are several leaves, those above them run along: each leaf must see
// its own ancestors and nobody else's.
DraftPace::Level SparrowDrafter::run_level(const DraftTree& tree,
                                           std::span<const int32_t> frontier) {
  const int32_t depth = tree.nodes()[static_cast<size_t>(frontier[0])].depth;
  const bool chain = frontier.size() == 1 && chain_rows_ == depth - 1;
  if (!chain) cut_rows(begin_ + rows() - std::exchange(chain_rows_, -1));
  const std::vector<int32_t> nodes = chain ? std::vector<int32_t>(frontier.begin(), frontier.end())
                                           : tree.with_ancestors(frontier);
  const auto count = static_cast<int64_t>(nodes.size()), leaves = std::ssize(frontier);
  Sequence sequence;
  std::vector<int32_t> ids, slots;
  for (const int32_t place : nodes) {
    const DraftTree::Node& node = tree.nodes()[static_cast<size_t>(place)];
    ids.push_back(node.token);
    slots.push_back(node.parent < 0 ? 0 : slots_[static_cast<size_t>(node.parent)]);
    sequence.tokens.push_back(text_at(positions_.back(), node.depth));
  }
  if (!chain) sequence.parents = tree.parents_among(nodes);
  Tensor before(DType::f32, {count, model_->hidden_size()}, context_.device);
  gather_rows(context_, node_states_, slots, before);
  model_->join(ids, before, sequence);
  sequence.memory = memory_.get();
  sequence.attention = &attention_;
  sequence.hidden_rows = leaves;
  sequence.states = {0};
  const Forwarded result = model_->forward(sequence);
  if (chain) {
    ++chain_rows_;
  } else {
    cut_rows(begin_ + rows() - count);
  }
  slots_.resize(tree.nodes().size(), -1);
  for (int64_t i = 0; i < leaves; ++i) {
    slots_[static_cast<size_t>(frontier[static_cast<size_t>(i)])] =
        static_cast<int32_t>(used_slots_ + i);
  }
  copy_rows(context_, result.states[0].view().rows(count - leaves, leaves),
            node_states_.view().rows(used_slots_, leaves));
  used_slots_ += leaves;
  return {model_->next(result.hidden, options_.shape.width), count, result.usual};
}

Draft SparrowDrafter::propose(std::span<const int32_t> text, int64_t most, int64_t deepest) {
  text_count_ = std::ssize(text);
  Draft draft;
  if (pace_.begin(text_count_ > least_)) {
    catch_up(text);
    draft = model_->grows(options_.shape) ? grow_there(most, deepest) : grow(most, deepest);
  }
  pace_.end();
  return draft;
}

// All at once, by the device.
Draft SparrowDrafter::grow_there(int64_t most, int64_t deepest) {
  make_rows(TreeStart::most);
  const auto at = static_cast<size_t>(rows());
  const TreeStart start{
      *memory_, std::span(ids_).subspan(at), std::span(positions_).subspan(at),
      [&, first = begin_ + rows()](TensorView out) { states_before(first, out); }};
  Draft draft = pace_.grow_whole(
      most, [&](const TreeShape& shape) { return model_->grow(shape, deepest, start); });
  forget_states();
  return draft;
}

Draft SparrowDrafter::grow(int64_t most, int64_t deepest) {
  make_rows(0);
  const int64_t rows = this->rows();
  slots_.clear();
  copy_rows(context_, newest_state_, node_states_.view().rows(0, 1));
  used_slots_ = 1;
  chain_rows_ = 0;
  Draft draft = pace_.grow(model_->next(newest_normed_, options_.shape.width)[0], most, deepest,
                           [&](const DraftTree& tree, std::span<const int32_t> leaves) {
                             return run_level(tree, leaves);
                           });
  cut_rows(begin_ + rows);
  return draft;
}

void SparrowDrafter::learn(const CheckedDraft& checked) {
  pace_.learn(std::ssize(checked.right), checked.usual);
  if (options_.adapt) model_->remember(options_.shape, pace_.known());
  std::vector<int32_t> path{0};
  for (const int32_t place : checked.right) path.push_back(place + 1);
  const int64_t first = text_count_ - 1;
  if (first > known_end()) return;
  if (first < known_end()) cut(first);
  std::vector<Tensor> states;
  for (const Tensor& state : checked.states) {
    if (path.back() + 1 == std::ssize(path)) {  // a chain's stand one after another
      states.push_back(state);
      continue;
    }
    states.emplace_back(DType::f32, Shape{std::ssize(path), state.size(1)}, context_.device);
    gather_rows(context_, state, path, states.back());
  }
  add_states(first, model_->state(states), std::ssize(path));
  answer_ends_.push_back(known_end());
  if (answer_ends_.size() > most_answer_ends) {
    edges_.erase(answer_ends_.front());
    answer_ends_.pop_front();
  }
}

DraftPolicy sparrow_policy() {
  Settings<SparrowOptions> settings;
  add_pace_settings(settings).add(
      "from", "a directory", "where the draft lies: kinora's own, EAGLE's, EAGLE-3's or MSD's",
      [](SparrowOptions& options, std::string_view text) {
        options.from = text;
        return !text.empty();
      },
      [](const SparrowOptions& options) {
        return options.from.empty() ? "draft/ of the model" : options.from;
      });
  DraftPolicy policy;
  policy.info = {"sparrow",
                 "a tree of guesses by a small trained draft that is fed the model's "
                 "states of the text",
                 settings.info()};
  policy.make = [settings](std::span<const GivenSetting> given) {
    return [options = settings.read(given)](const OpenDraft& open) {
      std::shared_ptr<const DraftModel> model = open ? open(options.from) : nullptr;
      if (model == nullptr) {
        throw Error(ErrorKind::not_found,
                    "the model came without a draft; give the directory of one, or train it "
                    "(training/draft)");
      }
      return std::make_unique<SparrowDrafter>(std::move(model), options);
    };
  };
  return policy;
}

}  // namespace kinora

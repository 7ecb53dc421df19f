#include "bench/draft_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/gpu.h"
#include "generate/sparrow.h"
#include "model/weights/random_weights.h"

namespace kinora::cli {
namespace {

constexpr int64_t prompt_tokens = 64;   // of text; a draft never reads visual rows
constexpr int64_t accepted_tokens = 3;  // of every tree
constexpr int repeats = 24;

DraftParts random_draft(const Context& context, const DecoderConfig& target, int64_t own) {
  DraftParts parts;
  parts.config = target;
  parts.config.layers = 1;
  parts.config.vocabulary = own > 0 ? own : 128;  // the head of the latter goes away again
  parts.weights = random_decoder(context, parts.config, DType::bf16);
  parts.weights.embeddings = {};  // the target's are used
  if (own == 0) parts.weights.head = {};
  parts.fc = WeightMaker(context, DType::bf16).linear(target.hidden, 2 * target.hidden, false);
  parts.feed.layers = {static_cast<int>(target.layers) - 2};
  for (int64_t i = 0; i < own; ++i) {  // spread over the target's
    parts.tokens.push_back(static_cast<int32_t>(i * target.vocabulary / own));
  }
  return parts;
}

Tensor random_states(const Context& context, int64_t rows, int64_t hidden) {
  return random_tensor(context, DType::f32, {rows, hidden}, 1.0f, 11);
}

}  // namespace

DraftFigure measure_draft(const Context& context, const Decoder& target,
                          const DecoderConfig& config, const TreeShape& shape, int64_t own) {
  if (own > config.vocabulary) {
    throw Error(ErrorKind::usage,
                fmt::format("a draft cannot know {} tokens of a model that has {}", own,
                            config.vocabulary));
  }
  const auto model =
      std::make_shared<const DraftModel>(context, target, random_draft(context, config, own));
  SparrowDrafter drafter(model, {.shape = shape, .adapt = false, .from = {}});
  std::vector<int32_t> text(static_cast<size_t>(prompt_tokens));
  std::iota(text.begin(), text.end(), 1);
  std::vector<TokenInfo> tokens(text.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto at = static_cast<int32_t>(i);
    tokens[i].position = {at, at, at};
  }
  const std::vector<Tensor> states{random_states(context, prompt_tokens, config.hidden)};
  drafter.read({.first = 0, .ids = text, .tokens = tokens, .states = states});
  text.push_back(7);

  DraftFigure figure;
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    synchronize(context);
    const auto begin = std::chrono::steady_clock::now();
    const Draft draft = drafter.propose(text, shape.total - 1, shape.depth + 1);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    if (i >= repeats / 3) seconds.push_back(elapsed.count());  // graphs are captured by then
    figure.tokens = 1 + std::ssize(draft.ids);
    // The first tokens of the tree's first path are right.
    std::vector<int32_t> right;
    int32_t parent = -1;
    while (std::ssize(right) < accepted_tokens) {
      const auto child = std::find(draft.parents.begin(), draft.parents.end(), parent);
      if (child == draft.parents.end()) break;
      parent = static_cast<int32_t>(child - draft.parents.begin());
      right.push_back(parent);
      text.push_back(draft.ids[static_cast<size_t>(parent)]);
    }
    text.push_back(7);
    const std::vector<Tensor> checked{random_states(context, figure.tokens, config.hidden)};
    drafter.learn({right, checked});
  }
  std::sort(seconds.begin(), seconds.end());
  figure.seconds = seconds[seconds.size() / 2];
  const int64_t layer = 2 * config.hidden * config.head_size * (config.heads + config.kv_heads) +
                        3 * config.hidden * config.intermediate;
  const int64_t head = (own > 0 ? own : config.vocabulary) * config.hidden;
  figure.tree_bytes = static_cast<double>((shape.depth + 1) * 2 *
                                          (layer + 2 * config.hidden * config.hidden + head));
  return figure;
}

}  // namespace kinora::cli

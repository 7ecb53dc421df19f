#include "generate/draft_model.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "base/error.h"
#include "model/config_files.h"
#include "model/weights/gpu_weights.h"
#include "model/weights/linear.h"
#include "model/weights/weights_binder.h"
#include "ops/elementwise.h"
#include "ops/top_k.h"

namespace kinora {
namespace {

[[noreturn]] void refuse(const std::string& directory, const std::string& what) {
  throw Error(ErrorKind::bad_input,
              fmt::format("the draft in {} was made for another model: {}", directory, what));
}

void expect_same(const std::string& directory, const char* what, int64_t own, int64_t target) {
  if (own == target) return;
  refuse(directory, fmt::format("its {} is {}, the model's {}", what, own, target));
}

// Which tokens of the target a smaller vocabulary names.
std::vector<int32_t> read_tokens(const TensorFiles& files, int64_t count, int64_t vocabulary) {
  const auto wrong = [&](const std::string& what) {
    throw Error(ErrorKind::bad_input, fmt::format("{}: tensor d2t {}", files.directory(), what));
  };
  const TensorEntry* entry = files.find("d2t");
  if (entry == nullptr) wrong("is missing, though draft_vocab_size is given");
  if (entry->known != DType::i32 || !(entry->shape == Shape{count})) {
    wrong(fmt::format("must be I32 [{}]", count));
  }
  const Tensor tokens = files.tensor("d2t");
  const int32_t* ids = tokens.data<int32_t>();
  for (int64_t i = 0; i < count; ++i) {
    if (ids[i] < 0 || ids[i] >= vocabulary) wrong(fmt::format("names token {}", ids[i]));
  }
  return {ids, ids + count};
}

}  // namespace

DraftModel::DraftModel(const Context& context, const FileSystem& files,
                       const std::string& directory, const Model& target)
    : context_(context), target_(target.decoder()) {
  const ConfigFiles config_files = ConfigFiles::read(files, directory);
  const ConfigSection top = config_files.top();
  expect_text(top, "model_type", "sparrow", " drafts");
  DecoderTraits traits;
  traits.qkv_bias = top.flag("qkv_bias", false);
  traits.qk_norm = top.flag("qk_norm", false);
  DecoderConfig config = read_config(config_files, traits).decoder;
  if (config.layers != 1) top.unsupported("num_hidden_layers", "must be 1 in a draft");
  expect_same(directory, "hidden size", config.hidden, target_.hidden_size());
  expect_same(directory, "vocabulary", config.vocabulary, target_.vocabulary());
  expect_same(directory, "target_num_hidden_layers",
              top.integer("target_num_hidden_layers", 1, 1024), target_.layer_count());
  state_layer_ = static_cast<int>(
      top.integer("target_state_layer", 0, target_.layer_count() - 1, target_.layer_count() - 2));
  const int64_t own = top.integer("draft_vocab_size", 0, config.vocabulary, 0);

  const TensorFiles tensors = TensorFiles::open(files, directory);
  WeightsBinder binder(tensors);
  const int64_t hidden = config.hidden;
  const LinearWeights fc = binder.take_linear("fc", hidden, 2 * hidden, top.flag("fc_bias", false));
  DecoderWeights weights;
  weights.layers.push_back(take_decoder_layer(binder, config, "layers.0."));
  weights.norm = binder.take("norm.weight", Shape{hidden});
  if (own > 0) {
    weights.head.weight = binder.take("lm_head.weight", Shape{own, hidden});
    binder.pass_over("d2t");
  }
  binder.finish(context, true);
  if (own > 0) {
    tokens_ = read_tokens(tensors, own, config.vocabulary);
    config.vocabulary = own;
  }
  activations_ = activation_type(context, fc.weight.dtype(), GpuPrecision::bf16);
  fc_ = context.device.is_cpu() ? fc : on_gpu(context, fc, activations_, DType::f32);
  decoder_ = std::make_unique<TransformerDecoder>(context, config, weights,
                                                  DecoderOptions{false, activations_});
}

DraftModel::DraftModel(const Context& context, const Decoder& target, Parts parts)
    : context_(context),
      target_(target),
      state_layer_(parts.state_layer),
      activations_(parts.fc.weight.dtype()),
      fc_(std::move(parts.fc)),
      decoder_(std::make_unique<TransformerDecoder>(context, parts.config, parts.weights,
                                                    DecoderOptions{false, activations_})),
      tokens_(std::move(parts.tokens)) {}

Forwarded DraftModel::forward(const Sequence& sequence) const {
  const std::lock_guard lock(turn_);
  if (runner_ == nullptr) runner_ = decoder_->runner(context_);
  return runner_->forward(sequence);
}

RowLayout DraftModel::rows() const {
  const DecoderConfig& config = decoder_->config();
  return {1, static_cast<int>(config.kv_heads), static_cast<int>(config.head_size), activations_};
}

Tensor DraftModel::join(std::span<const int32_t> ids, ConstTensorView states) const {
  const auto count = static_cast<int64_t>(ids.size());
  const int64_t hidden = hidden_size();
  Tensor both(activations_, {count, 2 * hidden}, context_.device);
  const Tensor embeddings = target_.embed(context_, ids);
  convert(context_, embeddings, both.view().columns(0, hidden));
  convert(context_, states, both.view().columns(hidden, hidden));
  Tensor out(DType::f32, {count, hidden}, context_.device);
  apply_linear(context_, both, fc_, out);
  return out;
}

std::vector<std::vector<Guess>> DraftModel::next(const Tensor& normed, int64_t count) const {
  const Tensor logits = (tokens_.empty() ? target_ : *decoder_).logits(context_, normed);
  std::vector<std::vector<Guess>> result;
  for (const RankedRow& row : top_k_rows(context_, logits, count)) {
    result.emplace_back();
    for (const Candidate& candidate : row.best) {
      const int32_t token =
          tokens_.empty() ? candidate.index : tokens_[static_cast<size_t>(candidate.index)];
      const double below = double{candidate.value} - double{row.best[0].value};
      result.back().push_back({token, static_cast<float>(below - std::log(row.mass))});
    }
  }
  return result;
}

}  // namespace kinora

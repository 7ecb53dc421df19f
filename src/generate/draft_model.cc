#include "generate/draft_model.h"

#include <cmath>
#include <utility>

#include "base/files/content_key.h"
#include "model/decoder/layers.h"
#include "model/weights/linear.h"
#include "ops/elementwise.h"
#include "ops/gather.h"
#include "ops/rms_norm.h"
#include "ops/top_k.h"

namespace kinora {

DraftModel::DraftModel(const Context& context, const FileSystem& files,
                       const std::string& directory, const Model& target)
    : DraftModel(context, target.decoder(), read_draft(context, files, directory, target)) {
  target_bytes_ = target.info().weight_bytes;
}

bool DraftModel::could_pay() const {
  // Read in a quarter of a millisecond by an H200, on which a level that the host starts takes 0.2.
  constexpr int64_t small = 1'000'000'000;
  return context_.device.is_cpu() || target_bytes_ == 0 || target_bytes_ > small || grows({});
}

DraftModel::DraftModel(const Context& context, const Decoder& target, DraftParts parts)
    : context_(context),
      target_(target),
      parts_(std::move(parts)),
      activations_(context.device.is_cpu() ? DType::f32 : parts_.fc.weight.dtype()),
      own_head_(parts_.weights.head.weight.defined()),
      decoder_(std::make_unique<TransformerDecoder>(context, parts_.config,
                                                    std::exchange(parts_.weights, {}),
                                                    DecoderOptions{false, activations_})) {}

Forwarded DraftModel::forward(const Sequence& sequence) const {
  const std::lock_guard lock(turn_);
  if (runner_ == nullptr) runner_ = decoder_->runner(context_);
  return runner_->forward(sequence);
}

RowLayout DraftModel::rows() const {
  const DecoderConfig& config = decoder_->config();
  return {1, static_cast<int>(config.kv_heads), static_cast<int>(config.head_size), activations_};
}

std::string DraftModel::key() const {
  ContentKey key("draft " + parts_.feed.kind);
  // What every token goes through first; two trainings never end at the same.
  const Tensor fc = parts_.fc.weight.to(Device::cpu());
  key.add(fc.view().raw(), static_cast<size_t>(fc.bytes()));
  for (const int64_t number : {rows().row_bytes(), int64_t{static_cast<int>(rows().dtype)}}) {
    key.add(number);
  }
  return key.text();
}

Tensor DraftModel::state(std::span<const Tensor> layers) const {
  if (!parts_.feed.fused) {
    return parts_.feed.normed ? target_.norm(context_, layers[0]) : layers[0];
  }
  const int64_t count = layers[0].size(0), width = layers[0].size(1);
  Tensor all(activations_, {count, std::ssize(layers) * width}, context_.device);
  for (size_t i = 0; i < layers.size(); ++i) {
    convert(context_, layers[i], all.view().columns(static_cast<int64_t>(i) * width, width));
  }
  Tensor out(DType::f32, {count, hidden_size()}, context_.device);
  apply_linear(context_, all, parts_.fc, out);
  return out;
}

Tensor DraftModel::embed(std::span<const int32_t> ids) const {
  if (!parts_.embeddings.defined()) return target_.embed(context_, ids);
  check_tokens(ids, parts_.embeddings.size(0));
  Tensor out(DType::f32, {std::ssize(ids), hidden_size()}, context_.device);
  gather_rows(context_, parts_.embeddings, ids, out);
  return out;
}

void DraftModel::join(std::span<const int32_t> ids, const Tensor& states,
                      Sequence& sequence) const {
  const Tensor embeddings = embed(ids);
  if (parts_.feed.fused) {
    sequence.beside = embeddings;
    sequence.embeddings = states;
    if (!parts_.state_norm.defined()) return;
    sequence.embeddings = Tensor(DType::f32, states.shape(), context_.device);
    rms_norm(context_, states, parts_.state_norm, decoder_->config().norm_epsilon,
             sequence.embeddings);
    return;
  }
  const int64_t count = std::ssize(ids), hidden = hidden_size();
  Tensor both(activations_, {count, 2 * hidden}, context_.device);
  convert(context_, embeddings, both.view().columns(0, hidden));
  convert(context_, states, both.view().columns(hidden, hidden));
  sequence.embeddings = Tensor(DType::f32, {count, hidden}, context_.device);
  apply_linear(context_, both, parts_.fc, sequence.embeddings);
}

std::optional<KnownPace> DraftModel::known_pace(const TreeShape& shape) const {
  const std::lock_guard lock(known_turn_);
  const auto found = known_.find(shape);
  return found == known_.end() ? std::nullopt : std::optional(found->second);
}

void DraftModel::remember(const TreeShape& shape, const KnownPace& pace) const {
  const std::lock_guard lock(known_turn_);
  known_.insert_or_assign(shape, pace);
}

DeviceTrees& DraftModel::trees() const {
  if (trees_ == nullptr) {
    const DecoderLayers& own = *decoder_->layers();
    const DecoderLayers& target = *target_.layers();
    trees_ = make_device_trees(
        {context_, own, decoder_->frequencies(), own_head_ ? own : target, parts_,
         parts_.embeddings.defined() ? parts_.embeddings : target.weights().embeddings});
  }
  return *trees_;
}

bool DraftModel::grows(const TreeShape& shape) const {
  if (context_.device.is_cpu() || target_.layers() == nullptr) return false;
  const std::lock_guard lock(turn_);
  return trees().takes(shape);
}

GrownTree DraftModel::grow(const TreeShape& shape, int64_t deepest, const TreeStart& start) const {
  const std::lock_guard lock(turn_);
  return trees().grow(shape, deepest, start);
}

std::vector<std::vector<Guess>> likeliest(const Context& context, ConstTensorView logits,
                                          int64_t count) {
  std::vector<std::vector<Guess>> result;
  for (const RankedRow& row : top_k_rows(context, logits, count)) {
    result.emplace_back();
    for (const Candidate& candidate : row.best) {
      const double below = double{candidate.value} - double{row.best[0].value};
      result.back().push_back({candidate.index, static_cast<float>(below - std::log(row.mass))});
    }
  }
  return result;
}

std::vector<std::vector<Guess>> DraftModel::next(const Tensor& hidden, int64_t count) const {
  const Decoder& speaker = own_head_ ? *decoder_ : target_;
  auto result = likeliest(context_, speaker.logits(context_, hidden), count);
  if (parts_.tokens.empty()) return result;
  for (std::vector<Guess>& row : result) {
    for (Guess& guess : row) guess.token = parts_.tokens[static_cast<size_t>(guess.token)];
  }
  return result;
}

}  // namespace kinora

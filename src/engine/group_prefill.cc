#include "engine/group_prefill.h"

#include <cstring>

#include "base/error.h"
#include "engine/stopwatch.h"

namespace kinora {

GroupPrefill::GroupPrefill(const Context& context, const Model& model, RowStore& store,
                           Attention& attention, int64_t max_tokens, int64_t expected_tokens,
                           Progress& progress, const CancelToken& cancel)
    : context_(context),
      model_(model),
      store_(store),
      attention_(attention),
      max_tokens_(max_tokens),
      expected_tokens_(expected_tokens),
      progress_(progress),
      cancel_(cancel) {}

void GroupPrefill::add(Tensor embeddings, std::vector<TokenInfo> tokens) {
  if (embeddings.size(0) != static_cast<int64_t>(tokens.size())) {
    throw Error(ErrorKind::internal, "tokens and embeddings of a group differ in number");
  }
  if (tokens.empty()) return;
  pieces_.push_back(std::move(embeddings));
  waiting_.insert(waiting_.end(), tokens.begin(), tokens.end());
  if (static_cast<int64_t>(waiting_.size()) >= max_tokens_) run();
}

void GroupPrefill::run_waiting() {
  if (!waiting_.empty()) run();
}

Tensor GroupPrefill::finish() {
  run_waiting();
  if (!hidden_.defined()) throw Error(ErrorKind::internal, "there was nothing to prefill");
  return hidden_;
}

void GroupPrefill::run() {
  cancel_.check();
  const Stopwatch watch;
  TokenGroup group;
  if (pieces_.size() == 1) {
    group.embeddings = std::move(pieces_.front());
  } else {
    const int64_t width = model_.decoder().hidden_size();
    group.embeddings = Tensor(DType::f32, {static_cast<int64_t>(waiting_.size()), width});
    std::byte* target = group.embeddings.view().raw();
    for (const Tensor& piece : pieces_) {
      std::memcpy(target, piece.view().raw(), static_cast<size_t>(piece.bytes()));
      target += piece.bytes();
    }
  }
  pieces_.clear();
  group.tokens = std::exchange(waiting_, {});
  PrefillOptions options;
  options.cancel = cancel_;
  hidden_ = model_.decoder().prefill(context_, group, store_, attention_, options);
  tokens_ += static_cast<int64_t>(group.tokens.size());
  seconds_ += watch.seconds();
  progress_.update("prefill", tokens_, expected_tokens_);
}

}  // namespace kinora

#include "engine/group_prefill.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace kinora {
namespace {

// Rows of all pieces, one after the other.
Tensor join_rows(const std::vector<Tensor>& pieces) {
  if (pieces.size() == 1) return pieces.front();
  int64_t rows = 0;
  for (const Tensor& piece : pieces) rows += piece.size(0);
  const Device device = pieces.front().device();
  Tensor joined(pieces.front().dtype(), {rows, pieces.front().size(1)}, device);
  std::byte* target = joined.view().raw();
  for (const Tensor& piece : pieces) {
    copy_bytes(target, device, piece.view().raw(), piece.device(),
               static_cast<size_t>(piece.bytes()));
    target += piece.bytes();
  }
  return joined;
}

}  // namespace

GroupPrefill::GroupPrefill(const Context& context, const Model& model, RowStore& store,
                           Attention& attention, GroupPrefillOptions options, Progress& progress,
                           SpanRecorder& spans)
    : context_(context),
      model_(model),
      store_(store),
      attention_(attention),
      options_(std::move(options)),
      progress_(progress),
      clock_(context, spans, "prefill") {}

void GroupPrefill::add(Tensor embeddings, std::vector<TokenInfo> tokens) {
  if (embeddings.size(0) != static_cast<int64_t>(tokens.size())) {
    throw Error(ErrorKind::internal, "tokens and embeddings of a group differ in number");
  }
  if (tokens.empty()) return;
  pieces_.push_back(std::move(embeddings));
  waiting_.insert(waiting_.end(), tokens.begin(), tokens.end());
  if (static_cast<int64_t>(waiting_.size()) >= options_.max_tokens) run();
}

void GroupPrefill::end_frames() {
  if (options_.retention.prunes()) run_waiting();
}

void GroupPrefill::run_waiting() {
  if (!waiting_.empty()) run();
}

Tensor GroupPrefill::finish() {
  run_waiting();
  clock_.finish();
  if (!hidden_.defined()) throw Error(ErrorKind::internal, "there was nothing to prefill");
  return hidden_;
}

// The question goes along at the end of a group, so that its queries have seen what they judge.
void GroupPrefill::add_question(TokenGroup& group) const {
  options_.positions->clone()->text(static_cast<int64_t>(options_.question.size()), group.tokens);
  group.embeddings =
      join_rows({group.embeddings, model_.decoder().embed(context_, options_.question)});
}

void GroupPrefill::check_memory() const {
  int64_t visual = 0;
  for (const TokenInfo& token : waiting_) visual += token.modality != Modality::text;
  const auto text = static_cast<int64_t>(waiting_.size()) - visual;
  const int64_t rows = text + kept_count(options_.retention, visual);
  const int64_t bytes = store_.bytes() + rows * store_.layout().bytes_per_token();
  const int64_t allowed =
      std::min(options_.max_row_bytes, options_.share != nullptr ? options_.share->most() : bytes);
  if (bytes <= allowed && (options_.share == nullptr || options_.share->resize(bytes))) return;
  throw Error(
      ErrorKind::resource,
      fmt::format("the memory budget is used up after {} of {} tokens: keys and values would "
                  "need {} bytes, {} are allowed; raise the budget, clear the conversation or end "
                  "others",
                  tokens_, options_.expected_tokens, bytes, allowed));
}

void GroupPrefill::run() {
  options_.cancel.check();
  check_memory();
  clock_.begin();
  TokenGroup group;
  group.embeddings = join_rows(std::exchange(pieces_, {}));
  group.tokens = std::exchange(waiting_, {});
  const auto count = static_cast<int64_t>(group.tokens.size());
  const bool visual =
      std::any_of(group.tokens.begin(), group.tokens.end(),
                  [](const TokenInfo& token) { return token.modality != Modality::text; });
  PrefillOptions options;
  options.cancel = options_.cancel;
  const Retention& retention = options_.retention;
  if (visual && retention.needs_question()) {
    add_question(group);
    const auto probe = static_cast<int64_t>(group.tokens.size()) - count;
    QueryTap tap(attention_, probe);
    options.after_attention = [&](int layer, RowStore& store) {
      prune_group(context_, retention, layer, store, probe, tap.sum());
    };
    hidden_ = model_.decoder().prefill(context_, group, store_, tap, options);
  } else {
    if (visual && retention.prunes()) {
      options.after_attention = [&](int layer, RowStore& store) {
        prune_group(context_, retention, layer, store);
      };
    }
    hidden_ = model_.decoder().prefill(context_, group, store_, attention_, options);
  }
  clock_.end(fmt::format("prefill tokens {} to {}", tokens_, tokens_ + count));
  tokens_ += count;
  progress_.update("prefill", tokens_, options_.expected_tokens);
}

}  // namespace kinora

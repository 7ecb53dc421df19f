// A draft's rows of text in a saved memory: a section that says what they are of, and two of rows.
#include <algorithm>

#include "base/error.h"
#include "base/files/archive.h"
#include "base/files/byte_stream.h"
#include "generate/sparrow.h"

namespace kinora {
namespace {

constexpr const char* about_section = "draft";
constexpr const char* keys_section = "draft/keys";
constexpr const char* values_section = "draft/values";

}  // namespace

void SparrowDrafter::save(int64_t tokens, ArchiveWriter& out) {
  if (tokens <= begin_ || tokens > known_end()) return;  // it never read that text
  run_rows_until(tokens);
  Tensor before(DType::f32, {1, model_->hidden_size()}, context_.device);
  states_before(tokens, before);
  const Tensor state = before.to(Device::cpu());
  const int64_t count = tokens - begin_;
  ByteWriter about;
  about.put(model_->key());
  about.put(begin_);
  about.put(count);
  about.put_all(std::span<const float>(state.data<float>(), static_cast<size_t>(state.size(1))));
  out.add(about_section, about.bytes());

  std::vector<RowSet> sets;
  memory_->read(context_, 0, {}, sets);
  const auto write = [&](const char* name, auto rows_of) {
    out.begin(name);
    int64_t left = count;
    for (const RowSet& set : sets) {
      const ConstTensorView rows = rows_of(set);
      const int64_t here = std::min(left, rows.size(0));
      std::vector<std::byte> bytes(static_cast<size_t>(here * memory_->layout().row_bytes()));
      copy_bytes(bytes.data(), Device::cpu(), rows.raw(), rows.device(), bytes.size());
      out.append(bytes.data(), bytes.size());
      left -= here;
    }
    out.end();
  };
  write(keys_section, [](const RowSet& set) { return set.keys; });
  write(values_section, [](const RowSet& set) { return set.values; });
}

void SparrowDrafter::load(const Archive& in, std::span<const int32_t> ids,
                          std::span<const TokenInfo> tokens) {
  if (!in.has(about_section)) return;
  const std::string bytes = in.read(about_section);
  ByteReader about(bytes, in.path());
  if (about.text() != model_->key()) return;
  const auto first = about.get<int64_t>(), count = about.get<int64_t>();
  const auto state = about.all<float>();
  about.end();
  if (tokens.size() != ids.size()) {
    throw Error(ErrorKind::internal, "text that was saved has a position for each token");
  }
  if (first < least_ || first >= std::ssize(ids) || count != std::ssize(ids) - first ||
      std::ssize(state) != model_->hidden_size()) {
    in.refuse("holds a draft's rows of another text");
  }
  const std::string keys = in.read(keys_section), values = in.read(values_section);
  const auto size = static_cast<size_t>(count * memory_->layout().row_bytes());
  if (keys.size() != size || values.size() != size) {
    in.refuse("holds another number of a draft's rows than it says");
  }
  start_at(first);
  ids_.assign(ids.begin() + first, ids.end());
  std::vector<TokenInfo> known(tokens.begin() + first, tokens.end());
  for (TokenInfo& token : known) positions_.push_back(token.position);
  memory_->begin(context_, {known});
  const NewRows rows = memory_->append(0);
  copy_bytes(rows.keys.raw(), context_.device, keys.data(), Device::cpu(), size);
  copy_bytes(rows.values.raw(), context_.device, values.data(), Device::cpu(), size);
  Tensor edge(DType::f32, {1, model_->hidden_size()});
  std::copy(state.begin(), state.end(), edge.data<float>());
  edges_[known_end()] = edge.to(context_.device);
}

}  // namespace kinora

// A compact memory as a saved file: all tokens, the rows that each layer still has with the
// positions at which their keys stand now, and the queries of the generic question.
#include "base/error.h"
#include "base/files/byte_stream.h"
#include "base/threads.h"
#include "memory/compact_memory.h"
#include "memory/saved_rows.h"

namespace kinora {

void CompactMemory::save(const MemoryMark& mark, ArchiveWriter& out, const RowGroups&) const {
  if (mark.rows.size() != kept_.size() || mark.tokens > token_count()) {
    throw Error(ErrorKind::internal, "a mark of another session, or of a moment already undone");
  }
  const Saved& saved = saved_of(mark);
  const ThreadPool threads(1);
  const Context context(threads, device_);
  write_layout(out, layout_);
  write_tokens(out, *this, mark.tokens);
  for (int layer = 0; layer < layout_.layers; ++layer) {
    const std::shared_ptr<const Kept> kept = join(context, layer, saved);
    const Generic& generic = generic_[static_cast<size_t>(layer)];
    ByteWriter known;
    known.put_all(kept->ordinals);
    known.put_all(kept->positions);
    size_t asked = 0;
    while (asked < generic.tokens.size() && generic.tokens[asked] < mark.tokens) ++asked;
    known.put_all(std::span(generic.tokens).first(asked));
    const size_t each = generic.tokens.empty() ? 0 : generic.queries.size() / generic.tokens.size();
    known.put_all(std::span(generic.queries).first(asked * each));
    out.add(layer_section(layer, "kept"), known.bytes());
    for (const auto& [name, rows] :
         {std::pair{"keys", &kept->keys}, std::pair{"values", &kept->values}}) {
      out.begin(layer_section(layer, name), row_page);
      if (rows->defined()) {
        append_from(out, device_, static_cast<const std::byte*>(rows->view().raw()), rows->bytes());
      }
      out.end();
    }
  }
}

void CompactMemory::load(const Context&, const std::shared_ptr<const Archive>& in, Loading) {
  if (token_count() > 0) throw Error(ErrorKind::internal, "only an empty memory is loaded into");
  check_layout(*in, layout_);
  std::vector<TokenInfo> tokens = read_tokens(*in);
  AllKept all;
  std::vector<Generic> generics;
  for (int layer = 0; layer < layout_.layers; ++layer) {
    auto kept = std::make_shared<Kept>();
    const std::string bytes = in->read(layer_section(layer, "kept"));
    ByteReader from(bytes, in->path());
    kept->ordinals = from.all<int32_t>();
    kept->positions = from.all<Position>();
    Generic generic;
    generic.tokens = from.all<int32_t>();
    generic.queries = from.all<float>();
    from.end();
    int64_t before = -1;
    for (const int32_t ordinal : kept->ordinals) {
      if (ordinal <= before || ordinal >= std::ssize(tokens)) from.refuse("has rows of no token");
      before = ordinal;
      kept->modalities.push_back(tokens[static_cast<size_t>(ordinal)].modality);
      kept->times.push_back(static_cast<float>(tokens[static_cast<size_t>(ordinal)].time));
    }
    const auto asked = static_cast<int64_t>(generic.tokens.size());
    const int64_t head = layout_.head_size;
    if (kept->positions.size() != kept->ordinals.size() ||
        (asked > 0 ? std::ssize(generic.queries) % (asked * head) != 0
                   : !generic.queries.empty())) {
      from.refuse("holds rows that do not fit together");
    }
    const Shape shape = layout_.shape(kept->rows());
    for (const auto& [name, rows] :
         {std::pair{"keys", &kept->keys}, std::pair{"values", &kept->values}}) {
      const std::string stored = in->read(layer_section(layer, name));
      *rows = Tensor(layout_.dtype, shape, device_);
      if (std::ssize(stored) != rows->bytes()) from.refuse("holds another number of rows");
      copy_bytes(rows->view().raw(), device_, stored.data(), Device::cpu(), stored.size());
    }
    all.push_back(std::move(kept));
    generics.push_back(std::move(generic));
  }
  kept_ = std::move(all);
  generic_ = std::move(generics);
  tokens_ = TokenList(tokens);
  frames_.update(*this, 0, token_count());
  group_ = token_count();
}

}  // namespace kinora

// A flat memory as a saved file: tokens, then for every layer its rows or its state.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "memory/flat_memory.h"
#include "memory/saved_rows.h"

namespace kinora {
namespace {

constexpr int64_t rows_at_once = 4096;
// Rows among which those of a group are brought together. All of them are in memory at once.
constexpr int64_t grouped_rows = int64_t{1} << 16;

}  // namespace

void FlatMemory::save(const MemoryMark& mark, ArchiveWriter& out, const RowGroups& groups) const {
  if (mark.rows.size() != layers_.size() || mark.tokens > token_count()) {
    throw Error(ErrorKind::internal, "a mark of another session, or of a moment already undone");
  }
  const auto* states = static_cast<const States*>(mark.more.get());
  write_layout(out, layout_);
  write_tokens(out, *this, mark.tokens);
  for (int i = 0; i < layout_.layers; ++i) {
    const Layer& layer = layer_at(i);
    if (keeps_state(i)) {
      const Tensor& state =
          *(states != nullptr ? states->layers.at(static_cast<size_t>(i)) : layer.state);
      out.begin(layer_section(i, "state"));
      append_from(out, device_, static_cast<const std::byte*>(state.view().raw()), state.bytes());
      out.end();
      continue;
    }
    // The parts that hold the first rows, and how many each of them gives.
    std::vector<std::pair<const Part*, int64_t>> parts;
    std::vector<int32_t> ordinals;
    int64_t left = mark.rows[static_cast<size_t>(i)];
    for (const Part& part : layer.parts) {
      const int64_t rows = std::min(left, part.rows);
      if (rows == 0) continue;
      parts.emplace_back(&part, rows);
      const auto& all = part.block->ordinals;
      ordinals.insert(ordinals.end(), all.begin(), all.begin() + rows);
      left -= rows;
    }
    write_ordinals(out, i, ordinals, mark.tokens);
    std::vector<int32_t> order;  // place in the file → row
    if (groups && !ordinals.empty()) {
      order = grouped_order(ordinals, groups(i), grouped_rows);
      write_order(out, i, order);
    }
    const auto write = [&](const char* name, const auto& bytes_of) {
      out.begin(layer_section(i, name), order.empty() ? row_page : page_of_rows(row_bytes_));
      GroupedRows window(out, order, row_bytes_, grouped_rows);
      for (const auto& [part, rows] : parts) {
        for (int64_t first = 0; first < rows; first += rows_at_once) {
          const int64_t count = std::min(rows_at_once, rows - first);
          need(*part, first, first + count);
          const std::byte* from = bytes_of(*part->block) + first * row_bytes_;
          if (order.empty()) {
            append_from(out, part->block->device(), from, count * row_bytes_);
          } else {
            window.append(part->block->device(), from, count);
          }
          give_up(*part);
        }
      }
      window.flush();
      out.end();
    };
    write("keys", [](const Block& block) { return block.key_bytes(); });
    write("values", [](const Block& block) { return block.value_bytes(); });
  }
}

void FlatMemory::load(const Context& context, const std::shared_ptr<const Archive>& in,
                      Loading how) {
  if (token_count() > 0) throw Error(ErrorKind::internal, "only an empty memory is loaded into");
  check_layout(*in, layout_);
  std::vector<TokenInfo> tokens = read_tokens(*in);
  std::vector<Layer> layers(layers_.size());
  const auto load_layer = [&](int i) {
    Layer& layer = layers[static_cast<size_t>(i)];
    if (keeps_state(i)) {
      const std::string bytes = in->read(layer_section(i, "state"));
      layer.state = std::make_shared<Tensor>(
          Tensor::zeros(DType::u8, Shape{layout_.bytes_of_state(i)}, device_));
      if (static_cast<int64_t>(bytes.size()) != layer.state->bytes()) {
        in->refuse("holds a state of another size");
      }
      copy_bytes(layer.state->view().raw(), device_, bytes.data(), Device::cpu(), bytes.size());
      return;
    }
    auto block = std::make_shared<Block>();
    block->ordinals = read_ordinals(*in, i, static_cast<int64_t>(tokens.size()));
    block->modalities.reserve(block->ordinals.size());
    block->times.reserve(block->ordinals.size());
    for (const int32_t ordinal : block->ordinals) {
      const TokenInfo& token = tokens[static_cast<size_t>(ordinal)];
      block->modalities.push_back(token.modality);
      block->times.push_back(static_cast<float>(token.time));
    }
    const int64_t bytes = block->rows() * row_bytes_;
    const auto order = read_order(*in, i, block->rows(), row_bytes_);
    block->saved_keys = open_section(in, layer_section(i, "keys"), order);
    block->saved_values = open_section(in, layer_section(i, "values"), order);
    for (SavedBytes* saved : {block->saved_keys.get(), block->saved_values.get()}) {
      if (saved->bytes() != bytes) in->refuse("holds another number of rows than it says");
      const SavedBytes::Range all{0, bytes};
      if (how == Loading::whole) saved->need(*context.threads, {&all, 1});
    }
    if (how == Loading::whole && !device_.is_cpu()) {
      const std::shared_ptr<Block> there = new_block(block->rows());
      const auto move = [&](Growable& to, std::unique_ptr<SavedBytes>& from) {
        to.resize(static_cast<size_t>(bytes));
        copy_bytes(to.data(), device_, from->data(), Device::cpu(), static_cast<size_t>(bytes));
        from = nullptr;
      };
      block->keys = std::move(there->keys);
      block->values = std::move(there->values);
      move(block->keys, block->saved_keys);
      move(block->values, block->saved_values);
    }
    const int64_t rows = block->rows();
    if (rows > 0) layer.parts.push_back({std::move(block), rows, true});
  };
  // Where all rows are read, the threads read those of one layer after another.
  const int64_t grain = how == Loading::whole ? layout_.layers : 1;
  context.threads->parallel_for(layout_.layers, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) load_layer(static_cast<int>(i));
  });
  layers_ = std::move(layers);
  tokens_ = TokenList(tokens);
  probes_ = 0;
  group_begin_ = token_count();
}

// Of rows that were made here nothing is missing.
void FlatMemory::need(const Part& part, int64_t begin, int64_t end) const {
  if (part.block->saved_keys == nullptr) return;
  part.block->saved_keys->need(begin * row_bytes_, end * row_bytes_);
  part.block->saved_values->need(begin * row_bytes_, end * row_bytes_);
}

// Of what waits in a file no more than the host may hold stays in memory.
void FlatMemory::give_up(const Part& part) const {
  if (tiers_.host == 0 || part.block->saved_keys == nullptr) return;
  part.block->saved_keys->keep(tiers_.host * row_bytes_);
  part.block->saved_values->keep(tiers_.host * row_bytes_);
}

std::vector<FlatMemory::Waiting> FlatMemory::waiting_rows(int layer,
                                                          std::span<const RowRange> rows) const {
  std::vector<Waiting> waiting;
  int64_t before = 0;
  for (const Part& part : layer_at(layer).parts) {
    if (part.block->saved_keys != nullptr) {
      Waiting one{part.block, {}};
      for (const RowRange& range : rows) {
        const int64_t begin = std::max<int64_t>(0, range.begin - before);
        const int64_t end = std::min(part.rows, range.end - before);
        if (begin < end) one.ranges.push_back({begin * row_bytes_, end * row_bytes_});
      }
      if (!one.ranges.empty()) waiting.push_back(std::move(one));
    }
    before += part.rows;
  }
  return waiting;
}

void FlatMemory::announce(const ThreadPool& threads, std::span<const Waiting> all) {
  for (const Waiting& one : all) {
    one.block->saved_keys->announce(threads, one.ranges);
    one.block->saved_values->announce(threads, one.ranges);
  }
}

void FlatMemory::fetch(const Context& context, int layer, std::span<const RowRange> rows) const {
  if (ahead_.valid() && ahead_layer_ == layer) ahead_.wait();  // it reads most of them, or all
  const std::vector<Waiting> all = waiting_rows(layer, rows);
  announce(*context.threads, all);
  for (const Waiting& waiting : all) {
    for (SavedBytes* saved : {waiting.block->saved_keys.get(), waiting.block->saved_values.get()}) {
      const SavedBytes::Pages pages = saved->need(*context.threads, waiting.ranges);
      fetched_.wanted += pages.wanted;
      fetched_.late += pages.late;
    }
  }
}

bool FlatMemory::fetch_ahead(const Context& context, int layer,
                             std::span<const RowRange> rows) const {
  std::vector<Waiting> waiting = waiting_rows(layer, rows);
  if (waiting.empty()) return false;
  if (ahead_.valid()) ahead_.wait();
  ahead_layer_ = layer;
  ahead_ = std::async(std::launch::async, [context, all = std::move(waiting)] {
    try {
      announce(*context.threads, all);
      for (const Waiting& one : all) {
        one.block->saved_keys->need(*context.threads, one.ranges);
        one.block->saved_values->need(*context.threads, one.ranges);
      }
    } catch (const Error&) {
      // Whoever needs what could not be read is told then.
    }
  });
  return true;
}

}  // namespace kinora

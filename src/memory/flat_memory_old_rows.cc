// Old rows of a flat memory in a file: what a layer has beyond the rows that may stay in memory is
// written, page by page, and becomes a block like that of a saved memory, with addresses for all of
// it and bytes for what was fetched. One such block grows as long as nobody else shares it.
#include <algorithm>
#include <numeric>
#include <utility>

#include "memory/flat_memory.h"

namespace kinora {

std::unique_ptr<SavedBytes> FlatMemory::waiting(const std::vector<RowFile::Page>& pages) const {
  auto read = [file = file_, pages](int64_t first, int64_t count, std::byte* out) {
    file->read(pages, first, count, out);
  };
  return std::make_unique<SavedBytes>(std::ssize(pages) * RowFile::page, RowFile::page,
                                      std::move(read));
}

void FlatMemory::put_away(Layer& layer) {
  settle(layer);
  for (const Part& part : layer.parts) give_up(part);
  if (layer.parts.empty() || layer.parts.back().frozen) return;
  Part& own = layer.parts.back();
  // Rows that fill whole pages; half of what may stay is left here, for the newest frames.
  const int64_t step = RowFile::page / std::gcd(RowFile::page, row_bytes_);
  if (own.rows <= host_rows_) return;
  const int64_t rows = (own.rows - host_rows_ / 2) / step * step;
  if (rows == 0) return;
  if (file_ == nullptr) file_ = std::make_shared<RowFile>();
  Block& from = *own.block;
  const auto bytes = static_cast<size_t>(rows * row_bytes_);
  const auto key_pages = file_->write({from.keys.data(), bytes});
  const auto value_pages = file_->write({from.values.data(), bytes});

  auto old = std::make_shared<Block>();
  // A block of whole pages that was not cut can be gone on with.
  const bool goes_on = layer.parts.size() > 1 && !layer.parts.end()[-2].block->key_pages.empty() &&
                       layer.parts.end()[-2].rows == layer.parts.end()[-2].block->rows();
  if (goes_on) {
    const Block& before = *layer.parts.end()[-2].block;
    old->key_pages = before.key_pages;
    old->value_pages = before.value_pages;
    old->ordinals = before.ordinals;
    old->modalities = before.modalities;
    old->times = before.times;
  }
  const auto append = [&](auto& to, const auto& first, int64_t count) {
    to.insert(to.end(), first.begin(), first.begin() + count);
  };
  append(old->key_pages, key_pages, std::ssize(key_pages));
  append(old->value_pages, value_pages, std::ssize(value_pages));
  append(old->ordinals, from.ordinals, rows);
  append(old->modalities, from.modalities, rows);
  append(old->times, from.times, rows);
  old->saved_keys = waiting(old->key_pages);
  old->saved_values = waiting(old->value_pages);

  // What stays moves to the front.
  const auto shift = [&](auto& list) { list.erase(list.begin(), list.begin() + rows); };
  const auto left = static_cast<size_t>((own.rows - rows) * row_bytes_);
  std::copy_n(from.keys.data() + bytes, left, from.keys.data());
  std::copy_n(from.values.data() + bytes, left, from.values.data());
  shift(from.ordinals);
  shift(from.modalities);
  shift(from.times);
  from.keys.resize(left);
  from.values.resize(left);
  own.rows -= rows;

  const int64_t all = old->rows();
  if (goes_on) {
    layer.parts.end()[-2] = {std::move(old), all, true};
  } else {
    layer.parts.insert(layer.parts.end() - 1, {std::move(old), all, true});
  }
}

}  // namespace kinora

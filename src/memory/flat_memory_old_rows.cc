// Old rows of a flat memory. Rows beyond those that may stay on a GPU move to pinned host memory,
// where its kernels read them; rows beyond those that may stay in the host's memory are written to
// a file, page by page, and become a block like that of a saved memory, with addresses for all of
// it and bytes for what was fetched. Both kinds of block grow as long as nobody else does that.
#include <algorithm>
#include <future>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "memory/flat_memory.h"

namespace kinora {
namespace {

// Rows of one layer that may come to wait in the host's memory; addresses cost nothing.
constexpr int64_t most_host_rows = int64_t{1} << 26;

}  // namespace

std::unique_ptr<SavedBytes> FlatMemory::waiting(const std::vector<RowFile::Page>& pages) const {
  auto read = [file = file_, pages](int64_t first, int64_t count, std::byte* out) {
    file->read(pages, first, count, out);
  };
  return std::make_unique<SavedBytes>(std::ssize(pages) * RowFile::page, RowFile::page,
                                      std::move(read));
}

void FlatMemory::put_away(Layer& layer, bool frames) {
  settle(layer);
  for (const Part& part : layer.parts) give_up(part);
  // A question does not wait for rows that leave: those that come next see to it.
  if (!device_.is_cpu()) leave_gpu(layer, frames ? tiers_.gpu : 2 * tiers_.gpu);
  if (tiers_.host == 0) return;
  // Of rows in the host's memory: on a CPU the own ones, on a GPU the newest that have left it.
  for (size_t place = layer.parts.size(); place-- > 0;) {
    const Part& part = layer.parts[place];
    if (!part.block->device().is_cpu() || part.block->saved_keys) continue;
    if (part.block->host || !part.frozen) write_oldest(layer, place);
    return;
  }
}

// All but the newest half of what may stay, whoever shares it, is copied to the host.
void FlatMemory::leave_gpu(Layer& layer, int64_t most) {
  int64_t here = 0;
  for (const Part& part : layer.parts) {
    if (part.block->device() == device_) here += part.rows;
  }
  if (tiers_.gpu == 0 || here <= most) return;
  int64_t leaving = here - tiers_.gpu / 2;

  size_t place = 0;  // of the first part that is still here
  while (layer.parts[place].block->device() != device_) ++place;
  auto old = std::make_shared<Block>();
  bool goes_on = false;
  if (place > 0 && layer.parts[place - 1].block->host) {
    Part& before = layer.parts[place - 1];
    // What was cut off may be written over, unless others have it.
    if (before.block->host.use_count() == 1) before.block->host->rows = before.rows;
    goes_on = before.block->host->rows == before.rows;
    if (goes_on) {
      old->host = before.block->host;
      old->describe(*before.block, 0, before.rows);
    }
  }
  if (!goes_on) {
    const auto limit = static_cast<size_t>(most_host_rows * row_bytes_);
    old->host = std::make_shared<HostRows>();
    old->host->keys = Growable::pinned(limit);
    old->host->values = Growable::pinned(limit);
  }
  HostRows& to = *old->host;
  to.wait();
  to.next = leaving;
  std::vector<Part> left;  // of those that are here
  for (size_t i = place; i < layer.parts.size(); ++i) {
    Part& part = layer.parts[i];
    const int64_t moved = std::min(part.rows, leaving);
    leaving -= moved;
    if (moved > 0) {
      const auto at = static_cast<size_t>(to.rows * row_bytes_);
      const auto bytes = static_cast<size_t>(moved * row_bytes_);
      to.keys.resize(at + bytes);
      to.values.resize(at + bytes);
      to.keys.copy_in(at, part.block->key_bytes(), device_, bytes);
      to.values.copy_in(at, part.block->value_bytes(), device_, bytes);
      to.rows += moved;
      old->describe(*part.block, 0, moved);
    }
    if (moved == part.rows) continue;
    if (moved > 0) {  // what stays is copied to a block that begins with it
      std::shared_ptr<Block> rest = new_block(part.rows - moved);
      const auto bytes = static_cast<size_t>((part.rows - moved) * row_bytes_);
      rest->keys.resize(bytes);
      rest->values.resize(bytes);
      const int64_t skipped = moved * row_bytes_;
      copy_bytes(rest->keys.data(), device_, part.block->key_bytes() + skipped, device_, bytes);
      copy_bytes(rest->values.data(), device_, part.block->value_bytes() + skipped, device_, bytes);
      rest->describe(*part.block, moved, part.rows - moved);
      part = {std::move(rest), part.rows - moved, false};
    }
    left.push_back(std::move(part));
  }
  for (size_t i = 0; i + 1 < left.size(); ++i) left[i].frozen = true;  // only the last one grows
  layer.parts.resize(goes_on ? place - 1 : place);
  const int64_t rows = to.rows;
  layer.parts.push_back({std::move(old), rows, true});
  layer.parts.insert(layer.parts.end(), std::make_move_iterator(left.begin()),
                     std::make_move_iterator(left.end()));
}

// Rows leave some groups' worth at a time, and pinning memory for them takes longer than copying
// them. So it begins when the last ones have left, beside everything else.
void FlatMemory::make_room_ahead() {
  std::vector<std::pair<HostRows*, size_t>> wanted;  // and how many bytes
  for (const Layer& layer : layers_) {
    for (const Part& part : layer.parts) {
      HostRows* const rows = part.block->host.get();
      if (rows == nullptr || rows->next == 0) continue;
      const int64_t in_all = rows->rows + std::exchange(rows->next, 0);
      wanted.emplace_back(rows, static_cast<size_t>(in_all * row_bytes_));
    }
  }
  if (wanted.empty()) return;
  // Whoever uses the rows next, or lets go of them, waits. Whether there was enough memory shows
  // when rows come.
  const auto make_room = [wanted] {
    for (const auto& [rows, bytes] : wanted) {
      try {
        rows->keys.reserve_pinned(bytes);
        rows->values.reserve_pinned(bytes);
      } catch (const Error&) {
        return;
      }
    }
  };
  const std::shared_future<void> done = std::async(std::launch::async, make_room).share();
  for (const auto& [rows, bytes] : wanted) rows->growing = done;
}

// Of a part in the host's memory: rows that fill whole pages; half of what may stay is left.
void FlatMemory::write_oldest(Layer& layer, size_t place) {
  Part& part = layer.parts[place];
  const int64_t step = RowFile::page / std::gcd(RowFile::page, row_bytes_);
  if (part.rows <= tiers_.host) return;
  const int64_t rows = (part.rows - tiers_.host / 2) / step * step;
  if (rows == 0) return;
  if (file_ == nullptr) file_ = std::make_shared<RowFile>();
  const Block& from = *part.block;
  const auto bytes = static_cast<size_t>(rows * row_bytes_);
  const auto key_pages = file_->write({from.key_bytes(), bytes});
  const auto value_pages = file_->write({from.value_bytes(), bytes});

  auto old = std::make_shared<Block>();
  // A block of whole pages that was not cut can be gone on with.
  const bool goes_on = place > 0 && !layer.parts[place - 1].block->key_pages.empty() &&
                       layer.parts[place - 1].rows == layer.parts[place - 1].block->rows();
  if (goes_on) {
    const Block& before = *layer.parts[place - 1].block;
    old->key_pages = before.key_pages;
    old->value_pages = before.value_pages;
    old->describe(before, 0, before.rows());
  }
  old->key_pages.insert(old->key_pages.end(), key_pages.begin(), key_pages.end());
  old->value_pages.insert(old->value_pages.end(), value_pages.begin(), value_pages.end());
  old->describe(from, 0, rows);
  old->saved_keys = waiting(old->key_pages);
  old->saved_values = waiting(old->value_pages);

  const int64_t kept = part.rows - rows;
  const auto left = static_cast<size_t>(kept * row_bytes_);
  if (from.host) {  // others may be reading it, so what stays is copied
    auto rest = std::make_shared<Block>();
    rest->host = std::make_shared<HostRows>();
    const auto limit = static_cast<size_t>(most_host_rows * row_bytes_);
    const auto copy = [&](Growable& to, const Growable& source) {
      to = Growable::pinned(limit);
      to.resize(left);
      std::copy_n(source.data() + bytes, left, to.data());
    };
    copy(rest->host->keys, from.host->keys);
    copy(rest->host->values, from.host->values);
    rest->host->rows = kept;
    rest->describe(from, rows, kept);
    part = {std::move(rest), kept, true};
  } else {  // what stays moves to the front
    Block& own = *part.block;
    std::copy_n(own.keys.data() + bytes, left, own.keys.data());
    std::copy_n(own.values.data() + bytes, left, own.values.data());
    own.forget_first(rows);
    own.keys.resize(left);
    own.values.resize(left);
    part.rows = kept;
  }

  const int64_t all = old->rows();
  if (goes_on) {
    layer.parts[place - 1] = {std::move(old), all, true};
  } else {
    const auto at = layer.parts.begin() + static_cast<int64_t>(place);
    layer.parts.insert(at, {std::move(old), all, true});
  }
}

}  // namespace kinora

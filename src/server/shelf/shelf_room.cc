// Memory of the shelf: who may take how much, and what goes when it is short.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "server/api_error.h"
#include "server/shelf/shelf_entries.h"

namespace kinora::server {

Shelf::Reservation::Reservation(Shelf& shelf, int64_t bytes, const CancelToken& cancel)
    : shelf_(shelf) {
  std::unique_lock lock(shelf_.mutex_);
  if (bytes > shelf_.max_bytes_) {
    throw ApiError(400, "context_length_exceeded",
                   fmt::format("this needs {} bytes of keys and values, the server has {} for "
                               "all; look at fewer or smaller frames",
                               bytes, shelf_.max_bytes_));
  }
  const auto begin = std::chrono::steady_clock::now();
  while (shelf_.used_ + bytes > shelf_.max_bytes_) {
    if (shelf_.evict_one()) continue;
    cancel.check();
    // Two that each hold what the other needs would wait for ever.
    if (std::chrono::steady_clock::now() - begin > shelf_.patience_) {
      ApiError busy(503, "memory_busy", "other requests use the memory that this one needs");
      busy.retry_after = 5;
      throw busy;
    }
    shelf_.changed_.wait_for(lock, std::chrono::milliseconds(50));
  }
  shelf_.used_ += bytes;
  bytes_ = bytes;
}

void Shelf::Reservation::resize(int64_t bytes) {
  const std::lock_guard lock(shelf_.mutex_);
  shelf_.used_ += bytes - bytes_;
  bytes_ = bytes;
  shelf_.changed_.notify_all();
}

bool Shelf::evict_one() {
  auto oldest_talk = talks_.end();
  for (auto it = talks_.begin(); it != talks_.end(); ++it) {
    if (oldest_talk == talks_.end() || it->second->used_at < oldest_talk->second->used_at) {
      oldest_talk = it;
    }
  }
  auto oldest_base = bases_.end();
  for (auto it = bases_.begin(); it != bases_.end(); ++it) {
    const bool in_use = it->second.use_count() > 1 || !it->second->ready;
    if (in_use) continue;
    if (oldest_base == bases_.end() || it->second->used_at < oldest_base->second->used_at) {
      oldest_base = it;
    }
  }
  const bool has_talk = oldest_talk != talks_.end(), has_base = oldest_base != bases_.end();
  if (!has_talk && !has_base) return false;
  if (has_talk && (!has_base || oldest_talk->second->used_at < oldest_base->second->used_at)) {
    used_ -= oldest_talk->second->bytes;
    talks_.erase(oldest_talk);
  } else {
    used_ -= oldest_base->second->bytes;
    bases_.erase(oldest_base);
  }
  return true;
}

std::shared_ptr<void> Shelf::hold(int64_t bytes, const CancelToken& cancel) {
  return std::make_shared<Reservation>(*this, bytes, cancel);
}

void Shelf::forget(const std::string& media_key) {
  const std::lock_guard lock(mutex_);
  const auto about = [&](const std::vector<MediaPtr>& media) {
    return std::any_of(media.begin(), media.end(),
                       [&](const MediaPtr& one) { return one->key == media_key; });
  };
  std::erase_if(talks_, [&](const auto& entry) {
    const Talk& talk = *entry.second;
    const bool gone = about(talk.media) || (talk.base != nullptr && about(talk.base->media));
    if (gone) used_ -= talk.bytes;
    return gone;
  });
  std::erase_if(bases_, [&](const auto& entry) {
    const bool gone =
        entry.second->ready && entry.second.use_count() == 1 && about(entry.second->media);
    if (gone) used_ -= entry.second->bytes;
    return gone;
  });
}

Shelf::Report Shelf::report() const {
  const std::lock_guard lock(mutex_);
  Report report = report_;
  report.videos = std::ssize(bases_);
  report.talks = std::ssize(talks_);
  report.bytes = used_;
  report.max_bytes = max_bytes_;
  const auto add = [&](const MemoryBytes& bytes) {
    report.tiers.device += bytes.device;
    report.tiers.host += bytes.host;
    report.tiers.disk += bytes.disk;
  };
  for (const auto& [key, base] : bases_) add(base->tiers);
  for (const auto& [key, talk] : talks_) {
    add(talk->tiers);
    report.tiers.shared += talk->tiers.shared;
  }
  return report;
}

}  // namespace kinora::server

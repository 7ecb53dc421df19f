#include "server/media/media.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/file.h"
#include "base/files/content_key.h"
#include "server/api_error.h"
#include "server/http/http.h"
#include "server/media/base64.h"

namespace kinora::server {
namespace {

namespace fs = std::filesystem;

constexpr size_t most_uuids = 4096;

// A file or folder that goes with its last user.
std::shared_ptr<void> removing(const std::string& path) {
  return {nullptr, [path](void*) {
            std::error_code ignored;
            fs::remove_all(path, ignored);
          }};
}

std::string key_of(std::string_view kind, std::string_view bytes) {
  ContentKey key(kind);
  key.add(bytes.data(), bytes.size());
  return key.text();
}

std::string key_of_file(const std::string& path) {
  const auto file = real_files().map(path);
  const auto bytes = file->bytes();
  return key_of("bytes", {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

ApiError invalid_url(const std::string& param, const std::string& message) {
  return ApiError(400, "invalid_media", fmt::format("{}: {}", param, message), param);
}

bool within(const fs::path& inner, const fs::path& outer) {
  const auto [end, unused] = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  return end == outer.end();
}

}  // namespace

MediaStore::MediaStore(const MediaOptions& options, std::shared_ptr<MediaFetcher> fetcher)
    : options_(options), fetcher_(std::move(fetcher)) {
  for (const std::string& root : options.roots) {
    std::error_code error;
    const fs::path real = fs::canonical(root, error);
    if (error || !fs::is_directory(real)) {
      throw Error(ErrorKind::not_found, root + ": no such folder of media");
    }
    roots_.push_back(real);
  }
}

MediaPtr MediaStore::open(const std::string& url, const std::string& param,
                          const CancelToken& cancel) {
  const std::string_view text = url;
  if (text.starts_with("data:")) {
    const size_t comma = text.find(',');
    if (comma == std::string_view::npos) throw invalid_url(param, "a data: URL without a comma");
    const std::string_view head = text.substr(5, comma - 5);
    if (!head.ends_with(";base64")) throw invalid_url(param, "only base64 data: URLs are read");
    if (head.starts_with("video/jpeg") || head.starts_with("video/png")) {
      return keep_frames(text.substr(comma + 1), param);
    }
    return open_base64(text.substr(comma + 1), param);
  }
  if (text.starts_with("file://")) {
    HttpRequest target;  // for its percent-decoding
    if (!parse_target(text.substr(7), target)) throw invalid_url(param, "not a file: address");
    return open_path(target.path, param);
  }
  if (text.starts_with("/")) return open_path(url, param);
  if (text.starts_with("http://") || text.starts_with("https://")) {
    if (fetcher_ == nullptr) {
      throw ApiError(403, "media_not_allowed",
                     param + ": this server does not fetch from addresses; send the bytes", param);
    }
    std::string path = join_path(options_.directory, "kinora-fetch-XXXXXX");
    const int made = ::mkostemp(path.data(), O_CLOEXEC);
    if (made < 0) throw ApiError(507, "no_space", "no temporary file can be made");
    ::close(made);
    const std::shared_ptr<void> guard = removing(path);
    fetcher_->fetch(url, path, cancel);
    const std::string key = key_of_file(path);
    return known_or(key, [&] {
      const std::string kept = path + ".media";
      fs::rename(path, kept);
      return Media{key, url, kept, 0, static_cast<int64_t>(fs::file_size(kept)), removing(kept)};
    });
  }
  throw invalid_url(param, "write data:, file: or, where the server allows it, http(s)://");
}

MediaPtr MediaStore::open_base64(std::string_view text, const std::string& param) {
  const auto bytes = decode_base64(text);
  if (!bytes) throw invalid_url(param, "this is not base64");
  if (bytes->empty()) throw invalid_url(param, "there are no bytes in it");
  return keep_bytes(*bytes, param);
}

template <typename Make>
MediaPtr MediaStore::known_or(const std::string& key, const Make& make) {
  const std::lock_guard lock(mutex_);
  MediaPtr media = by_key_[key].lock();
  if (media == nullptr) {
    media = std::make_shared<const Media>(make());
    by_key_[key] = media;
  }
  note(media);
  return media;
}

void MediaStore::note(const MediaPtr& media) {
  recent_.remove(media);
  recent_.push_front(media);
  int64_t bytes = 0;
  auto end = recent_.begin();
  while (end != recent_.end() && (end == recent_.begin() || bytes < options_.max_kept_bytes)) {
    bytes += (*end)->bytes;
    ++end;
  }
  recent_.erase(end, recent_.end());
  std::erase_if(by_key_, [](const auto& known) { return known.second.expired(); });
}

MediaPtr MediaStore::keep_bytes(std::string_view bytes, const std::string& name) {
  const std::string key = key_of("bytes", bytes);
  return known_or(key, [&] {
    const std::string path = join_path(options_.directory, "media-" + key);
    real_files().write(path, bytes);
    return Media{key, name, path, 0, std::ssize(bytes), removing(path)};
  });
}

MediaPtr MediaStore::keep_frames(std::string_view list, const std::string& param) {
  std::vector<std::string> frames;
  for (std::string_view rest = list; !rest.empty();) {
    const size_t end = std::min(rest.find(','), rest.size());
    const auto bytes = decode_base64(rest.substr(0, end));
    if (!bytes || bytes->empty()) {
      throw invalid_url(param, fmt::format("frame {} is not base64", frames.size()));
    }
    frames.push_back(*bytes);
    if (std::ssize(frames) > options_.max_frames) {
      throw invalid_url(param, fmt::format("more than {} frames", options_.max_frames));
    }
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  if (frames.empty()) throw invalid_url(param, "there are no frames in it");
  ContentKey content("frames");
  int64_t bytes = 0;
  for (const std::string& frame : frames) {
    content.add(frame.data(), frame.size());
    bytes += std::ssize(frame);
  }
  const std::string key = content.text();
  return known_or(key, [&] {
    const std::string folder = join_path(options_.directory, "frames-" + key);
    fs::create_directories(folder);
    const std::shared_ptr<void> keep = removing(folder);
    for (size_t i = 0; i < frames.size(); ++i) {
      const bool png = frames[i].starts_with("\x89PNG");
      real_files().write(join_path(folder, fmt::format("{:06}.{}", i, png ? "png" : "jpg")),
                         frames[i]);
    }
    return Media{key, param, folder, std::ssize(frames), bytes, keep};
  });
}

MediaPtr MediaStore::take_file(const std::string& path, const std::string& name) {
  const std::shared_ptr<void> keep = removing(path);
  const std::string key = key_of_file(path);
  return known_or(key, [&] {
    return Media{key, name, path, 0, static_cast<int64_t>(fs::file_size(path)), keep};
  });
}

MediaPtr MediaStore::open_path(const std::string& path, const std::string& param) {
  const ApiError refusal(403, "media_not_allowed",
                         param + ": local files are read only inside the server's media folders",
                         param);
  if (roots_.empty()) throw refusal;
  std::error_code error;
  const fs::path real = fs::canonical(path, error);  // without links
  const bool inside =
      !error && std::any_of(roots_.begin(), roots_.end(),
                            [&](const fs::path& root) { return within(real, root); });
  // What lies outside is refused alike whether it is there or not.
  if (!inside) throw refusal;
  // Held open, so that what was checked is what is read.
  const int descriptor = ::open(real.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  struct stat status {};
  if (descriptor < 0 || ::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    if (descriptor >= 0) ::close(descriptor);
    throw ApiError(400, "invalid_media", param + ": this is not a file", param);
  }
  const std::shared_ptr<void> keep(nullptr, [descriptor](void*) { ::close(descriptor); });
  const std::string opened = fmt::format("/proc/self/fd/{}", descriptor);
  if (fs::read_symlink(opened, error) != real || error) throw refusal;
  const std::string identity =
      fmt::format("{} {} {} {} {}.{}", real.string(), status.st_dev, status.st_ino, status.st_size,
                  status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
  const std::string key = key_of("file", identity);
  return known_or(key, [&] { return Media{key, real.filename().string(), opened, 0, 0, keep}; });
}

void MediaStore::remember(const std::string& uuid, const MediaPtr& media) {
  if (uuid.empty()) return;
  const std::lock_guard lock(mutex_);
  std::erase_if(by_uuid_, [](const auto& known) { return known.second.expired(); });
  if (by_uuid_.size() >= most_uuids) by_uuid_.erase(by_uuid_.begin());
  by_uuid_[uuid] = media;
}

MediaPtr MediaStore::find(const std::string& uuid) {
  const std::lock_guard lock(mutex_);
  if (const auto found = by_uuid_.find(uuid); found != by_uuid_.end()) {
    MediaPtr media = found->second.lock();
    if (media != nullptr) note(media);
    return media;
  }
  const auto found = by_key_.find(uuid);
  return found == by_key_.end() ? nullptr : found->second.lock();
}

}  // namespace kinora::server

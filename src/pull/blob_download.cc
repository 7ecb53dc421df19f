#include "pull/blob_download.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <optional>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/files/errno_kind.h"
#include "pull/hash.h"

namespace kinora {
namespace {

[[noreturn]] void refuse_file(const std::string& path) {
  const int problem = errno;
  throw Error(kind_of_errno(problem),
              fmt::format("cannot write {}: {}", path, std::strerror(problem)));
}

void make_folder_of(const std::string& path) {
  std::error_code failure;
  const auto folder = std::filesystem::path(path).parent_path();
  std::filesystem::create_directories(folder, failure);
  if (failure) {
    throw Error(ErrorKind::not_found,
                fmt::format("cannot make {}: {}", folder.string(), failure.message()));
  }
}

class OpenFile {
 public:
  OpenFile(const std::string& path, int flags) : file_(::open(path.c_str(), flags, 0666)) {
    if (file_ < 0) refuse_file(path);
  }
  ~OpenFile() { ::close(file_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int get() const { return file_; }

 private:
  int file_;
};

// Held until the object goes.
class Lock {
 public:
  Lock(const std::string& path, const std::function<bool()>& stopped)
      : file_((make_folder_of(path), path), O_RDWR | O_CREAT | O_CLOEXEC) {
    while (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
      if (stopped()) throw Error(ErrorKind::cancelled, "cancelled");
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }

 private:
  OpenFile file_;
};

bool is_complete(const std::string& path, int64_t bytes) {
  struct ::stat found {};
  return ::stat(path.c_str(), &found) == 0 && S_ISREG(found.st_mode) && found.st_size == bytes;
}

}  // namespace

// What is there of a file so far, and its hash.
class BlobDownload::Part {
 public:
  Part(const HubFile& file, const std::string& path)
      : expected_(file), path_(path), file_(path, O_RDWR | O_CREAT | O_CLOEXEC) {
    restart_hash();
    // What an earlier run left is hashed as if it came now.
    std::vector<char> buffer(size_t{1} << 20);
    while (true) {
      const ssize_t got = ::read(file_.get(), buffer.data(), buffer.size());
      if (got < 0) refuse_file(path_);
      if (got == 0) break;
      bytes_ += got;
      if (hash_) hash_->add({buffer.data(), static_cast<size_t>(got)});
    }
    if (bytes_ > expected_.bytes) restart();
  }

  int64_t bytes() const { return bytes_; }

  void restart() {
    if (::ftruncate(file_.get(), 0) != 0 || ::lseek(file_.get(), 0, SEEK_SET) != 0) {
      refuse_file(path_);
    }
    bytes_ = 0;
    restart_hash();
  }

  void append(std::string_view data) {
    if (bytes_ + static_cast<int64_t>(data.size()) > expected_.bytes) {
      throw Error(ErrorKind::bad_input,
                  fmt::format("{} is longer than the {} bytes that the hub promised",
                              expected_.path, expected_.bytes));
    }
    if (hash_) hash_->add(data);
    bytes_ += static_cast<int64_t>(data.size());
    while (!data.empty()) {
      const ssize_t written = ::write(file_.get(), data.data(), data.size());
      if (written < 0 && errno != EINTR) refuse_file(path_);
      if (written > 0) data.remove_prefix(static_cast<size_t>(written));
    }
  }

  // True where the content is what the hub promised, as far as its name tells.
  bool is_right() { return !hash_ || hash_->hex() == expected_.etag; }

  void keep() const {
    if (::fsync(file_.get()) != 0) refuse_file(path_);
  }

 private:
  void restart_hash() { hash_ = ContentHash::for_name(expected_.etag, expected_.bytes); }

  const HubFile& expected_;
  const std::string path_;
  OpenFile file_;
  std::optional<ContentHash> hash_;
  int64_t bytes_ = 0;
};

BlobDownload::BlobDownload(const HubSettings& settings, HttpClient& client, std::string name,
                           std::function<bool()> stopped, std::function<void(int64_t)> on_bytes)
    : settings_(settings),
      client_(client),
      name_(std::move(name)),
      stopped_(std::move(stopped)),
      on_bytes_(std::move(on_bytes)) {}

int64_t BlobDownload::fetch(const HubFile& file, Part& part) {
  int64_t fetched = 0;
  HttpRequest request;
  request.url = file.url;
  request.headers = settings_.headers();
  request.on_body = [&](std::string_view data, int64_t first) {
    if (first != part.bytes()) part.restart();
    if (first > part.bytes()) {
      throw Error(ErrorKind::bad_input, fmt::format("the hub sends {} from the middle", file.path));
    }
    part.append(data);
    fetched += static_cast<int64_t>(data.size());
    on_bytes_(part.bytes());
  };
  for (int attempt = 0; part.bytes() < file.bytes;) {
    const int64_t before = part.bytes();
    request.offset = before;
    const HttpResponse response = client_.run(request);
    if (part.bytes() == file.bytes) break;
    if (response.status == 416) {
      part.restart();
    } else if (response.status >= 400 && !worth_repeating(response)) {
      refuse_answer(settings_, response, name_, "");
    }
    attempt = part.bytes() > before ? 0 : attempt + 1;
    if (attempt == 0) continue;
    if (attempt == http_attempts) {
      if (response.status >= 400 || response.status == 0) {
        refuse_answer(settings_, response, name_, "");
      }
      throw Error(ErrorKind::network,
                  fmt::format("the connection breaks at byte {} of {} of {}; the same command goes "
                              "on from there",
                              part.bytes(), file.bytes, file.path));
    }
    wait_before_repeating(response, attempt - 1, stopped_);
  }
  return fetched;
}

int64_t BlobDownload::run(const HubFile& file, const BlobPlaces& places) {
  make_folder_of(places.blob);
  const Lock lock(places.lock, stopped_);
  if (is_complete(places.blob, file.bytes)) {
    on_bytes_(file.bytes);
    return 0;
  }
  int64_t fetched = 0;
  bool again = false;
  do {
    Part part(file, places.incomplete);
    const bool resumed = part.bytes() > 0;
    on_bytes_(part.bytes());
    fetched += fetch(file, part);
    if (part.is_right()) {
      part.keep();
      break;
    }
    std::filesystem::remove(places.incomplete);
    // What an earlier run left may have been another file's; a second wrong one is the hub's.
    if (again || !resumed) {
      throw Error(ErrorKind::bad_input,
                  fmt::format("{} of {} came damaged: its hash is not {}; try again", file.path,
                              name_, file.etag));
    }
    again = true;
  } while (again);
  std::error_code failure;
  std::filesystem::rename(places.incomplete, places.blob, failure);
  if (failure) {
    throw Error(ErrorKind::resource,
                fmt::format("cannot rename {}: {}", places.incomplete, failure.message()));
  }
  return fetched;
}

}  // namespace kinora

#include "video/source/spool.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/files/errno_kind.h"
#include "video/source/fence.h"
#include "video/source/pipe_input.h"

namespace kinora {

namespace {

constexpr size_t block_bytes = 1 << 20;

class SpoolFile {
 public:
  explicit SpoolFile(const std::string& wanted_directory) {
    std::string directory = wanted_directory;
    if (directory.empty()) {
      const char* system = std::getenv("TMPDIR");
      directory = system != nullptr && *system != 0 ? system : "/var/tmp";
    }
    std::string path = join_path(directory, "kinora-video-XXXXXX");
    descriptor_ = mkostemp(path.data(), O_CLOEXEC);
    if (descriptor_ < 0) {
      throw Error(kind_of_errno(errno), fmt::format("{}: no temporary file can be made there ({})",
                                                    directory, std::strerror(errno)));
    }
    unlink(path.c_str());
  }
  ~SpoolFile() { close(descriptor_); }
  SpoolFile(const SpoolFile&) = delete;
  SpoolFile& operator=(const SpoolFile&) = delete;

  void write(const uint8_t* bytes, size_t count) {
    while (count > 0) {
      const ssize_t done = ::write(descriptor_, bytes, count);
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) {
        throw Error(ErrorKind::resource, fmt::format("the temporary file cannot be written ({}): "
                                                     "free space or name another directory",
                                                     std::strerror(errno)));
      }
      bytes += done;
      count -= static_cast<size_t>(done);
    }
  }

  // Can be opened again and again while this object lives.
  std::string url() const { return fmt::format("file:/proc/self/fd/{}", descriptor_); }

  bool starts_with(std::string_view text) const {
    std::string head(text.size(), 0);
    const ssize_t got = pread(descriptor_, head.data(), head.size(), 0);
    return got == static_cast<ssize_t>(text.size()) && head == text;
  }

 private:
  int descriptor_ = -1;
};

// Copies until `read` gives 0. Below 0 is an FFmpeg error.
std::shared_ptr<SpoolFile> keep(const std::string& name, const OpenOptions& options, Watch& watch,
                                const std::function<int(uint8_t*, int)>& read, int64_t expected) {
  auto file = std::make_shared<SpoolFile>(options.spool_directory);
  std::vector<uint8_t> block(block_bytes);
  int64_t total = 0;
  while (true) {
    options.cancel.check();
    watch.allow(options.stall_timeout);
    const int got = read(block.data(), static_cast<int>(block.size()));
    if (got == 0 || got == AVERROR_EOF) break;
    if (got < 0) {
      options.cancel.check();
      throw Error(ErrorKind::network,
                  fmt::format("{}: no more data came after {} bytes ({})", name, total,
                              got == AVERROR_EXIT ? "silent for too long" : ffmpeg_error(got)));
    }
    total += got;
    if (total > options.limits.max_spool_bytes) {
      throw Error(ErrorKind::resource,
                  fmt::format("{}: longer than {} bytes: read it live, or raise the limits{}", name,
                              options.limits.max_spool_bytes, options.limits.how_to_raise));
    }
    file->write(block.data(), static_cast<size_t>(got));
    if (options.progress != nullptr) options.progress->update("download", total, expected);
  }
  if (total == 0) throw Error(ErrorKind::bad_input, fmt::format("{}: nothing came from it", name));
  return file;
}

}  // namespace

Origin spool_pipe(int descriptor, const std::string& name, const OpenOptions& options) {
  Watch watch(options.cancel);
  PipeInput pipe(descriptor, watch, options.stall_timeout);
  const auto file = keep(
      name, options, watch, [&](uint8_t* bytes, int size) { return pipe.read(bytes, size); }, 0);
  Origin origin;
  origin.name = name;
  origin.url = file->url();
  origin.keep = file;
  return origin;
}

Origin spool_url(const std::string& url, const OpenOptions& options) {
  Watch watch(options.cancel);
  watch.allow(options.open_timeout);
  const AVIOInterruptCB ask{&Watch::ask, &watch};
  AVIOContext* opened = nullptr;
  AVDictionary* settings = nullptr;
  av_dict_set(&settings, "protocol_whitelist", Fence::protocols(), 0);
  const int result = avio_open2(&opened, url.c_str(), AVIO_FLAG_READ, &ask, &settings);
  av_dict_free(&settings);
  const OpenedInputPtr input(opened);
  options.cancel.check();
  if (result < 0) {
    const bool missing = result == AVERROR_HTTP_NOT_FOUND;
    throw Error(
        missing ? ErrorKind::not_found : ErrorKind::network,
        fmt::format("{}: {}", url, result == AVERROR_EXIT ? "no answer" : ffmpeg_error(result)));
  }
  const int64_t expected = std::max<int64_t>(0, avio_size(input.get()));
  const auto file = keep(
      url, options, watch,
      [&](uint8_t* bytes, int size) { return avio_read_partial(input.get(), bytes, size); },
      expected);
  Origin origin;
  origin.name = url;
  if (file->starts_with("#EXTM3U")) {
    origin.url = url;
    origin.remote = true;
    return origin;
  }
  origin.url = file->url();
  origin.keep = file;
  return origin;
}

}  // namespace kinora

#include "pull/pull.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <filesystem>
#include <mutex>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "hub/cache.h"
#include "pull/blob_download.h"

namespace kinora {
namespace {

namespace fs = std::filesystem;

// Weights in forms that kinora does not read; published beside safetensors more often than not.
constexpr std::array other_weights = {"*.bin",      "*.pt",   "*.pth",      "*.h5",   "*.msgpack",
                                      "*.ot",       "*.onnx", "*.tflite",   "*.gguf", "*.onnx_data",
                                      "original/*", "onnx/*", "openvino/*", "*.ckpt"};

bool matches(const std::string& path, const std::string& glob) {
  return ::fnmatch(glob.c_str(), path.c_str(), 0) == 0;
}

// Runs `work` for 0 … count − 1 on several threads. The first error stops the others and is thrown.
class Workers {
 public:
  Workers(int threads, const CancelToken& cancel) : threads_(threads), cancel_(cancel) {}

  bool stopped() const { return failed_.load() || cancel_.cancelled(); }

  template <typename Work>
  void run(size_t count, const Work& work) {
    std::atomic<size_t> next = 0;
    std::mutex mutex;
    std::exception_ptr first;
    const auto loop = [&] {
      try {
        for (size_t i = next++; i < count && !stopped(); i = next++) work(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
        failed_ = true;
      }
    };
    {
      std::vector<std::jthread> team;
      const size_t wanted = std::min(count, static_cast<size_t>(std::max(1, threads_)));
      for (size_t i = 0; i < wanted; ++i) team.emplace_back(loop);
    }
    if (first) std::rethrow_exception(first);
    cancel_.check();
  }

 private:
  const int threads_;
  const CancelToken& cancel_;
  std::atomic<bool> failed_ = false;
};

// Bytes of all files together, told as they come.
class Tally {
 public:
  Tally(size_t files, int64_t total, Progress* progress)
      : there_(files, 0), total_(total), progress_(progress) {}

  void set(size_t file, int64_t bytes) {
    const std::lock_guard lock(mutex_);
    there_[file] = bytes;
    if (progress_ == nullptr) return;
    progress_->update("download", std::accumulate(there_.begin(), there_.end(), int64_t{0}),
                      total_);
  }

 private:
  std::mutex mutex_;
  std::vector<int64_t> there_;
  const int64_t total_;
  Progress* progress_;
};

BlobPlaces places_of(const HubCache& cache, const std::string& name, const std::string& etag) {
  BlobPlaces places;
  places.blob = join_path(cache.folder(name), "blobs/" + etag);
  places.incomplete = places.blob + ".incomplete";
  places.lock =
      join_path(cache.directory(), ".locks/" + hub_folder_name(name) + "/" + etag + ".lock");
  return places;
}

// snapshots/COMMIT/a/b links to ../../../blobs/ETAG.
void link_file(const fs::path& snapshot, const HubFile& file) {
  const fs::path link = snapshot / file.path;
  const fs::path blob = snapshot.parent_path().parent_path() / "blobs" / file.etag;
  const fs::path target = blob.lexically_relative(link.parent_path());
  std::error_code failure;
  fs::create_directories(link.parent_path(), failure);
  std::error_code unread;
  if (fs::read_symlink(link, unread) == target && !unread) return;
  fs::remove(link, unread);
  if (!failure) fs::create_symlink(target, link, failure);
  if (failure) {
    throw Error(ErrorKind::not_found,
                fmt::format("cannot make {}: {}", link.string(), failure.message()));
  }
}

void check_space(const std::string& directory, int64_t needed) {
  std::error_code failure;
  const fs::space_info space = fs::space(directory, failure);
  if (failure || needed <= static_cast<int64_t>(space.available)) return;
  throw Error(ErrorKind::resource,
              fmt::format("{:.1f} GB are to come, but {} has room for {:.1f} GB",
                          static_cast<double>(needed) / 1e9, directory,
                          static_cast<double>(space.available) / 1e9));
}

int64_t bytes_to_come(const HubCache& cache, const std::string& name,
                      const std::vector<HubFile>& files) {
  int64_t needed = 0;
  for (const HubFile& file : files) {
    const BlobPlaces places = places_of(cache, name, file.etag);
    std::error_code ignored;
    if (fs::exists(places.blob, ignored)) continue;
    const auto there = fs::file_size(places.incomplete, ignored);
    needed += file.bytes - (ignored ? 0 : static_cast<int64_t>(there));
  }
  return needed;
}

}  // namespace

std::vector<std::string> wanted_files(const std::vector<std::string>& files,
                                      const std::vector<std::string>& include) {
  const bool has_safetensors = std::any_of(files.begin(), files.end(), [](const std::string& path) {
    return path.ends_with(".safetensors");
  });
  std::vector<std::string> wanted;
  for (const std::string& path : files) {
    const auto matched = [&](const std::string& glob) { return matches(path, glob); };
    const bool skipped =
        has_safetensors && std::any_of(other_weights.begin(), other_weights.end(), matched);
    const bool take =
        include.empty() ? !skipped : std::any_of(include.begin(), include.end(), matched);
    if (take) wanted.push_back(path);
  }
  return wanted;
}

PullResult pull(const PullOptions& options) {
  const HubSettings& settings = options.settings;
  if (!is_hub_name(options.name)) {
    throw Error(ErrorKind::usage, fmt::format("'{}' is not the name of a model; write ORG/NAME as "
                                              "on the hub's page",
                                              options.name));
  }
  if (options.revision.empty() || options.revision[0] == '/' ||
      options.revision.find("..") != std::string::npos) {
    throw Error(ErrorKind::usage, fmt::format("'{}' is not a revision; write a branch, a tag or a "
                                              "commit",
                                              options.revision));
  }
  if (settings.cache.empty()) {
    throw Error(ErrorKind::usage, "there is no place for models: set HOME or HF_HOME");
  }
  if (settings.offline) {
    throw Error(ErrorKind::network, "HF_HUB_OFFLINE forbids to fetch anything");
  }
  const HubCache cache(settings.cache);
  Workers workers(options.jobs, options.cancel);
  const auto stopped = [&] { return workers.stopped(); };

  HubRepository repository(settings, options.name, options.revision, stopped);
  const HubListing listing = repository.list();
  const std::vector<std::string> paths = wanted_files(listing.files, options.include);
  if (paths.empty()) {
    throw Error(ErrorKind::not_found, fmt::format("{} has no file that matches; it has {} files",
                                                  options.name, listing.files.size()));
  }
  std::vector<HubFile> files(paths.size());
  workers.run(paths.size(), [&](size_t i) {
    HubRepository asked(settings, options.name, options.revision, stopped);
    files[i] = asked.describe(listing.commit, paths[i]);
  });

  PullResult result;
  result.commit = listing.commit;
  const fs::path snapshot = fs::path(cache.folder(options.name)) / "snapshots" / listing.commit;
  result.snapshot = snapshot.string();
  result.files = static_cast<int64_t>(files.size());
  for (const HubFile& file : files) result.bytes += file.bytes;
  std::error_code failure;
  fs::create_directories(snapshot, failure);
  if (failure) {
    throw Error(ErrorKind::not_found,
                fmt::format("cannot make {}: {}", result.snapshot, failure.message()));
  }
  check_space(settings.cache, bytes_to_come(cache, options.name, files));

  // The largest first: what is left at the end is small.
  std::vector<size_t> order(files.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return files[a].bytes > files[b].bytes; });
  Tally tally(files.size(), result.bytes, options.progress);
  std::atomic<int64_t> fetched = 0;
  workers.run(files.size(), [&](size_t i) {
    const HubFile& file = files[order[i]];
    HttpClient client(stopped);
    BlobDownload download(settings, client, options.name, stopped,
                          [&](int64_t bytes) { tally.set(order[i], bytes); });
    fetched += download.run(file, places_of(cache, options.name, file.etag));
    link_file(snapshot, file);
  });
  result.fetched = fetched;
  // Last: a name stands for a commit once its files are there.
  if (options.revision != listing.commit) {
    const std::string ref = join_path(cache.folder(options.name), "refs/" + options.revision);
    fs::create_directories(fs::path(ref).parent_path(), failure);
    real_files().write(ref, listing.commit);
  }
  return result;
}

}  // namespace kinora

#include "video/index/index_cache.h"

#include <fmt/format.h>
#include <sys/stat.h>

extern "C" {
#include <libavcodec/version.h>
#include <libavformat/avformat.h>
}

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/files/content_key.h"

namespace kinora {

namespace {

constexpr std::string_view magic = "kinora index 2\n";
constexpr int64_t settled_nanoseconds = 1'000'000'000;
constexpr int64_t largest_file = int64_t{2} << 30;

class Writer {
 public:
  template <typename T>
  void put(const T& value) {
    static_assert(std::is_arithmetic_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put(std::string_view text) {
    put(static_cast<uint64_t>(text.size()));
    bytes_.append(text);
  }
  std::string& bytes() { return bytes_; }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  T get() {
    T value{};
    if (bytes_.size() < sizeof value) {
      whole_ = false;
      return value;
    }
    std::memcpy(&value, bytes_.data(), sizeof value);
    bytes_.remove_prefix(sizeof value);
    return value;
  }
  std::string_view text() {
    const auto size = get<uint64_t>();
    if (size > bytes_.size()) {
      whole_ = false;
      return {};
    }
    const std::string_view result = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return result;
  }
  bool whole() const { return whole_; }
  size_t left() const { return bytes_.size(); }

 private:
  std::string_view bytes_;
  bool whole_ = true;
};

constexpr size_t packet_bytes = 4 * sizeof(int64_t) + 3 * sizeof(int32_t) + 1;
constexpr size_t frame_bytes = sizeof(int32_t) + sizeof(double);

bool makes_sense(const VideoIndex& index) {
  const auto packets = static_cast<int64_t>(index.packets.size());
  for (const IndexedPacket& packet : index.packets) {
    if (packet.frame < -1 || packet.frame >= index.frames() || packet.start < -1 ||
        packet.start >= packets || packet.size < 0) {
      return false;
    }
  }
  for (size_t rank = 0; rank < index.frame_packet.size(); ++rank) {
    const int32_t packet = index.frame_packet[rank];
    if (packet < 0 || packet >= packets) return false;
    if (index.packet(packet).frame != static_cast<int32_t>(rank)) return false;
    if (!std::isfinite(index.times[rank])) return false;
    if (rank > 0 && index.times[rank] < index.times[rank - 1]) return false;
  }
  return index.frames() > 0 && std::isfinite(index.duration) && std::isfinite(index.fps) &&
         std::isfinite(index.start_offset) && index.reorder_depth >= 0;
}

}  // namespace

std::string pack_index(const VideoIndex& index, const std::string& identity) {
  Writer out;
  out.bytes().reserve(index.packets.size() * packet_bytes + index.times.size() * frame_bytes +
                      4096);
  out.bytes() += magic;
  out.put(std::string_view(identity));
  out.put(index.duration);
  out.put(index.fps);
  out.put(index.start_offset);
  out.put(static_cast<int32_t>(index.reorder_depth));
  out.put(static_cast<uint8_t>(index.repaired_times));
  out.put(static_cast<uint64_t>(index.packets.size()));
  out.put(static_cast<uint64_t>(index.frame_packet.size()));
  for (const IndexedPacket& packet : index.packets) {
    for (const int64_t value : {packet.pts, packet.raw_pts, packet.raw_dts, packet.position}) {
      out.put(value);
    }
    for (const int32_t value : {packet.size, packet.frame, packet.start}) out.put(value);
    out.put(static_cast<uint8_t>((packet.key ? 1 : 0) | (packet.disposable ? 2 : 0)));
  }
  for (const int32_t packet : index.frame_packet) out.put(packet);
  for (const double time : index.times) out.put(time);
  out.put(content_checksum(out.bytes()));
  return std::move(out.bytes());
}

std::optional<VideoIndex> unpack_index(std::string_view bytes, const std::string& identity) {
  if (bytes.size() < magic.size() + 8 || !bytes.starts_with(magic)) return {};
  const std::string_view body = bytes.substr(0, bytes.size() - 8);
  if (Reader(bytes.substr(body.size())).get<uint64_t>() != content_checksum(body)) return {};
  Reader in(body.substr(magic.size()));
  if (in.text() != identity) return {};
  VideoIndex index;
  index.duration = in.get<double>();
  index.fps = in.get<double>();
  index.start_offset = in.get<double>();
  index.reorder_depth = in.get<int32_t>();
  index.repaired_times = in.get<uint8_t>() != 0;
  const auto packets = in.get<uint64_t>();
  const auto frames = in.get<uint64_t>();
  const bool plausible = in.whole() && packets <= in.left() && frames <= packets &&
                         packets * packet_bytes + frames * frame_bytes == in.left();
  if (!plausible) return {};
  index.packets.resize(packets);
  for (IndexedPacket& packet : index.packets) {
    packet.pts = in.get<int64_t>();
    packet.raw_pts = in.get<int64_t>();
    packet.raw_dts = in.get<int64_t>();
    packet.position = in.get<int64_t>();
    packet.size = in.get<int32_t>();
    packet.frame = in.get<int32_t>();
    packet.start = in.get<int32_t>();
    const auto flags = in.get<uint8_t>();
    packet.key = (flags & 1) != 0;
    packet.disposable = (flags & 2) != 0;
  }
  index.frame_packet.resize(frames);
  for (int32_t& packet : index.frame_packet) packet = in.get<int32_t>();
  index.times.resize(frames);
  for (double& time : index.times) time = in.get<double>();
  if (!in.whole() || !makes_sense(index)) return {};
  return index;
}

IndexCache::IndexCache(std::string directory, int64_t max_bytes)
    : directory_(std::move(directory)), max_bytes_(max_bytes) {}

std::string IndexCache::identify(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return "";
  const int64_t changed = int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
  const int64_t now = std::chrono::duration_cast<std::chrono::nanoseconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count();
  if (now - changed < settled_nanoseconds) return "";
  std::error_code failed;
  const std::string real = std::filesystem::canonical(path, failed).string();
  if (failed) return "";
  return fmt::format("{} {} {} {} {} {} {}", real, static_cast<int64_t>(status.st_size), changed,
                     static_cast<uint64_t>(status.st_dev), static_cast<uint64_t>(status.st_ino),
                     avformat_version(), LIBAVCODEC_VERSION_INT);
}

std::string IndexCache::place_of(const std::string& path) const {
  std::error_code failed;
  const std::string real = std::filesystem::canonical(path, failed).string();
  return join_path(directory_, ContentKey(real).text() + ".index");
}

std::optional<VideoIndex> IndexCache::find(const std::string& path,
                                           const std::string& identity) const {
  if (identity.empty()) return {};
  const std::string place = place_of(path);
  try {
    if (!real_files().is_file(place)) return {};
    std::optional<VideoIndex> index =
        unpack_index(real_files().read(place, largest_file), identity);
    std::error_code ignored;
    if (index) {
      std::filesystem::last_write_time(place, std::filesystem::file_time_type::clock::now(),
                                       ignored);
    }
    return index;
  } catch (const Error&) {
    return {};
  }
}

void IndexCache::keep(const std::string& path, const std::string& identity,
                      const VideoIndex& index) const {
  // A file that changed meanwhile, or ended in an error, may change again.
  if (identity.empty() || index.ended_badly || identify(path) != identity) return;
  try {
    std::error_code ignored;
    std::filesystem::create_directories(directory_, ignored);
    real_files().write(place_of(path), pack_index(index, identity));
    prune();
  } catch (const std::exception&) {
    return;
  }
}

std::string default_index_cache() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0') {
    return join_path(cache, "kinora/index");
  }
  const char* home = std::getenv("HOME");
  return home != nullptr && *home != '\0' ? join_path(home, ".cache/kinora/index") : "";
}

void IndexCache::prune() const {
  struct Kept {
    std::filesystem::file_time_type used;
    int64_t bytes = 0;
    std::filesystem::path path;
  };
  std::vector<Kept> all;
  int64_t total = 0;
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(directory_, failed)) {
    if (entry.path().extension() != ".index") continue;
    const auto bytes = static_cast<int64_t>(entry.file_size(failed));
    all.push_back({entry.last_write_time(failed), bytes, entry.path()});
    total += bytes;
  }
  std::sort(all.begin(), all.end(), [](const Kept& a, const Kept& b) { return a.used < b.used; });
  for (const Kept& oldest : all) {
    if (total <= max_bytes_) return;
    std::filesystem::remove(oldest.path, failed);
    total -= oldest.bytes;
  }
}

}  // namespace kinora

#include "video/source/image_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <string_view>

#include "base/file.h"
#include "video/source/picture_header.h"

namespace kinora {

namespace {

constexpr int64_t ticks_per_second = 90000;

bool is_picture(std::string_view name) {
  constexpr std::array<std::string_view, 12> extensions = {".png", ".jpg", ".jpeg", ".webp",
                                                           ".bmp", ".tif", ".tiff", ".ppm",
                                                           ".pgm", ".jp2", ".tga",  ".avif"};
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return !name.starts_with('.') &&
         std::any_of(extensions.begin(), extensions.end(),
                     [&](std::string_view extension) { return lower.ends_with(extension); });
}

// Decoders hand it on to the picture, as that of JPEG does by itself.
void tell_orientation(AVPacket& packet) {
  if (packet.size <= 0) return;
  const Orientation turned = picture_orientation({packet.data, static_cast<size_t>(packet.size)});
  if (turned == Orientation{}) return;
  constexpr int32_t one = 1 << 16;
  const int32_t x = turned.mirrored_x ? -one : one, y = turned.mirrored_y ? -one : one;
  // Stored (x, y) is shown at (a x + c y, b x + d y); the numbers are a b u c d v x y w.
  const bool across = turned.transposed;
  const int32_t matrix[9] = {
      across ? 0 : x, across ? y : 0, 0, across ? x : 0, across ? 0 : y, 0, 0, 0, 1 << 30};
  uint8_t* room = av_packet_new_side_data(&packet, AV_PKT_DATA_DISPLAYMATRIX, sizeof matrix);
  if (room == nullptr) throw Error(ErrorKind::resource, "not enough memory for a picture");
  std::memcpy(room, matrix, sizeof matrix);
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Runs of digits compare as numbers.
bool natural_less(const std::string& a, const std::string& b) {
  size_t i = 0;
  size_t j = 0;
  while (i < a.size() && j < b.size()) {
    if (is_digit(a[i]) && is_digit(b[j])) {
      const size_t a_number = std::min(a.find_first_not_of('0', i), a.size());
      const size_t b_number = std::min(b.find_first_not_of('0', j), b.size());
      size_t a_end = a_number;
      size_t b_end = b_number;
      while (a_end < a.size() && is_digit(a[a_end])) ++a_end;
      while (b_end < b.size() && is_digit(b[b_end])) ++b_end;
      if (a_end - a_number != b_end - b_number) return a_end - a_number < b_end - b_number;
      const int order = a.compare(a_number, a_end - a_number, b, b_number, b_end - b_number);
      if (order != 0) return order < 0;
      i = a_end;
      j = b_end;
    } else {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i;
      ++j;
    }
  }
  if (a.size() - i != b.size() - j) return a.size() - i < b.size() - j;
  return a < b;
}

}  // namespace

std::vector<std::string> list_pictures(const std::string& folder) {
  std::vector<std::string> names;
  for (const std::string& name : real_files().list(folder)) {
    if (is_picture(name)) names.push_back(name);
  }
  if (names.empty()) {
    throw Error(ErrorKind::bad_input, fmt::format("{}: no pictures in this folder", folder));
  }
  std::sort(names.begin(), names.end(), natural_less);
  for (std::string& name : names) name = join_path(folder, name);
  return names;
}

VideoIndex folder_index(size_t pictures, double fps) {
  if (!(fps > 0 && fps <= 1e6)) {
    throw Error(
        ErrorKind::usage,
        fmt::format("a folder cannot play at {} pictures per second: it must be above 0", fps));
  }
  std::vector<PacketFacts> facts(pictures);
  const double ticks = static_cast<double>(ticks_per_second) / fps;
  for (size_t i = 0; i < pictures; ++i) {
    facts[i].pts = facts[i].dts = static_cast<int64_t>(static_cast<double>(i) * ticks);
    facts[i].duration = std::max<int64_t>(1, static_cast<int64_t>(ticks));
    facts[i].traits.start = true;
    facts[i].traits.disposable = true;
  }
  return build_index(facts, {1, ticks_per_second}, fps, false);
}

FolderFeed::FolderFeed(std::vector<std::string> pictures, const OpenOptions& options,
                       const CancelToken& cancel, const CancelToken& stop)
    : pictures_(std::move(pictures)), options_(options), cancel_(cancel), stop_(stop) {}

std::vector<NumberedPacket> FolderFeed::read(const KeyframeInterval& interval, int64_t& from,
                                             int64_t, int64_t) {
  std::vector<NumberedPacket> packets;
  Origin origin;
  origin.name = pictures_[static_cast<size_t>(interval.begin)];
  origin.url = "file:" + origin.name;
  Demuxer demuxer(origin, options_, cancel_, stop_, true);
  PacketPtr packet = make_packet();
  if (demuxer.read(*packet)) {
    tell_orientation(*packet);
    packets.push_back({interval.begin, std::move(packet)});
  }
  from = interval.end + 1;

  const AVCodecParameters& found = demuxer.parameters();
  const auto same = std::find_if(known_.begin(), known_.end(), [&](const ParametersPtr& known) {
    return known->codec_id == found.codec_id;
  });
  if (same == known_.end()) {
    known_.push_back(copy_parameters(found));
    current_ = known_.back().get();
  } else {
    current_ = same->get();
  }
  return packets;
}

}  // namespace kinora

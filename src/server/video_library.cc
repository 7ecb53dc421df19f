#include "server/video_library.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/file.h"
#include "base/files/content_key.h"
#include "draw/png_file.h"
#include "server/api_error.h"
#include "server/kept_folder.h"
#include "server/service.h"

namespace kinora::server {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t most_opened = 8;
constexpr const char* about_name = "about.json";
constexpr const char* bytes_name = "video";

LibraryVideo from_json(const json& value) {
  LibraryVideo video;
  video.id = value.at("id");
  video.name = value.at("name");
  video.created = value.at("created_at");
  video.bytes = value.at("bytes");
  video.duration = value.at("duration");
  video.fps = value.at("fps");
  video.frames = value.at("frames");
  video.width = value.at("width");
  video.height = value.at("height");
  video.codec = value.at("codec");
  video.container = value.at("container");
  video.picture = value.at("kind") == "image";
  return video;
}

}  // namespace

struct VideoLibrary::Entry : KeptFolder {
  LibraryVideo about;
};

json video_json(const LibraryVideo& video) {
  return {{"id", video.id},
          {"object", "video"},
          {"kind", video.picture ? "image" : "video"},
          {"name", video.name},
          {"created_at", video.created},
          {"bytes", video.bytes},
          {"duration", video.duration},
          {"fps", video.fps},
          {"frames", video.frames},
          {"width", video.width},
          {"height", video.height},
          {"codec", video.codec},
          {"container", video.container}};
}

VideoLibrary::VideoLibrary(const std::string& directory) : directory_(directory) {
  if (directory.empty()) return;
  make_library_folder(directory);
  std::error_code error;
  for (const auto& folder : fs::directory_iterator(directory)) {
    const std::string name = folder.path().filename().string();
    if (!name.starts_with("video-")) continue;
    try {
      auto entry = std::make_shared<Entry>();
      entry->folder = folder.path().string();
      entry->about = from_json(read_about(join_path(entry->folder, about_name)));
      if (entry->about.id == name) videos_[name] = entry;
    } catch (const std::exception&) {
      fs::remove_all(folder.path(), error);  // cut off while it was being written
    }
  }
}

LibraryVideo VideoLibrary::add(const std::string& file, bool move, const std::string& name,
                               const CancelToken& cancel) {
  if (directory_.empty()) {
    throw ApiError(403, "uploads_not_allowed", "this server keeps no videos");
  }
  ContentKey key("bytes");
  {
    const auto mapped = real_files().map(file);
    key.add(mapped->bytes().data(), mapped->bytes().size());
  }
  const std::string id = "video-" + key.text();
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = videos_.find(id); known != videos_.end()) return known->second->about;
  }
  OpenOptions options;
  options.cancel = cancel;
  LibraryVideo video;
  try {
    const std::unique_ptr<Video> opened = open_video(file, options);
    const VideoInfo& info = opened->info();
    video = {id,
             name,
             unix_seconds(),
             static_cast<int64_t>(fs::file_size(file)),
             info.duration,
             info.fps,
             info.frames,
             info.size.width,
             info.size.height,
             info.codec,
             info.container,
             info.still};
  } catch (const Error& error) {
    std::string text = error.what();
    for (size_t at = text.find(file); at != std::string::npos; at = text.find(file, at + 1)) {
      text.replace(at, file.size(), name);
    }
    if (error.kind() == ErrorKind::resource) throw ApiError(400, "media_too_large", text);
    throw Error(error.kind(), text, error.hint());
  }
  auto entry = std::make_shared<Entry>();
  entry->about = video;
  entry->folder = join_path(directory_, id);
  std::error_code error;
  fs::create_directories(entry->folder, error);
  const std::string target = join_path(entry->folder, bytes_name);
  if (move) fs::rename(file, target, error);
  if (!move || error) {
    error.clear();
    fs::copy_file(file, target, fs::copy_options::overwrite_existing, error);
  }
  if (error) {
    fs::remove_all(entry->folder, error);
    throw ApiError(507, "no_space", "the video cannot be kept: the disk may be full");
  }
  real_files().write(join_path(entry->folder, about_name), dump(video_json(video)));
  const std::lock_guard lock(mutex_);
  videos_[id] = entry;
  return video;
}

LibraryVideo VideoLibrary::add_file(const std::string& path, const std::string& name,
                                    const CancelToken& cancel) {
  return add(path, true, name, cancel);
}

LibraryVideo VideoLibrary::add_media(const Media& media, const std::string& name,
                                     const CancelToken& cancel) {
  if (media.frames > 0) {
    throw bad_request("url", "ready frames are no file; put them into a chat request");
  }
  return add(media.source, false, name, cancel);
}

std::vector<LibraryVideo> VideoLibrary::list() const {
  std::vector<LibraryVideo> all;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, entry] : videos_) all.push_back(entry->about);
  }
  std::stable_sort(all.begin(), all.end(), [](const LibraryVideo& a, const LibraryVideo& b) {
    return a.created > b.created;
  });
  return all;
}

LibraryVideo VideoLibrary::find(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = videos_.find(id);
  if (found == videos_.end()) {
    throw ApiError(404, "video_not_found", "there is no video " + id);
  }
  return found->second->about;
}

MediaPtr VideoLibrary::media(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = videos_.find(id);
  if (found == videos_.end()) return nullptr;
  const std::shared_ptr<Entry>& entry = found->second;
  return std::make_shared<const Media>(
      Media{id.substr(std::string_view("video-").size()), entry->about.name,
            join_path(entry->folder, bytes_name), 0, entry->about.bytes, entry});
}

void VideoLibrary::remove(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto found = videos_.find(id);
  if (found == videos_.end()) {
    throw ApiError(404, "video_not_found", "there is no video " + id);
  }
  // Without its description the folder is no video any more, even after a crash.
  std::error_code ignored;
  fs::remove(join_path(found->second->folder, about_name), ignored);
  found->second->deleted = true;
  videos_.erase(found);
  opened_.remove_if([&](const auto& one) { return one.first == id; });
}

std::string VideoLibrary::path_of(const std::string& id) const {
  find(id);
  return join_path(join_path(directory_, id), bytes_name);
}

std::shared_ptr<Video> VideoLibrary::open(const std::string& id) {
  const std::string path = path_of(id);
  {
    const std::lock_guard lock(mutex_);
    for (auto it = opened_.begin(); it != opened_.end(); ++it) {
      if (it->first != id) continue;
      opened_.splice(opened_.begin(), opened_, it);
      return it->second;
    }
  }
  const std::shared_ptr<Video> video = open_video(path);
  const std::lock_guard lock(mutex_);
  opened_.emplace_front(id, video);
  if (opened_.size() > most_opened) opened_.pop_back();
  return video;
}

std::string VideoLibrary::picture(const std::string& id, double time, int64_t side,
                                  const CancelToken& cancel) {
  const std::shared_ptr<Video> video = open(id);
  ReadOptions options;
  options.threads = 1;
  options.cancel = cancel;
  options.target_size = [side](FrameSize source, int64_t) {
    const double share =
        static_cast<double>(side) / static_cast<double>(std::max(source.width, source.height));
    const auto scaled = [&](int64_t length) {
      return std::max<int64_t>(1, std::llround(std::min(1.0, share) * static_cast<double>(length)));
    };
    return FrameSize{scaled(source.width), scaled(source.height)};
  };
  const double last = video->times().empty() ? 0 : video->times().back();
  FrameStream stream =
      video->read(video->sample(FrameChoice::at_times({std::clamp(time, 0.0, last)})), options);
  const auto group = stream.next();
  if (!group || group->pixels.size(0) == 0) {
    throw ApiError(404, "no_frame", "there is no frame at this time");
  }
  const Tensor& pixels = group->pixels;
  const auto width = static_cast<int>(pixels.size(2)), height = static_cast<int>(pixels.size(1));
  return encode_png(pixels.data<uint8_t>(), width, height, static_cast<size_t>(width) * 3, 6);
}

std::vector<Scene> VideoLibrary::scenes(const std::string& id, const CancelToken& cancel) {
  const std::shared_ptr<Video> video = open(id);
  const VideoInfo& info = video->info();
  if (info.still) return {{0, 0, 0}};
  constexpr int64_t most_frames = 240, width = 32, height = 18;
  ReadOptions options;
  options.cancel = cancel;
  options.target_size = [](FrameSize, int64_t) { return FrameSize{width, height}; };
  FrameStream stream =
      video->read(video->sample(FrameChoice::evenly(std::min(most_frames, info.frames))), options);
  std::vector<SmallFrame> frames;
  while (const auto group = stream.next()) {
    const int64_t size = width * height * 3;
    for (int64_t i = 0; i < group->pixels.size(0); ++i) {
      const uint8_t* pixels = group->pixels.data<uint8_t>() + i * size;
      frames.push_back({group->times[static_cast<size_t>(i)], {pixels, pixels + size}});
    }
  }
  return find_scenes(frames, info.duration);
}

}  // namespace kinora::server

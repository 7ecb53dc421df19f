#include "server/memory_library.h"

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "server/api_error.h"
#include "server/kept_folder.h"
#include "server/service.h"

namespace kinora::server {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* about_name = "about.json";
constexpr const char* file_name = "memory.kinora";

}  // namespace

struct MemoryLibrary::Entry : KeptFolder {
  SavedMemory about;
};

json memory_json(const SavedMemory& memory) {
  const MemoryFile& file = memory.file;
  json inputs = json::array();
  for (const MemoryFileInput& input : file.inputs) {
    inputs.push_back({{"kind", input.kind},
                      {"frames", input.frames},
                      {"from", input.from},
                      {"until", input.until},
                      {"tokens", input.tokens}});
  }
  return {{"id", memory.id},       {"object", "memory"},
          {"name", memory.name},   {"created_at", memory.created},
          {"bytes", file.bytes},   {"tokens", file.tokens},
          {"model", file.model},   {"system", file.system},
          {"memory", file.memory}, {"inputs", inputs}};
}

MemoryLibrary::MemoryLibrary(const std::string& directory) : directory_(directory) {
  if (directory.empty()) return;
  make_library_folder(directory);
  std::error_code error;
  for (const auto& folder : fs::directory_iterator(directory)) {
    const std::string name = folder.path().filename().string();
    if (!name.starts_with("memory-")) continue;
    const std::string about = join_path(folder.path().string(), about_name);
    if (!fs::exists(about)) {
      fs::remove_all(folder.path(), error);  // cut off while it was being written
      continue;
    }
    try {
      auto entry = std::make_shared<Entry>();
      entry->folder = folder.path().string();
      const json said = read_about(about);
      entry->about = {name, said.at("name"), said.at("created_at"),
                      describe_memory(join_path(entry->folder, file_name))};
      memories_[name] = entry;
    } catch (const std::exception&) {
      // Damaged, or of another version: it stays on disk for someone to look at.
    }
  }
}

SavedMemory MemoryLibrary::add(const std::string& name,
                               const std::function<MemoryFile(const std::string& path)>& write) {
  if (directory_.empty()) {
    throw ApiError(403, "uploads_not_allowed", "this server keeps no memories");
  }
  auto entry = std::make_shared<Entry>();
  entry->about.id = new_id("memory");
  entry->about.name = name;
  entry->about.created = unix_seconds();
  entry->folder = join_path(directory_, entry->about.id);
  entry->deleted = true;  // until all of it is there
  std::error_code error;
  fs::create_directories(entry->folder, error);
  if (error) throw ApiError(507, "no_space", "the memory cannot be kept: the disk may be full");
  entry->about.file = write(join_path(entry->folder, file_name));
  real_files().write(join_path(entry->folder, about_name),
                     dump({{"name", name}, {"created_at", entry->about.created}}));
  entry->deleted = false;
  const std::lock_guard lock(mutex_);
  memories_[entry->about.id] = entry;
  return entry->about;
}

std::vector<SavedMemory> MemoryLibrary::list() const {
  std::vector<SavedMemory> all;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, entry] : memories_) all.push_back(entry->about);
  }
  std::stable_sort(all.begin(), all.end(), [](const SavedMemory& a, const SavedMemory& b) {
    return a.created > b.created;
  });
  return all;
}

std::shared_ptr<MemoryLibrary::Entry> MemoryLibrary::entry(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = memories_.find(id);
  if (found == memories_.end()) {
    throw ApiError(404, "memory_not_found", "there is no memory " + id);
  }
  return found->second;
}

SavedMemory MemoryLibrary::find(const std::string& id) const { return entry(id)->about; }

MediaPtr MemoryLibrary::media(const std::string& id) const {
  const std::shared_ptr<Entry> found = entry(id);
  Media media{id, found->about.name, join_path(found->folder, file_name), 0, 0, found};
  media.memory = true;
  return std::make_shared<const Media>(std::move(media));
}

void MemoryLibrary::remove(const std::string& id) {
  const std::shared_ptr<Entry> found = entry(id);
  // Without its description the folder is no memory any more, even after a crash.
  std::error_code ignored;
  fs::remove(join_path(found->folder, about_name), ignored);
  found->deleted = true;
  const std::lock_guard lock(mutex_);
  memories_.erase(id);
}

}  // namespace kinora::server

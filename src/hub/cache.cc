#include "hub/cache.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "base/file.h"

namespace kinora {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view folder_prefix = "models--";

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Names in a directory, sorted; none where it cannot be read.
std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code failure;
  for (fs::directory_iterator at(directory, failure), end; !failure && at != end;
       at.increment(failure)) {
    names.push_back(at->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// What refs/REVISION says, without white space.
std::string read_ref(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return "";
  std::ifstream file(path);
  std::string text;
  file >> text;
  return text;
}

bool is_hex(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace

std::string hub_cache_directory() {
  if (const std::string cache = variable("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const std::string cache = variable("HUGGINGFACE_HUB_CACHE"); !cache.empty()) return cache;
  if (const std::string home = variable("HF_HOME"); !home.empty()) return join_path(home, "hub");
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) {
    return join_path(cache, "huggingface/hub");
  }
  const std::string user = variable("HOME");
  return user.empty() ? "" : join_path(user, ".cache/huggingface/hub");
}

bool is_hub_name(std::string_view text) {
  const auto is_part = [](std::string_view part) {
    return !part.empty() && part.size() <= 96 && part[0] != '.' && part[0] != '-' &&
           part.back() != '.' && part.back() != '-' && part.find("--") == std::string_view::npos &&
           part.find("..") == std::string_view::npos &&
           std::all_of(part.begin(), part.end(), [](char c) {
             return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                    c == '-' || c == '_' || c == '.';
           });
  };
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) return is_part(text);
  return is_part(text.substr(0, slash)) && is_part(text.substr(slash + 1));
}

std::string hub_folder_name(std::string_view name) {
  std::string folder(folder_prefix);
  for (const char c : name) {
    if (c == '/') {
      folder += "--";
    } else {
      folder += c;
    }
  }
  return folder;
}

std::string hub_name_of_folder(std::string_view folder) {
  if (!folder.starts_with(folder_prefix)) return "";
  std::string name(folder.substr(folder_prefix.size()));
  const size_t mark = name.find("--");
  if (mark != std::string::npos) name.replace(mark, 2, "/");
  return is_hub_name(name) ? name : "";
}

std::vector<std::string> HubCache::names() const {
  std::vector<std::string> found;
  if (directory_.empty()) return found;
  for (const std::string& folder : names_in(directory_)) {
    if (const std::string name = hub_name_of_folder(folder); !name.empty()) found.push_back(name);
  }
  return found;
}

std::string HubCache::folder(std::string_view name) const {
  return join_path(directory_, hub_folder_name(name));
}

std::string HubCache::commit(std::string_view name, const std::string& revision) const {
  const fs::path model = folder(name);
  // A revision is a path below refs/ and must not lead out of it.
  if (revision.empty() || revision[0] == '/' || revision.find("..") != std::string::npos) return "";
  if (const std::string commit = read_ref(model / "refs" / revision); !commit.empty()) {
    return commit;
  }
  if (!is_hex(revision) || revision.size() < 7) return "";
  for (const std::string& commit : names_in(model / "snapshots")) {
    if (commit.starts_with(revision)) return commit;
  }
  return "";
}

std::string HubCache::snapshot(std::string_view name, const std::string& revision) const {
  if (directory_.empty()) return "";
  const fs::path snapshots = fs::path(folder(name)) / "snapshots";
  std::error_code ignored;
  const std::string known = commit(name, revision.empty() ? "main" : revision);
  if (!known.empty() && fs::is_directory(snapshots / known, ignored)) {
    return (snapshots / known).string();
  }
  if (!revision.empty()) return "";
  const std::vector<std::string> commits = names_in(snapshots);
  return commits.size() == 1 ? (snapshots / commits[0]).string() : "";
}

std::string snapshot_in(const std::string& folder) {
  fs::path path = fs::path(folder).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  const std::string name = hub_name_of_folder(path.filename().string());
  if (name.empty()) return "";
  return HubCache(path.has_parent_path() ? path.parent_path().string() : ".").snapshot(name);
}

int64_t bytes_below(const std::string& directory) {
  int64_t bytes = 0;
  std::set<std::string> seen;
  std::error_code failure;
  for (fs::recursive_directory_iterator at(directory, failure), end; !failure && at != end;
       at.increment(failure)) {
    std::error_code ignored;
    const fs::path real = fs::canonical(at->path(), ignored);
    if (ignored || !fs::is_regular_file(real, ignored) || !seen.insert(real.string()).second) {
      continue;
    }
    bytes += static_cast<int64_t>(fs::file_size(real, ignored));
  }
  return bytes;
}

}  // namespace kinora

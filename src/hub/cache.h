// The cache of Hugging Face's own client on this machine, as it lays it out:
//
//   CACHE/models--ORG--NAME/blobs/ETAG                  a file's content, once
//   CACHE/models--ORG--NAME/refs/REVISION               the commit that a branch or tag stands for
//   CACHE/models--ORG--NAME/snapshots/COMMIT/FILE       a relative link to the blob
//   CACHE/.locks/models--ORG--NAME/ETAG.lock            held while a blob is written
//
// Used by the commands that take a model by its name, and by pull.h, which fills it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kinora {

// $HF_HUB_CACHE, else $HF_HOME/hub, else $XDG_CACHE_HOME/huggingface/hub, else
// ~/.cache/huggingface/hub; empty without a home.
std::string hub_cache_directory();

// "Qwen/Qwen2.5-VL-3B-Instruct", or one part for a few old models: letters, digits, '-', '_' and
// '.', with at most one '/'.
bool is_hub_name(std::string_view text);

// "models--Qwen--Qwen2.5-VL-3B-Instruct", and back; empty where the folder is none of a model's.
std::string hub_folder_name(std::string_view name);
std::string hub_name_of_folder(std::string_view folder);

class HubCache {
 public:
  explicit HubCache(std::string directory) : directory_(std::move(directory)) {}

  const std::string& directory() const { return directory_; }

  // The names of the models that have a folder, sorted.
  std::vector<std::string> names() const;

  // CACHE/models--ORG--NAME
  std::string folder(std::string_view name) const;

  // The commit that a revision (a branch, a tag, a commit or its beginning) stands for here; empty:
  // not known.
  std::string commit(std::string_view name, const std::string& revision) const;

  // The directory of a model's files: of this revision, or where none is named of "main", else of
  // the only snapshot. Empty: not here.
  std::string snapshot(std::string_view name, const std::string& revision = "") const;

 private:
  std::string directory_;
};

// The snapshot in a folder models--ORG--NAME that someone named as a path; empty: it is none.
std::string snapshot_in(const std::string& folder);

// Bytes of the files below a directory, links followed, each file once.
int64_t bytes_below(const std::string& directory);

}  // namespace kinora

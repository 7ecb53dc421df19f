// Fetches a model from a hub into the cache, as the official client would: several files at a time,
// going on where an earlier run was interrupted. Used by `kinora pull`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "base/progress.h"
#include "pull/repository.h"

namespace kinora {

struct PullOptions {
  std::string name;               // "Qwen/Qwen2.5-VL-3B-Instruct"
  std::string revision = "main";  // a branch, a tag or a commit
  // Only files that match one of these globs. None: all but weights in forms that kinora cannot
  // read, where there are safetensors.
  std::vector<std::string> include{};
  int jobs = 8;  // files at a time
  HubSettings settings{};
  CancelToken cancel{};
  Progress* progress = nullptr;  // stage "download", in bytes
};

struct PullResult {
  std::string commit;
  std::string snapshot;  // the directory
  int64_t files = 0;
  int64_t bytes = 0;    // of these files
  int64_t fetched = 0;  // of these, over the network now
};

PullResult pull(const PullOptions& options);

// The files of a listing that are wanted, in their order.
std::vector<std::string> wanted_files(const std::vector<std::string>& files,
                                      const std::vector<std::string>& include);

}  // namespace kinora

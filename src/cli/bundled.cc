#include "cli/bundled.h"

#include <cstdlib>
#include <filesystem>

#include "base/error.h"

namespace kinora::cli {
namespace {

// The path of a bundled file or directory; empty when it is not there.
std::string bundled(const std::string& name) {
  std::error_code ignored;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  for (const std::filesystem::path& place : {program.parent_path().parent_path() / "share/kinora",
                                             std::filesystem::path(KINORA_SOURCE_MODELS)}) {
    if (std::filesystem::exists(place / name, ignored)) return (place / name).string();
  }
  return "";
}

}  // namespace

std::string default_model() {
  if (const char* chosen = std::getenv("KINORA_MODEL"); chosen != nullptr && *chosen != '\0') {
    return chosen;
  }
  const std::string path = bundled("kinora-tiny");
  if (path.empty()) {
    throw Error(ErrorKind::usage,
                "no model: name one with --model DIR or in the environment as KINORA_MODEL");
  }
  return path;
}

std::string input_or_demo(const std::string& input) {
  if (input != "demo" || std::filesystem::exists(input)) return input;
  const std::string clip = bundled("demo.mp4");
  return clip.empty() ? input : clip;
}

}  // namespace kinora::cli

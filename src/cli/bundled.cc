#include "cli/bundled.h"

#include <algorithm>
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

bool same_place(const std::string& one, const std::string& other) {
  std::error_code ignored;  // what is not there is no place
  return std::filesystem::equivalent(one, other, ignored);
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

std::string bundled_model() { return bundled("kinora-tiny"); }

std::string bundled_note(const std::string& model) {
  if (!same_place(model, bundled_model())) return "";
  return "the bundled kinora-tiny knows only a small drawn world of moving things, cards and "
         "colours; for real videos give a real model: -m Qwen2.5-VL-3B-Instruct";
}

std::string bundled_note(const std::string& model, const std::vector<std::string>& sources) {
  const std::string clip = bundled("demo.mp4");
  const auto is_demo = [&](const std::string& source) {
    return same_place(input_or_demo(source), clip);
  };
  if (!sources.empty() && std::all_of(sources.begin(), sources.end(), is_demo)) return "";
  return bundled_note(model);
}

}  // namespace kinora::cli

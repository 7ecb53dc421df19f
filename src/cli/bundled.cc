#include "cli/bundled.h"

#include <fmt/format.h>
#include <kinora/memory_file.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/policy/names.h"
#include "cli/model_name.h"

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

// The file of nearly that name in the same folder; empty when none is near.
std::string nearest_file(const std::string& path) {
  const std::filesystem::path given(path);
  const std::filesystem::path folder = given.has_parent_path() ? given.parent_path() : ".";
  std::vector<std::string> names;
  std::error_code failure;
  for (std::filesystem::directory_iterator at(folder, failure), end; !failure && at != end;
       at.increment(failure)) {
    names.push_back(at->path().filename().string());
  }
  if (!given.has_parent_path()) names.emplace_back("demo");
  std::sort(names.begin(), names.end());
  const std::string_view meant = nearest_name(given.filename().string(), names);
  if (meant.empty()) return "";
  return given.has_parent_path() ? (folder / meant).string() : std::string(meant);
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
  std::error_code ignored;
  if (std::filesystem::exists(input, ignored)) return input;
  if (input == "demo") {
    const std::string clip = bundled("demo.mp4");
    return clip.empty() ? input : clip;
  }
  if (input == "-" || input.find("://") != std::string::npos) return input;
  const std::string meant = nearest_file(input);
  if (meant.empty()) return input;
  throw Error(ErrorKind::not_found, fmt::format("there is no {}; did you mean {}?", input, meant));
}

std::string bundled_model() { return bundled("kinora-tiny"); }

std::string bundled_note(const std::string& model) {
  if (!same_place(model, bundled_model())) return "";
  const std::string example = "Qwen/Qwen2.5-VL-3B-Instruct";
  return "the bundled kinora-tiny knows only a small drawn world of moving things, cards and "
         "colours; for real videos get a real model (" +
         command_to_get(example) + ") and give it: -m " + example;
}

std::string bundled_note(const std::string& model, const std::vector<std::string>& sources) {
  const std::string clip = bundled("demo.mp4");
  const auto is_demo = [&](const std::string& source) {
    if (!is_memory_file(source)) return same_place(input_or_demo(source), clip);
    const std::vector<MemoryFileInput> inputs = describe_memory(source).inputs;
    return std::all_of(inputs.begin(), inputs.end(), [&](const MemoryFileInput& input) {
      return same_place(input.source, clip);
    });
  };
  if (!sources.empty() && std::all_of(sources.begin(), sources.end(), is_demo)) return "";
  return bundled_note(model);
}

}  // namespace kinora::cli

#include "eval/answer_key.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "attention/policies/head_table.h"
#include "base/files/content_key.h"
#include "engine/evidence/evidence_heads.h"
#include "eval/visual_cache.h"

namespace kinora {
namespace {

namespace fs = std::filesystem;

constexpr int64_t stretch_bytes = int64_t{64} << 10;
constexpr int64_t stretches = 64;

void add_text(ContentKey& key, std::string_view text) { key.add(text.data(), text.size()); }

void add_file(ContentKey& key, const fs::path& path) {
  std::error_code absent;
  const auto size = static_cast<int64_t>(fs::file_size(path, absent));
  if (absent) return;
  key.add(size);
  std::ifstream file(path, std::ios::binary);
  std::vector<char> bytes(static_cast<size_t>(stretch_bytes));
  const auto add_stretch = [&](int64_t begin) {
    file.seekg(begin);
    file.read(bytes.data(), stretch_bytes);
    key.add(bytes.data(), static_cast<size_t>(file.gcount()));
    file.clear();
  };
  if (size <= stretches * stretch_bytes) {
    for (int64_t begin = 0; begin < size; begin += stretch_bytes) add_stretch(begin);
    return;
  }
  for (int64_t i = 0; i < stretches; ++i) {
    add_stretch((size - stretch_bytes) / (stretches - 1) * i);
  }
}

}  // namespace

std::string source_identity(const std::string& source) {
  ContentKey key("source");
  std::error_code ignored;
  if (source.find("://") != std::string::npos) {
    add_text(key, source);
  } else if (fs::is_directory(source, ignored)) {
    std::vector<fs::path> files;
    for (fs::directory_iterator entry(source, ignored), end; !ignored && entry != end;
         entry.increment(ignored)) {
      if (entry->is_regular_file(ignored)) files.push_back(entry->path());
    }
    std::sort(files.begin(), files.end());
    for (const fs::path& file : files) {
      add_text(key, file.filename().string());  // they say which picture comes first
      add_file(key, file);
    }
  } else if (fs::is_regular_file(source, ignored)) {
    add_file(key, source);
  }
  return key.text();
}

std::string engine_setting(const EngineState& engine) {
  const ModelInfo& info = engine.model->info();
  ContentKey key(info.name);
  key.add(info.parameters);
  // The same weights answer in f32 on a CPU and in bf16 on a GPU.
  add_text(key, engine.context.device.is_cpu() ? "cpu" : "gpu");
  add_text(key, dtype_name(engine.activations));
  key.add(int64_t{engine.native_bf16});
  if (engine.directory.empty()) return key.text();
  add_text(key, weights_identity(engine.directory));
  add_text(key, weights_identity(join_path(engine.directory, "draft")));
  std::vector<std::string> files = head_table_places(engine.directory);
  for (const std::string& place : evidence_table_places(engine.directory)) files.push_back(place);
  for (const std::string& name : real_files().list(engine.directory)) {
    if (name.ends_with(".jinja")) files.push_back(join_path(engine.directory, name));
  }
  for (const std::string& file : files) {
    add_text(key, fs::path(file).filename().string());
    add_file(key, file);
  }
  return key.text();
}

std::string AnswerKeys::key_of(const std::string& policy, const EvalItem& item,
                               const EvalItem& shown) {
  ContentKey key(setting_);
  add_text(key, policy);
  add_text(key, item.question);
  // Options are part of the prompt; what is right decides the score that is kept.
  for (const auto* list : {&item.options, &item.answers, &item.events}) {
    key.add(static_cast<int64_t>(list->size()));
    for (const std::string& text : *list) add_text(key, text);
  }
  if (item.contains) add_text(key, "contains");
  const FrameChoice& frames = shown.frames;
  add_text(key,
           fmt::format("{} {} {} {} {} {}", frames.start, frames.end, static_cast<int>(frames.way),
                       frames.fps, frames.count, fmt::join(frames.times, " ")));
  add_text(key, item.type);
  add_text(key, fmt::format("{} {} {}", item.length.value_or(-1), item.depth.value_or(-1),
                            item.all_times));
  for (const TimeStretch& time : item.times)
    add_text(key, fmt::format("{} {}", time.start, time.end));
  for (const EvalPart& part : shown.parts) {
    if (part.source.empty()) {
      add_text(key, "text");
      add_text(key, part.text);
      continue;
    }
    auto known = identities_.find(part.source);
    if (known == identities_.end()) {
      known = identities_.emplace(part.source, source_identity(part.source)).first;
    }
    add_text(key, "source");
    add_text(key, known->second);
  }
  return key.text();
}

}  // namespace kinora

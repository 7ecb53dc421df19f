// Keys of models and sources, by their bytes.
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/files/content_key.h"
#include "engine/saved/saved_about.h"

namespace kinora {
namespace {

constexpr size_t piece = size_t{1} << 20;
// Of a file of weights: where the list of tensors is, and this many pieces of its numbers.
constexpr int64_t list_bytes = int64_t{1} << 20;
constexpr int64_t samples = 64;
constexpr int64_t sample_bytes = 4096;

constexpr std::array shaping = {
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.json",
    "chat_template.jinja",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
};

void add_file(ContentKey& key, const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::vector<char> bytes(piece);
  while (in) {
    in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (in.gcount() > 0) key.add(bytes.data(), static_cast<size_t>(in.gcount()));
  }
  if (!in.eof()) throw Error(ErrorKind::bad_input, "cannot read " + path);
}

void add_weights(ContentKey& key, const std::string& path) {
  const auto mapping = real_files().map(path);
  const std::span<const std::byte> bytes = mapping->bytes();
  const auto size = static_cast<int64_t>(bytes.size());
  key.add(size);
  key.add(bytes.data(), static_cast<size_t>(std::min(size, list_bytes)));
  for (int64_t i = 0; i < samples && size > sample_bytes; ++i) {
    const auto at = static_cast<size_t>((size - sample_bytes) / samples * i);
    key.add(bytes.data() + at, static_cast<size_t>(sample_bytes));
  }
}

}  // namespace

std::string key_of_model(const EngineState& engine) {
  const ModelInfo& info = engine.model->info();
  ContentKey key(info.family);
  if (engine.directory.empty()) {  // of random weights
    key.add(info.parameters);
    return key.text();
  }
  const FileSystem& files = real_files();
  for (const std::string& name : files.list(engine.directory)) {
    const std::string path = join_path(engine.directory, name);
    if (!files.is_file(path)) continue;
    const bool weights = name.ends_with(".safetensors");
    if (!weights && std::find(shaping.begin(), shaping.end(), name) == shaping.end()) continue;
    key.add(name.data(), name.size());
    weights ? add_weights(key, path) : add_file(key, path);
  }
  return key.text();
}

std::string key_of_source(const std::string& source) {
  struct ::stat known {};
  if (::stat(source.c_str(), &known) != 0) return "";
  ContentKey key("kinora source");
  if (S_ISREG(known.st_mode)) {
    add_file(key, source);
    return key.text();
  }
  if (!S_ISDIR(known.st_mode)) return "";
  for (const std::string& name : real_files().list(source)) {
    const std::string path = join_path(source, name);
    if (!real_files().is_file(path)) continue;
    key.add(name.data(), name.size());
    add_file(key, path);
  }
  return key.text();
}

}  // namespace kinora

// Hostile bytes in the place of every other file that kinora reads: those of a model's directory,
// kept indices of videos, sets of questions, subtitles, tables of attention, saved memories.
// KINORA_FUZZ names the kind. Any Error but an internal one is fine; a crash, a hang or an
// exception of another type is not.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "attention/policies/head_table.h"
#include "base/context.h"
#include "base/file.h"
#include "base/files/content_key.h"
#include "base/random.h"
#include "engine/evidence/evidence_heads.h"
#include "eval/dataset.h"
#include "eval/import.h"
#include "model/model.h"
#include "saved_memory_fuzz.h"
#include "video/decode/interval_plan.h"
#include "video/index/index_cache.h"
#include "video/source/subtitles.h"

namespace {

using namespace kinora;

void survive(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::internal) return;
    std::fprintf(stderr, "internal error: %s\n", error.what());
    std::abort();
  }
}

class BytesInMemory final : public MappedFile {
 public:
  explicit BytesInMemory(std::string bytes) : bytes_(std::move(bytes)) {}
  std::span<const std::byte> bytes() const override {
    return {reinterpret_cast<const std::byte*>(bytes_.data()), bytes_.size()};
  }

 private:
  std::string bytes_;
};

// The files of this machine, but for one.
class OtherFile final : public FileSystem {
 public:
  OtherFile(std::string path, std::string_view bytes) : path_(std::move(path)), bytes_(bytes) {}

  bool is_file(const std::string& path) const override {
    return path == path_ || real_files().is_file(path);
  }
  bool is_directory(const std::string& path) const override {
    return real_files().is_directory(path);
  }
  std::vector<std::string> list(const std::string& path) const override {
    return real_files().list(path);
  }
  std::shared_ptr<MappedFile> map(const std::string& path) const override {
    return path == path_ ? std::make_shared<BytesInMemory>(bytes_) : real_files().map(path);
  }
  std::string read(const std::string& path, int64_t limit) const override {
    return path == path_ ? bytes_ : real_files().read(path, limit);
  }
  void write(const std::string&, std::string_view) override {}

 private:
  std::string path_;
  std::string bytes_;
};

void read_model(std::string_view model, const char* name, std::string_view bytes) {
  static const ThreadPool pool(1);
  const std::string directory = std::string(KINORA_FIXTURES "/models/") + std::string(model);
  const OtherFile files(directory + "/" + name, bytes);
  const auto loaded = load_model(Context(pool), files, directory);
  Conversation talk;
  talk.turns.push_back({"user", {{Modality::text, "Two words, 3 times: 東京"}}});
  talk.turns.push_back({"assistant", {{Modality::text, "Yes."}}});
  talk.turns.push_back({"user", {{Modality::text, "Why?"}}});
  loaded->render(talk);
  loaded->tokenizer().encode("Two words, 3 times: \t東京 <|im_end|>");
}

// Edits of a whole index, which the bytes choose; the checksum is made right again, or nothing
// would be looked at.
void read_index(std::string_view chosen) {
  std::vector<PacketFacts> facts(24);
  for (size_t i = 0; i < facts.size(); ++i) {
    facts[i].pts = facts[i].dts = static_cast<int64_t>(40 * i);
    facts[i].duration = 40;
    facts[i].size = 100;
    facts[i].traits.start = i % 8 == 0;
  }
  std::string bytes = pack_index(build_index(facts, {1, 1000}, 25, false), "file");
  bytes.resize(bytes.size() - sizeof(uint64_t));
  Random random(content_checksum(chosen));
  for (int64_t edits = 1 + random.below(20); edits > 0; --edits) {
    const int64_t size = std::ssize(bytes);
    bytes[static_cast<size_t>(random.below(size))] = static_cast<char>(random.next());
  }
  const uint64_t checksum = content_checksum(bytes);
  bytes.append(reinterpret_cast<const char*>(&checksum), sizeof checksum);
  const auto index = unpack_index(bytes, "file");
  if (!index || index->frames() == 0) return;
  std::vector<SampledFrame> samples;
  for (int64_t i = 0; i < index->frames(); ++i) samples.push_back({i, 0});
  make_plan(*index, samples, 3);
}

void read_questions(std::string_view bytes) {
  const OtherFile files("/set.jsonl", bytes);
  survive([&] { read_eval_data(files, "/set.jsonl"); });
  for (const std::string& format : import_formats()) {
    survive([&] { import_annotations(files, "/set.jsonl", {format, "/videos", "/set.jsonl"}); });
  }
}

using Read = std::function<void(std::string_view)>;

const std::map<std::string_view, Read>& kinds() {
  static const std::map<std::string_view, Read> all{
      {"safetensors",
       [](std::string_view bytes) { read_model("qwen2_tied", "model.safetensors", bytes); }},
      {"config",
       [](std::string_view bytes) { read_model("llava_onevision_old", "config.json", bytes); }},
      {"tokenizer", [](std::string_view bytes) { read_model("llama3", "tokenizer.json", bytes); }},
      {"template",
       [](std::string_view bytes) { read_model("llama3", "chat_template.jinja", bytes); }},
      {"index", read_index},
      {"subtitles", [](std::string_view bytes) { parse_subtitles(bytes, "subtitles"); }},
      {"questions", read_questions},
      {"tables",
       [](std::string_view bytes) {
         survive([&] { parse_head_table(bytes, "table"); });
         parse_evidence_heads(bytes, "table");
       }},
      {"memory", read_memory},
  };
  return all;
}

const Read& chosen_kind() {
  const char* name = std::getenv("KINORA_FUZZ");
  const auto found = kinds().find(name != nullptr ? name : "");
  if (found != kinds().end()) return found->second;
  std::fprintf(stderr, "KINORA_FUZZ names one of:");
  for (const auto& [kind, read] : kinds()) std::fprintf(stderr, " %s", std::string(kind).c_str());
  std::fprintf(stderr, "\n");
  std::exit(2);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Read& read = chosen_kind();
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  survive([&] { read(bytes); });
  return 0;
}

#include "saved_memory_fuzz.h"

#include <kinora/session.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "base/files/archive.h"
#include "base/files/content_key.h"
#include "base/random.h"
#include "support/film.h"
#include "support/temp_dir.h"

namespace {

using namespace kinora;

struct Section {
  std::string name;
  std::string bytes;
};

// What a small film left in memories of every kind, and the model that read it.
struct Saved {
  Saved()
      : engine({.model = KINORA_FIXTURES "/models/qwen2_5_vl_tied_new",
                .device = "cpu",
                .threads = 1}) {
    Random random(3);
    const std::string film = testing::write_film(folder.file("film"), random, 6);
    for (const auto& [memory, tokens] : {std::pair("flat", "all"),
                                         {"flat", "novel:0.4"},
                                         {"mosaic", "all"},
                                         {"frame-retrieval", "all"},
                                         {"compact:rows=64", "all"}}) {
      SessionOptions options;
      options.memory = memory;
      options.tokens = tokens;
      options.decode_threads = 1;
      Session session(engine, options);
      InputOptions input;
      input.keep_index = false;
      session.add(film, input);
      session.save(file);
      const auto archive = Archive::open(file);
      std::vector<Section> sections;
      for (const ArchiveSection& section : archive->sections()) {
        sections.push_back({section.name, archive->read(section.name)});
      }
      files.push_back(std::move(sections));
    }
  }

  const testing::TempDir folder;
  const std::string file = folder.file("film.kinora");
  const Engine engine;
  std::vector<std::vector<Section>> files;
};

}  // namespace

// The bytes only choose the edits. Checksums are made right again, or nothing would be looked at;
// of every fifth file its own bytes are changed.
void read_memory(std::string_view chosen) {
  static const Saved saved;
  Random random(content_checksum(chosen));
  const auto pick = [&](size_t count) {
    return static_cast<size_t>(random.below(static_cast<int64_t>(count)));
  };
  // The beginning of a section says how the rest of it is read.
  const auto place_in = [&](size_t size) {
    return pick(random.below(2) == 0 ? std::min<size_t>(size, 64) : size);
  };
  const auto value = [&] {
    constexpr char extremes[] = {0, 1, 0x7f, '\x80', '\xff'};
    return random.below(2) == 0 ? extremes[pick(5)] : static_cast<char>(random.next());
  };
  std::vector<Section> sections = saved.files[pick(saved.files.size())];
  const bool plain = random.below(5) == 0;
  for (int64_t edits = plain ? 0 : 1 + random.below(6); edits > 0; --edits) {
    std::string& bytes = sections[pick(sections.size())].bytes;
    if (bytes.empty()) continue;
    if (random.below(8) == 0) {
      bytes.resize(place_in(bytes.size()));
    } else {
      bytes[place_in(bytes.size())] = value();
    }
  }
  {
    ArchiveWriter writer(saved.file);
    for (const Section& section : sections) writer.add(section.name, section.bytes);
    writer.commit();
  }
  if (plain) {
    std::fstream file(saved.file, std::ios::in | std::ios::out | std::ios::binary);
    const size_t size = std::filesystem::file_size(saved.file);
    for (int64_t edits = 1 + random.below(6); edits > 0; --edits) {
      file.seekp(static_cast<std::streamoff>(place_in(size)));
      file.put(value());
    }
  }
  Session session = Session::reopen(saved.engine, saved.file, {});
  AnswerOptions one;
  one.max_tokens = 1;
  session.ask("What?", one);
}

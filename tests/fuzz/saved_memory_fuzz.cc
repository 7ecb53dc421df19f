#include "saved_memory_fuzz.h"

#include <kinora/session.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "base/files/content_key.h"
#include "base/random.h"
#include "support/archive_parts.h"
#include "support/film.h"
#include "support/temp_dir.h"

namespace {

using namespace kinora;

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
      files.push_back(testing::parts_of(file));
    }
  }

  const testing::TempDir folder;
  const std::string file = folder.file("film.kinora");
  const Engine engine;
  std::vector<std::vector<testing::ArchivePart>> files;
};

// Puts another whole number in the place of one of a text, often one that a size may just be or
// just not be.
void change_number(std::string& text, Random& random) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  std::vector<std::pair<size_t, size_t>> numbers;  // begin, length
  for (size_t i = 0; i < text.size(); ++i) {
    if (!is_digit(text[i])) continue;
    const size_t begin = i;
    while (i < text.size() && is_digit(text[i])) ++i;
    numbers.emplace_back(begin, i - begin);
  }
  if (numbers.empty()) return;
  const auto [begin, length] = numbers[static_cast<size_t>(random.below(std::ssize(numbers)))];
  constexpr const char* sizes[] = {
      "0", "1", "2", "3", "50000", "2147483647", "9223372036854775807"};
  text.replace(begin, length,
               random.below(2) == 0 ? sizes[static_cast<size_t>(random.below(std::ssize(sizes)))]
                                    : std::to_string(random.below(64)));
}

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
  std::vector<testing::ArchivePart> sections = saved.files[pick(saved.files.size())];
  const bool plain = random.below(5) == 0;
  for (int64_t edits = plain ? 0 : 1 + random.below(6); edits > 0; --edits) {
    if (random.below(4) == 0) {
      change_number(testing::part_called("about", sections), random);
      continue;
    }
    std::string& bytes = sections[pick(sections.size())].bytes;
    if (bytes.empty()) continue;
    if (random.below(8) == 0) {
      bytes.resize(place_in(bytes.size()));
    } else {
      bytes[place_in(bytes.size())] = value();
    }
  }
  testing::write_parts(saved.file, sections);
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

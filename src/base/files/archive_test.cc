// Archives: what is written comes back, and nothing that was cut off, damaged or half written ever
// passes for whole.
#include "base/files/archive.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "base/files/byte_stream.h"
#include "base/files/content_key.h"
#include "support/random_data.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

using Contents = std::map<std::string, std::string>;

std::string noise(Random& random, int64_t size) {
  std::string bytes;
  for (int64_t i = 0; i < size; ++i) bytes += static_cast<char>(random.next());
  return bytes;
}

void write(const std::string& path, const Contents& contents, int64_t page = 64) {
  ArchiveWriter out(path);
  for (const auto& [name, bytes] : contents) {
    out.begin(name, page);
    // In pieces that have nothing to do with pages.
    for (size_t at = 0; at < bytes.size(); at += 37) {
      out.append(bytes.data() + at, std::min<size_t>(37, bytes.size() - at));
    }
    out.end();
  }
  out.commit();
  EXPECT_EQ(out.bytes(), static_cast<int64_t>(std::filesystem::file_size(path)));
}

Contents read(const std::string& path) {
  const auto file = Archive::open(path);
  Contents contents;
  for (const ArchiveSection& section : file->sections()) {
    contents[section.name] = file->read(section.name);
  }
  return contents;
}

ErrorKind kind_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.kind();
  }
  return ErrorKind::cancelled;  // stands for none
}

TEST(Archive, GivesBackWhatWasWritten) {
  KINORA_FRESH_RANDOM(random);
  const testing::TempDir directory;
  const std::string path = directory.file("file");
  Contents contents;
  for (const int64_t size : {0, 1, 63, 64, 65, 127, 128, 129, 5000}) {
    contents["part " + std::to_string(size)] = noise(random, size);
  }
  write(path, contents);
  EXPECT_EQ(read(path), contents);
  EXPECT_TRUE(Archive::is_one(path));
  // Any run of pages is read alone.
  const auto file = Archive::open(path);
  const ArchiveSection& section = file->section("part 5000");
  const auto checks = file->checks(section);
  for (int trial = 0; trial < 50; ++trial) {
    const int64_t first = random.below(section.pages());
    const int64_t count = 1 + random.below(section.pages() - first);
    std::string bytes(static_cast<size_t>(std::min(5000 - first * 64, count * 64)), '\0');
    file->read_pages(section, checks, first, count, reinterpret_cast<std::byte*>(bytes.data()));
    EXPECT_EQ(bytes, contents["part 5000"].substr(static_cast<size_t>(first * 64), bytes.size()));
  }
  EXPECT_FALSE(file->has("part 2"));
  EXPECT_EQ(kind_of([&] { file->read("part 2"); }), ErrorKind::bad_input);
  EXPECT_EQ(kind_of([&] { Archive::open(directory.file("absent")); }), ErrorKind::not_found);
  real_files().write(directory.file("other"), "a film, perhaps");
  EXPECT_EQ(kind_of([&] { Archive::open(directory.file("other")); }), ErrorKind::bad_input);
  EXPECT_FALSE(Archive::is_one(directory.file("other")));
  EXPECT_FALSE(Archive::is_one(directory.path()));
}

TEST(Archive, RefusesWhatWasCutOffAtAnyByte) {
  KINORA_FRESH_RANDOM(random);
  const testing::TempDir directory;
  const std::string path = directory.file("file"), cut = directory.file("cut");
  write(path, {{"a", noise(random, 200)}, {"b", noise(random, 77)}});
  const std::string whole = real_files().read(path);
  for (size_t size = 0; size < whole.size(); size += 1 + size / 97) {
    real_files().write(cut, whole.substr(0, size));
    EXPECT_EQ(kind_of([&] { read(cut); }), ErrorKind::bad_input) << size;
  }
  real_files().write(cut, whole + "x");
  EXPECT_EQ(kind_of([&] { read(cut); }), ErrorKind::bad_input);
}

TEST(Archive, NoFlippedBitIsTakenForData) {
  KINORA_FRESH_RANDOM(random);
  const testing::TempDir directory;
  const std::string path = directory.file("file"), bad = directory.file("bad");
  const Contents contents{{"a", noise(random, 200)}, {"b", noise(random, 77)}};
  write(path, contents);
  const std::string whole = real_files().read(path);
  const std::vector<ArchiveSection> sections = Archive::open(path)->sections();
  int caught = 0;
  for (size_t at = 0; at < whole.size(); ++at) {
    const bool data = std::any_of(sections.begin(), sections.end(), [&](const auto& section) {
      const auto place = static_cast<int64_t>(at);
      return place >= section.offset && place < section.offset + section.bytes;
    });
    const bool zero = whole[at] == '\0' && at >= 64 && !data;
    if (zero && random.below(100) > 0) continue;  // thousands of them fill up sections
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ (1 << random.below(8)));
    real_files().write(bad, changed);
    const ErrorKind kind = kind_of([&] { EXPECT_EQ(read(bad), contents) << at; });
    caught += kind != ErrorKind::cancelled;
    EXPECT_TRUE(kind != ErrorKind::cancelled || !(data || at < 64)) << at;
  }
  EXPECT_GT(caught, 64 + 277);
}

TEST(Archive, OlderAndNewerVersionsAreNamed) {
  const testing::TempDir directory;
  const std::string path = directory.file("file");
  write(path, {{"a", "b"}});
  const std::string whole = real_files().read(path);
  for (const int other : {-1, 1, 40}) {
    std::string bytes = whole;
    bytes[8] = static_cast<char>(bytes[8] + other);
    const uint64_t check = content_checksum(std::string_view(bytes).substr(0, 56));
    std::memcpy(bytes.data() + 56, &check, sizeof check);
    real_files().write(path, bytes);
    try {
      Archive::open(path);
      ADD_FAILURE() << "a file of another version was opened";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::unsupported);
      EXPECT_NE(std::string(error.what()).find("version " + std::to_string(bytes[8])),
                std::string::npos)
          << error.what();
    }
  }
}

TEST(Archive, WhatIsGivenUpLeavesTheOldFile) {
  const testing::TempDir directory;
  const std::string path = directory.file("file");
  const Contents old{{"old", "content"}};
  write(path, old);
  {
    ArchiveWriter out(path);
    out.add("new", std::string(100000, 'x'));
    EXPECT_EQ(kind_of([&] { ArchiveWriter second(path); }), ErrorKind::resource);
  }
  EXPECT_EQ(read(path), old);
  EXPECT_THROW(
      {
        ArchiveWriter out(path, [](int64_t) { throw Error(ErrorKind::cancelled, "enough"); });
        out.add("new", std::string(100000, 'x'));
      },
      Error);
  EXPECT_EQ(read(path), old);
  EXPECT_EQ(real_files().list(directory.path()), std::vector<std::string>{"file"});
  EXPECT_EQ(kind_of([&] { ArchiveWriter out(directory.path()); }), ErrorKind::bad_input);
  EXPECT_EQ(kind_of([&] { ArchiveWriter out(directory.file("no/file")); }), ErrorKind::not_found);
}

// A process of its own, whose files may not grow beyond a limit.
TEST(Archive, AFullDiskLeavesTheOldFile) {
  const testing::TempDir directory;
  const std::string path = directory.file("file");
  const Contents old{{"old", "content"}};
  write(path, old);
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const ::rlimit limit{65536, 65536};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    int code = 1;
    try {
      ArchiveWriter out(path);
      out.add("new", std::string(1 << 20, 'x'));
      out.commit();
    } catch (const Error& error) {
      const std::string said = error.what();
      code = error.kind() == ErrorKind::resource && said.find("as it was") != said.npos ? 0 : 2;
    }
    ::_exit(code);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(read(path), old);
  EXPECT_EQ(real_files().list(directory.path()), std::vector<std::string>{"file"});
}

// A process writes one version after the other and is killed at random moments.
TEST(Archive, AKilledWriterLeavesAWholeFile) {
  KINORA_FRESH_RANDOM(random);
  const testing::TempDir directory;
  const std::string path = directory.file("file");
  const auto version = [](int number) {
    return Contents{{"number", std::to_string(number)},
                    {"rows", std::string(200000, static_cast<char>('a' + number % 26))}};
  };
  write(path, version(0), 1 << 14);
  int newest = 0;
  for (int round = 0; round < 100; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (int number = newest + 1;; ++number) write(path, version(number), 1 << 14);
    }
    ::usleep(static_cast<useconds_t>(random.below(8000)));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    const Contents found = read(path);
    const int number = std::stoi(found.at("number"));
    EXPECT_GE(number, newest);
    EXPECT_EQ(found, version(number));
    newest = number;
  }
  write(path, version(7), 1 << 14);  // what the killed left is in nobody's way
  EXPECT_EQ(real_files().list(directory.path()), std::vector<std::string>{"file"});
}

TEST(ByteStream, NeverReadsPastTheEnd) {
  ByteWriter out;
  out.put(int32_t{5});
  out.put("text");
  out.put_all(std::vector<double>{1, 2, 3});
  for (size_t size = 0; size <= out.bytes().size(); ++size) {
    ByteReader in(std::string_view(out.bytes()).substr(0, size), "it");
    const auto all = [&] {
      EXPECT_EQ(in.get<int32_t>(), 5);
      EXPECT_EQ(in.text(), "text");
      EXPECT_EQ(in.all<double>(), (std::vector<double>{1, 2, 3}));
      in.end();
    };
    if (size == out.bytes().size()) {
      all();
    } else {
      EXPECT_EQ(kind_of(all), ErrorKind::bad_input) << size;
    }
  }
  // A count that no memory could hold.
  ByteWriter hostile;
  hostile.put(~uint64_t{0});
  ByteReader in(hostile.bytes(), "it");
  EXPECT_EQ(kind_of([&] { in.all<double>(); }), ErrorKind::bad_input);
}

// A pipe, a link, or a second name of another file where the archive is to grow: none is waited
// for, followed or emptied.
TEST(Archive, WhatStandsInItsPlaceIsLeftAlone) {
  const testing::TempDir directory;
  const std::string path = directory.file("a.kinora"), precious = directory.file("precious");
  real_files().write(precious, "content");
  write(path, {{"x", "1"}});
  const std::string beside = path + ".part";
  ASSERT_EQ(::mkfifo(beside.c_str(), 0600), 0);
  EXPECT_EQ(kind_of([&] { ArchiveWriter out(path); }), ErrorKind::bad_input);
  std::filesystem::remove(beside);
  std::filesystem::create_hard_link(precious, beside);
  EXPECT_EQ(kind_of([&] { ArchiveWriter out(path); }), ErrorKind::bad_input);
  std::filesystem::remove(beside);
  std::filesystem::create_symlink(precious, beside);
  EXPECT_ANY_THROW(ArchiveWriter out(path));
  EXPECT_EQ(real_files().read(precious), "content");
  EXPECT_EQ(read(path), (Contents{{"x", "1"}}));
  std::filesystem::remove(beside);
  real_files().write(beside, "left by a crash");
  write(path, {{"x", "2"}});
  EXPECT_EQ(read(path), (Contents{{"x", "2"}}));
}

}  // namespace
}  // namespace kinora

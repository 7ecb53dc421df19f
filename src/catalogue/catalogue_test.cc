#include "catalogue/catalogue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

ErrorKind kind_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.kind();
  }
  ADD_FAILURE() << "nothing was thrown";
  return ErrorKind::internal;
}

class CatalogueTest : public ::testing::Test {
 protected:
  CatalogueEntry file(const std::string& name, const std::string& source, int64_t written,
                      const std::string& key = "") {
    real_files().write(directory_.file(name), "rows");
    MemoryFile described;
    described.path = directory_.file(name);
    described.key = key;
    described.written = written;
    described.bytes = 4;
    described.model = "tiny";
    described.memory = "mosaic";
    described.retain = "key-norm:0.5";
    described.attention = "dense";
    described.row_type = "bf16";
    described.inputs = {{source, "", "video", 64, 48, 8, 0, 7, 32}, {"more", "", "image"}};
    return entry_of(described);
  }
  static std::vector<std::string> names(const std::vector<CatalogueEntry>& entries) {
    std::vector<std::string> out;
    for (const CatalogueEntry& entry : entries) out.push_back(entry.name);
    return out;
  }

  const testing::TempDir directory_;
  const std::string place_ = directory_.file("data/kinora/library.db");
};

TEST_F(CatalogueTest, ListsSearchesAndForgets) {
  Catalogue catalogue(place_);
  EXPECT_TRUE(catalogue.list().empty());
  catalogue.put(file("talk.kinora", "/films/Talk_100%.mp4", 10, "k1"));
  catalogue.put(file("walk.kinora", "/films/walk.mp4", 30, "k2"));
  catalogue.put(file("again.kinora", "/films/walk.mp4", 20, "k2"));
  EXPECT_EQ(names(catalogue.list()), (std::vector<std::string>{"walk", "again", "talk"}));
  EXPECT_EQ(names(catalogue.list("ALK")), (std::vector<std::string>{"walk", "again", "talk"}));
  EXPECT_EQ(names(catalogue.list("100%")), std::vector<std::string>{"talk"});
  EXPECT_TRUE(catalogue.list("%").size() == 1 && catalogue.list("'; DROP TABLE memories").empty());
  const CatalogueEntry found = *catalogue.find("talk");
  EXPECT_EQ(found.policies, "mosaic, key-norm:0.5, bf16 rows");
  EXPECT_EQ(found.sources, "/films/Talk_100%.mp4\nmore");
  EXPECT_EQ(found.frames, 8);
  EXPECT_EQ(catalogue.find(directory_.file("walk.kinora"))->written, 30);
  EXPECT_EQ(catalogue.find_key("k2")->name, "walk");
  // A file that is gone serves nobody, and stays listed until it is forgotten.
  std::filesystem::remove(directory_.file("walk.kinora"));
  EXPECT_EQ(catalogue.find_key("k2")->name, "again");
  EXPECT_TRUE(catalogue.list()[0].missing);
  EXPECT_TRUE(catalogue.forget(catalogue.list()[0].path));
  EXPECT_FALSE(catalogue.forget("/no/such/file"));
  EXPECT_EQ(names(catalogue.list()), (std::vector<std::string>{"again", "talk"}));
  EXPECT_FALSE(catalogue.find("walk"));
  EXPECT_FALSE(catalogue.find_key(""));
  // The same path is one entry.
  catalogue.put(file("talk.kinora", "/films/other.mp4", 40));
  EXPECT_EQ(names(catalogue.list()), (std::vector<std::string>{"talk", "again"}));
  // Two files of one name are told apart by their paths.
  std::filesystem::create_directory(directory_.file("other"));
  catalogue.put(file("other/talk.kinora", "/films/other.mp4", 50));
  EXPECT_EQ(kind_of([&] { catalogue.find("talk"); }), ErrorKind::usage);
}

TEST_F(CatalogueTest, ProgramsShareIt) {
  std::vector<std::thread> programs;
  for (int program = 0; program < 4; ++program) {
    programs.emplace_back([this, program] {
      Catalogue mine(place_);
      for (int i = 0; i < 10; ++i) {
        CatalogueEntry entry;
        entry.path = "/" + std::to_string(program) + "/" + std::to_string(i);
        mine.put(entry);
        mine.list();
      }
    });
  }
  for (std::thread& program : programs) program.join();
  EXPECT_EQ(Catalogue(place_).list().size(), 40u);
}

TEST_F(CatalogueTest, ProgramsMayOpenANewOneAtOnce) {
  for (int round = 0; round < 25; ++round) {
    const std::string place = directory_.file("new-" + std::to_string(round) + ".db");
    std::atomic<int> waiting = 6;
    std::vector<std::thread> programs;
    for (int program = 0; program < 6; ++program) {
      programs.emplace_back([&, program] {
        --waiting;
        while (waiting > 0) std::this_thread::yield();
        try {
          Catalogue mine(place);
          CatalogueEntry entry;
          entry.path = "/" + std::to_string(program);
          mine.put(entry);
        } catch (const Error& error) {
          ADD_FAILURE() << error.what();
        }
      });
    }
    for (std::thread& program : programs) program.join();
    ASSERT_EQ(Catalogue(place).list().size(), 6u);
  }
}

TEST_F(CatalogueTest, WhatIsNoCatalogueIsSaid) {
  real_files().write(directory_.file("film.db"), std::string(5000, 'x'));
  EXPECT_EQ(kind_of([&] { Catalogue catalogue(directory_.file("film.db")); }),
            ErrorKind::bad_input);
  EXPECT_EQ(kind_of([&] { Catalogue catalogue(directory_.path()); }), ErrorKind::resource);
}

}  // namespace
}  // namespace kinora

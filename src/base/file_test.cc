#include "base/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <functional>

#include "base/error.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

ErrorKind kind_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.kind();
  }
  ADD_FAILURE() << "nothing was thrown";
  return ErrorKind::internal;
}

TEST(File, WritesReadsAndMapsTheSameBytes) {
  const testing::TempDir directory;
  const std::string path = directory.file("data");
  std::string content(100003, 'x');
  content[77] = '\0';
  real_files().write(path, content);
  EXPECT_EQ(real_files().read(path), content);
  const auto mapping = real_files().map(path);
  ASSERT_EQ(mapping->bytes().size(), content.size());
  EXPECT_EQ(std::memcmp(mapping->bytes().data(), content.data(), content.size()), 0);
  EXPECT_EQ(real_files().list(directory.path()), std::vector<std::string>{"data"});
}

TEST(File, AnEmptyFileMapsToNothing) {
  const testing::TempDir directory;
  real_files().write(directory.file("empty"), "");
  EXPECT_TRUE(real_files().map(directory.file("empty"))->bytes().empty());
}

TEST(File, AbsentFilesAreNotFound) {
  const testing::TempDir directory;
  const std::string path = directory.file("absent");
  EXPECT_EQ(kind_of([&] { real_files().read(path); }), ErrorKind::not_found);
  EXPECT_EQ(kind_of([&] { real_files().map(path); }), ErrorKind::not_found);
  EXPECT_EQ(kind_of([&] { real_files().list(path); }), ErrorKind::not_found);
  EXPECT_EQ(kind_of([&] { real_files().write(path + "/inside", "x"); }), ErrorKind::not_found);
}

TEST(File, ADirectoryIsNotAFile) {
  const testing::TempDir directory;
  EXPECT_EQ(kind_of([&] { real_files().read(directory.path()); }), ErrorKind::bad_input);
  EXPECT_EQ(kind_of([&] { real_files().map(directory.path()); }), ErrorKind::bad_input);
}

TEST(File, TheReadLimitIsKept) {
  const testing::TempDir directory;
  real_files().write(directory.file("data"), "0123456789");
  EXPECT_EQ(kind_of([&] { real_files().read(directory.file("data"), 9); }), ErrorKind::resource);
  EXPECT_EQ(real_files().read(directory.file("data"), 10), "0123456789");
}

TEST(File, AFailedWriteLeavesTheOldContentAndNoLitter) {
  const testing::TempDir directory;
  const std::string target = directory.file("target");
  real_files().write(target + "-old", "old");
  ASSERT_EQ(::mkdir(target.c_str(), 0755), 0);  // rename onto a directory fails
  EXPECT_ANY_THROW(real_files().write(target, "new"));
  EXPECT_EQ(real_files().list(directory.path()),
            (std::vector<std::string>{"target", "target-old"}));
}

}  // namespace
}  // namespace kinora

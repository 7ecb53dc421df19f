#include "base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "base/error.h"
#include "base/files/errno_kind.h"
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

TEST(File, PipesAreReadToTheirEnd) {
  const testing::TempDir directory;
  const std::string fifo = directory.file("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const std::string content(300'000, 'x');
  std::thread writer([&] {
    const int out = ::open(fifo.c_str(), O_WRONLY);
    for (size_t at = 0; at < content.size();) {
      const ssize_t done = ::write(out, content.data() + at, content.size() - at);
      if (done <= 0) break;
      at += static_cast<size_t>(done);
    }
    ::close(out);
  });
  EXPECT_EQ(real_files().read(fifo), content);
  writer.join();
  EXPECT_THROW(real_files().map(fifo), Error);  // which does not wait for a writer either
  EXPECT_EQ(real_files().read("/dev/null"), "");
  EXPECT_THROW(real_files().read("/dev/zero", 100'000), Error);
}

TEST(File, WaitingForASilentPipeEndsWithCancelling) {
  const testing::TempDir directory;
  const std::string fifo = directory.file("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const CancelToken cancel;
  std::thread canceller([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    cancel.cancel();
  });
  EXPECT_EQ(kind_of([&] { real_files().read_or_cancel(fifo, 100, cancel); }), ErrorKind::cancelled);
  canceller.join();
}

TEST(File, WhatKilledRunsLeftIsSweptAndLinksAreNotFollowed) {
  const testing::TempDir directory;
  const std::string path = directory.file("kept.json");
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);  // a number that no process has now
  const std::string left = path + ".part-" + std::to_string(child) + "-1";
  const std::string other = directory.file("other.json.part-" + std::to_string(child) + "-1");
  const std::string alive = path + ".part-" + std::to_string(::getppid()) + "-1";
  const std::string named = path + ".part-of-the-plan";
  for (const std::string& one : {left, other, alive, named}) std::ofstream(one) << "x";
  real_files().write(path, "new");
  EXPECT_FALSE(real_files().is_file(left));
  for (const std::string& one : {other, alive, named}) EXPECT_TRUE(real_files().is_file(one));
  EXPECT_EQ(real_files().read(path), "new");
  // Writing replaces a link instead of what it points to.
  const std::string precious = directory.file("precious");
  std::ofstream(precious) << "old";
  const std::string link = directory.file("link");
  std::filesystem::create_symlink(precious, link);
  real_files().write(link, "new");
  EXPECT_EQ(real_files().read(precious), "old");
}

TEST(File, EveryCodeOfTheSystemHasOneKind) {
  for (const int code : {ENOENT, ENOTDIR, EACCES, EPERM}) {
    EXPECT_EQ(kind_of_errno(code), ErrorKind::not_found) << code;
  }
  for (const int code : {ENOMEM, ENOSPC, EMFILE}) {
    EXPECT_EQ(kind_of_errno(code), ErrorKind::resource) << code;
  }
  EXPECT_EQ(kind_of_errno(EISDIR), ErrorKind::bad_input);
}

}  // namespace
}  // namespace kinora

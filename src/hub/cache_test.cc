// Models in a cache as the official client lays it out.
#include "hub/cache.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "support/temp_dir.h"

namespace kinora {
namespace {

namespace fs = std::filesystem;
using testing::TempDir;

const std::string one = "1111111111111111111111111111111111111111";
const std::string two = "2222222222222222222222222222222222222222";

class Cache : public ::testing::Test {
 protected:
  std::string add(const std::string& name, const std::string& commit) {
    const fs::path snapshot = fs::path(cache_.folder(name)) / "snapshots" / commit;
    fs::create_directories(snapshot);
    return snapshot.string();
  }
  void refer(const std::string& name, const std::string& revision, const std::string& commit) {
    const fs::path ref = fs::path(cache_.folder(name)) / "refs" / revision;
    fs::create_directories(ref.parent_path());
    std::ofstream(ref) << commit;
  }

  const TempDir folder_;
  const HubCache cache_{folder_.path()};
};

TEST(HubNames, AreTurnedIntoFoldersAndBack) {
  EXPECT_EQ(hub_folder_name("Qwen/Qwen2.5-VL-3B-Instruct"), "models--Qwen--Qwen2.5-VL-3B-Instruct");
  EXPECT_EQ(hub_name_of_folder("models--Qwen--Qwen2.5-VL-3B-Instruct"),
            "Qwen/Qwen2.5-VL-3B-Instruct");
  EXPECT_EQ(hub_name_of_folder("models--gpt2"), "gpt2");
  for (const char* other :
       {"datasets--a--b", ".locks", "version.txt", "models--", "models--a--b--c"}) {
    EXPECT_EQ(hub_name_of_folder(other), "") << other;
  }
  for (const char* good : {"a", "a/b", "Qwen/Qwen2.5-VL_3B"})
    EXPECT_TRUE(is_hub_name(good)) << good;
  for (const char* bad :
       {"", "/", "a/", "/a", "a/b/c", "../a", "a/..", "a b", "a--b", "./a", "-a"}) {
    EXPECT_FALSE(is_hub_name(bad)) << bad;
  }
}

TEST_F(Cache, ABranchLeadsToItsSnapshot) {
  const std::string first = add("org/name", one), second = add("org/name", two);
  refer("org/name", "main", two);
  refer("org/name", "refs/pr/1", one);
  EXPECT_EQ(cache_.snapshot("org/name"), second);
  EXPECT_EQ(cache_.snapshot("org/name", "refs/pr/1"), first);
  EXPECT_EQ(cache_.snapshot("org/name", one), first);
  EXPECT_EQ(cache_.snapshot("org/name", "1111111"), first);
  EXPECT_EQ(cache_.snapshot("org/name", "v2"), "");
  EXPECT_EQ(cache_.snapshot("org/name", "../refs/main"), "");
  EXPECT_EQ(cache_.snapshot("org/other"), "");
}

TEST_F(Cache, WithoutABranchTheOnlySnapshotIsTaken) {
  const std::string only = add("org/name", one);
  EXPECT_EQ(cache_.snapshot("org/name"), only);
  add("org/name", two);
  EXPECT_EQ(cache_.snapshot("org/name"), "");
}

TEST_F(Cache, AFolderGivenAsAPathIsUnderstood) {
  const std::string only = add("org/name", one);
  EXPECT_EQ(snapshot_in(cache_.folder("org/name")), only);
  EXPECT_EQ(snapshot_in(cache_.folder("org/name") + "/"), only);
  EXPECT_EQ(snapshot_in(folder_.path()), "");
}

TEST_F(Cache, ListsModelsAndCountsEachBlobOnce) {
  const std::string snapshot = add("org/name", one);
  add("a/b", two);
  fs::create_directories(folder_.file("datasets--x--y"));
  EXPECT_EQ(cache_.names(), (std::vector<std::string>{"a/b", "org/name"}));
  const fs::path blobs = fs::path(cache_.folder("org/name")) / "blobs";
  fs::create_directories(blobs);
  std::ofstream(blobs / "abc") << std::string(1000, 'x');
  fs::create_symlink("../../blobs/abc", fs::path(snapshot) / "one");
  fs::create_symlink("../../blobs/abc", fs::path(snapshot) / "two");
  fs::create_symlink("../../blobs/gone", fs::path(snapshot) / "three");
  EXPECT_EQ(bytes_below(snapshot), 1000);
  EXPECT_TRUE(HubCache("").names().empty());
}

TEST(HubCacheDirectory, FollowsTheEnvironmentOfTheOfficialClient) {
  const auto with = [](const char* name, const char* value) {
    value == nullptr ? ::unsetenv(name) : ::setenv(name, value, 1);
  };
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"}) {
    with(name, nullptr);
  }
  with("HOME", "/home/me");
  EXPECT_EQ(hub_cache_directory(), "/home/me/.cache/huggingface/hub");
  with("XDG_CACHE_HOME", "/cache");
  EXPECT_EQ(hub_cache_directory(), "/cache/huggingface/hub");
  with("HF_HOME", "/hf");
  EXPECT_EQ(hub_cache_directory(), "/hf/hub");
  with("HF_HUB_CACHE", "/here");
  EXPECT_EQ(hub_cache_directory(), "/here");
}

}  // namespace
}  // namespace kinora

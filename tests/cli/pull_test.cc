// `kinora pull` against a hub on the loopback interface: what it lays out, what it does when things
// break, what it says when a model cannot be had.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "support/hub.h"
#include "support/random_data.h"

namespace kinora::testing {
namespace {

namespace fs = std::filesystem;

const std::string fixture = std::string(KINORA_FIXTURES) + "/models/qwen2_5_vl_untied_old";

class Pull : public ::testing::Test {
 protected:
  void SetUp() override {
    KINORA_FRESH_RANDOM(random);
    const std::string model = folder_.file("org/small");
    fs::create_directories(model + "/extra/deep");
    std::string weights(300'000, '\0');
    for (char& c : weights) c = static_cast<char>(random.next());
    write(model + "/config.json", R"({"model_type": "qwen2_5_vl"})");
    write(model + "/model.safetensors", weights);
    write(model + "/extra/deep/second.safetensors", weights.substr(7));
    write(model + "/pytorch_model.bin", "not for us");
    write(model + "/empty.txt", "");
    for (const char* name : {"gated", "closed", "private"}) {
      fs::create_directories(folder_.file(std::string("org/") + name));
      write(folder_.file(std::string("org/") + name) + "/config.json", "{}");
    }
  }

  static void write(const std::string& path, const std::string& content) {
    std::ofstream(path, std::ios::binary) << content;
  }

  // The program with a home of its own, talking to the hub.
  Finished run(const Hub& hub, const std::string& arguments, const std::string& more = "") const {
    return kinora_shell("unset HF_TOKEN HF_HUB_CACHE; export HOME=" + home_.path() +
                        " HF_HOME=" + home_.path() + "/hf HF_ENDPOINT=" + hub.endpoint() + " " +
                        more + "; $KINORA " + arguments);
  }
  std::string served(const std::string& path) const { return folder_.file("org/small/" + path); }
  std::string cached(const std::string& path) const {
    return home_.file("hf/hub/models--org--small/" + path);
  }
  void expect_whole(const Finished& finished) const {
    ASSERT_EQ(finished.code, 0) << finished.err;
    const std::string snapshot = finished.out.substr(0, finished.out.find('\n'));
    for (const char* path :
         {"config.json", "model.safetensors", "extra/deep/second.safetensors", "empty.txt"}) {
      EXPECT_EQ(content_of(snapshot + "/" + path), content_of(served(path))) << path;
    }
    for (const auto& entry : fs::directory_iterator(cached("blobs"))) {
      EXPECT_EQ(entry.path().extension(), "") << entry.path();  // nothing incomplete is left
    }
  }
  std::string log() const { return content_of(folder_.file("log")); }

  const TempDir folder_;
  const TempDir home_;
};

TEST_F(Pull, LaysTheCacheOutAsTheOfficialClientDoes) {
  const Hub hub(folder_.path());
  const Finished finished = run(hub, "pull org/small");
  expect_whole(finished);
  const std::string commit = content_of(cached("refs/main"));
  ASSERT_EQ(commit.size(), 40u);
  EXPECT_EQ(finished.out, cached("snapshots/" + commit) + "\n");
  const auto link = [&](const std::string& path) {
    return fs::read_symlink(cached("snapshots/" + commit + "/" + path)).string();
  };
  EXPECT_TRUE(link("config.json").starts_with("../../blobs/")) << link("config.json");
  EXPECT_EQ(link("config.json").size(), std::string("../../blobs/").size() + 40);
  EXPECT_EQ(link("model.safetensors").size(), std::string("../../blobs/").size() + 64);
  EXPECT_TRUE(link("extra/deep/second.safetensors").starts_with("../../../../blobs/"));
  // Weights in a form that kinora does not read stay where they are.
  EXPECT_FALSE(fs::exists(cached("snapshots/" + commit + "/pytorch_model.bin")));
}

TEST_F(Pull, FetchesNothingTwice) {
  const Hub hub(folder_.path());
  expect_whole(run(hub, "pull org/small"));
  const Finished again = run(hub, "pull org/small --json");
  ASSERT_EQ(again.code, 0) << again.err;
  const auto json = nlohmann::json::parse(again.out);
  EXPECT_EQ(json.at("fetched"), 0);
  EXPECT_EQ(json.at("files"), 4);
  // A new commit brings only what changed.
  write(served("config.json"), R"({"model_type": "qwen3"})");
  const Finished changed = run(hub, "pull org/small --json");
  ASSERT_EQ(changed.code, 0) << changed.err;
  const auto later = nlohmann::json::parse(changed.out);
  EXPECT_EQ(later.at("fetched"), 23);
  EXPECT_NE(later.at("commit"), json.at("commit"));
  EXPECT_EQ(content_of(cached("refs/main")), later.at("commit"));
}

TEST_F(Pull, RevisionsAndGlobsAreKept) {
  const Hub hub(folder_.path());
  const Finished finished = run(hub, "pull org/small --revision refs/pr/1 --include '*.json'");
  ASSERT_EQ(finished.code, 0) << finished.err;
  const std::string commit = content_of(cached("refs/refs/pr/1"));
  EXPECT_TRUE(fs::exists(cached("snapshots/" + commit + "/config.json")));
  EXPECT_FALSE(fs::exists(cached("snapshots/" + commit + "/model.safetensors")));
  EXPECT_FALSE(fs::exists(cached("refs/main")));
  expect_error(run(hub, "pull org/small --include '*.zip'"), 3, "no file that matches");
  expect_error(run(hub, "pull org/small --revision v9"), 3, "no revision 'v9'");
}

TEST_F(Pull, GoesOnWhereAConnectionBroke) {
  const Hub hub(folder_.path(), {"cut"});
  expect_whole(run(hub, "pull org/small"));
  EXPECT_NE(log().find("bytes=150000-"), std::string::npos) << log();
}

TEST_F(Pull, GoesOnWhereAnEarlierRunWasInterrupted) {
  const Hub hub(folder_.path());
  expect_whole(run(hub, "pull org/small"));
  const std::string commit = content_of(cached("refs/main"));
  const std::string blob =
      fs::canonical(cached("snapshots/" + commit + "/model.safetensors")).string();
  fs::resize_file(blob, 200'000);
  fs::rename(blob, blob + ".incomplete");
  const Finished again = run(hub, "pull org/small --json");
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(nlohmann::json::parse(again.out).at("fetched"), 100'000);
  EXPECT_NE(log().find("bytes=200000-"), std::string::npos);
  EXPECT_EQ(content_of(blob), content_of(served("model.safetensors")));
  // What is left of something else is noticed by its hash and fetched anew.
  fs::remove(blob);
  write(blob + ".incomplete", std::string(1000, 'x'));
  expect_whole(run(hub, "pull org/small"));
}

TEST_F(Pull, AStorageWithoutRangesIsReadFromTheStart) {
  const Hub hub(folder_.path(), {"cut", "no-range"});
  expect_whole(run(hub, "pull org/small"));
}

TEST_F(Pull, ABusyHubIsAskedAgain) {
  expect_whole(run(Hub(folder_.path(), {"stall=3"}), "pull org/small --jobs 1"));
  fs::remove_all(home_.file("hf"));
  expect_whole(run(Hub(folder_.path(), {"fail=3"}), "pull org/small --jobs 1"));
  expect_error(run(Hub(folder_.path(), {"stall=99"}), "pull org/small"), 7, "too many requests");
}

TEST_F(Pull, ARenamedModelIsFound) {
  expect_whole(run(Hub(folder_.path(), {"renamed"}), "pull org/small"));
}

TEST_F(Pull, DamageIsNoticed) {
  expect_error(run(Hub(folder_.path(), {"damage"}), "pull org/small"), 4, "came damaged");
  fs::remove_all(home_.file("hf"));  // the small files of that run were good
  expect_error(run(Hub(folder_.path(), {"damage-small"}), "pull org/small --include '*.json'"), 4,
               "config.json of org/small came damaged");
  expect_error(run(Hub(folder_.path(), {"long"}), "pull org/small"), 4, "longer than");
  EXPECT_FALSE(fs::exists(cached("refs/main")));
}

TEST_F(Pull, AHostileListingWritesNothingElsewhere) {
  expect_error(run(Hub(folder_.path(), {"evil"}), "pull org/small"), 4, "../../evil");
  expect_error(run(Hub(folder_.path(), {"deep"}), "pull org/small"), 4, "makes no sense");
}

TEST_F(Pull, ADeadConnectionIsAnErrorThatSaysHowToGoOn) {
  expect_error(run(Hub(folder_.path(), {"dead"}), "pull org/small --jobs 1"), 7,
               "the same command goes on from there");
}

TEST_F(Pull, SaysWhyAModelCannotBeHad) {
  const Hub hub(folder_.path());
  expect_error(run(hub, "pull org/gated"), 3, "org/gated is gated: accept its terms at");
  expect_error(run(hub, "pull org/closed", "HF_TOKEN=good"), 3, "is gated");
  expect_error(run(hub, "pull org/private"), 3, "HF_TOKEN is not set");
  expect_error(run(hub, "pull org/absent", "HF_TOKEN=good"), 3, "has no model org/absent");
  expect_error(run(hub, "pull org/small", "HF_TOKEN=bad"), 3, "the token in HF_TOKEN");
  EXPECT_EQ(run(hub, "pull org/gated -q", "HF_TOKEN=good").code, 0);
  EXPECT_EQ(run(hub, "pull org/private -q", "HF_TOKEN=good").code, 0);
  expect_error(run(hub, "pull 'org/small/too'"), 2, "is not the name of a model");
  expect_error(run(hub, "pull org/small --revision ../../x"), 2, "is not a revision");
  expect_error(run(hub, "pull org/small", "HF_HUB_OFFLINE=1"), 7, "HF_HUB_OFFLINE");
  expect_error(run(hub, "pull org/small", "HF_ENDPOINT=http://127.0.0.1:9"), 7, "does not answer");
}

TEST_F(Pull, TheTokenGoesToTheHubAndNotToItsStorage) {
  const Hub hub(folder_.path());
  // The storage refuses requests that bring one.
  expect_whole(run(hub, "pull org/small", "HF_TOKEN=good"));
  fs::create_directories(home_.file("hf"));
  write(home_.file("hf/token"), "good\n");
  EXPECT_EQ(run(hub, "pull org/gated -q").code, 0);
}

TEST_F(Pull, AProxyOfTheEnvironmentIsUsed) {
  const Hub hub(folder_.path());
  expect_error(run(hub, "pull org/small", "http_proxy=http://127.0.0.1:9"), 7, "does not answer");
  EXPECT_EQ(run(hub, "pull org/small -q", "http_proxy=http://127.0.0.1:9 no_proxy=127.0.0.1").code,
            0);
}

TEST_F(Pull, TwoAtOnceShareTheWork) {
  const Hub hub(folder_.path());
  const Finished finished = run(hub, "pull org/small -q & $KINORA pull org/small; wait");
  EXPECT_EQ(finished.code, 0) << finished.err;
  const std::string commit = content_of(cached("refs/main"));
  EXPECT_EQ(content_of(cached("snapshots/" + commit + "/model.safetensors")),
            content_of(served("model.safetensors")));
}

TEST_F(Pull, WhatWasPulledAnswersByItsName) {
  fs::copy(fixture, folder_.file("org/answers"), fs::copy_options::recursive);
  const Hub hub(folder_.path());
  ASSERT_EQ(run(hub, "pull org/answers -q").code, 0);
  const std::string question = " --temperature 0 --max-tokens 6 -q";
  const Finished direct = run(hub, "ask Hello -m " + fixture + question);
  ASSERT_EQ(direct.code, 0) << direct.err;
  for (const char* name : {"org/answers", "answers", "models--org--answers",
                           "$HF_HOME/hub/models--org--answers", "org/answers@main"}) {
    const Finished named = run(hub, std::string("ask Hello -m ") + name + question);
    EXPECT_EQ(named.code, 0) << name << named.err;
    EXPECT_EQ(named.out, direct.out) << name;
  }
  EXPECT_NE(run(hub, "info org/answers").out.find("org/answers (qwen2_5_vl)"), std::string::npos);
  const auto listed = nlohmann::json::parse(run(hub, "models --json").out);
  ASSERT_EQ(listed.size(), 2u);
  EXPECT_EQ(listed[0].at("name"), "kinora-tiny");
  EXPECT_EQ(listed[1].at("name"), "org/answers");
  EXPECT_TRUE(listed[1].at("supported").get<bool>());
  EXPECT_EQ(listed[1].at("family"), "qwen2_5_vl");
}

}  // namespace
}  // namespace kinora::testing

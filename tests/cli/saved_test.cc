// Saved memories as a person meets them: index, ask, chat, library, and a program that is killed.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "support/cli.h"
#include "support/temp_dir.h"

namespace kinora::testing {
namespace {

const std::string fixtures = KINORA_FIXTURES;
const std::string model = fixtures + "/models/qwen2_5_vl_untied_old";

class Saved : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = new TempDir;
    make_media("-f lavfi -i testsrc2=size=64x48:rate=8:duration=2 -pix_fmt yuv420p " + clip());
  }
  static void TearDownTestSuite() {
    delete directory_;
    directory_ = nullptr;
  }
  static std::string file(const std::string& name) { return directory_->file(name); }
  static std::string clip() { return file("clip.mp4"); }
  static Finished shell(const std::string& command) {
    return kinora_shell("export XDG_DATA_HOME=" + file("data") + " HF_HOME=" + file("hub") +
                        "; cd " + directory_->path() + "; " + command);
  }

  static TempDir* directory_;
};
TempDir* Saved::directory_ = nullptr;

TEST_F(Saved, IsIndexedOnceAndAskedAnyTime) {
  const Finished indexed = shell("$KINORA index clip.mp4 -o talk.kinora --json -m " + model);
  ASSERT_EQ(indexed.code, 0) << indexed.err;
  const auto json = nlohmann::json::parse(indexed.out);
  EXPECT_EQ(json.at("frames"), 4);
  EXPECT_EQ(json.at("fresh"), true);
  const Finished again = shell("$KINORA index clip.mp4 -o talk.kinora --json -m " + model);
  EXPECT_EQ(nlohmann::json::parse(again.out).at("fresh"), false);
  EXPECT_EQ(nlohmann::json::parse(
                shell("$KINORA index clip.mp4 -o talk.kinora --again --json -m " + model).out)
                .at("fresh"),
            true);
  const Finished plain = shell("$KINORA ask clip.mp4 'What is it?' --max-tokens 6 -q -m " + model);
  // The file knows its model.
  const Finished asked = shell("$KINORA ask talk.kinora 'What is it?' --max-tokens 6 -q");
  EXPECT_EQ(asked.code, 0) << asked.err;
  EXPECT_EQ(asked.out, plain.out);
  const Finished chatted =
      shell("printf 'What is it?\\n' | $KINORA chat talk.kinora --max-tokens 6 -q");
  EXPECT_EQ(chatted.out, plain.out) << chatted.err;

  const auto listed = nlohmann::json::parse(shell("$KINORA library --json").out);
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_EQ(listed[0].at("name"), "talk");
  EXPECT_EQ(listed[0].at("key"), json.at("key"));
  EXPECT_NE(shell("$KINORA library clip").out.find("talk.kinora"), std::string::npos);
  EXPECT_EQ(shell("$KINORA library nothing").out, "");
  expect_error(shell("$KINORA library --forget nothing"), 3, "nothing");
  EXPECT_EQ(shell("$KINORA library --forget talk").code, 0);
  EXPECT_TRUE(std::filesystem::exists(file("talk.kinora")));
  EXPECT_EQ(shell("$KINORA library --json").out, "[]\n");
}

TEST_F(Saved, APresetsFileIsReadAsItWasMade) {
  ASSERT_EQ(shell("$KINORA index clip.mp4 -o fast.kinora --quality fast -q -m " + model).code, 0);
  const auto answer = [&](const std::string& question) {
    const Finished asked = shell("$KINORA ask " + question + " --max-tokens 6 -q");
    EXPECT_EQ(asked.code, 0) << asked.err;
    return asked.out;
  };
  const std::string quick = answer("clip.mp4 'What is it?' --quality fast -m " + model);
  EXPECT_EQ(answer("fast.kinora 'What is it?' --quality fast"), quick);
  ASSERT_EQ(shell("$KINORA index clip.mp4 -o half.kinora --tokens novel:0.5 -q -m " + model).code,
            0);
  EXPECT_EQ(answer("half.kinora 'What is it?' --tokens novel:0.5"),
            answer("clip.mp4 'What is it?' --tokens novel:0.5 -m " + model));
  EXPECT_EQ(answer("half.kinora 'What is it?' --tokens novel:ratio=0.50"),
            answer("half.kinora 'What is it?'"));
  for (const char* other : {"all", "all:1", "evs:0.5", "novel:0.25"}) {
    expect_error(shell("$KINORA ask half.kinora 'What is it?' --tokens " + std::string(other)), 2,
                 "was made with --tokens novel:0.5");
  }
  expect_error(shell("$KINORA ask half.kinora 'What is it?' --tokens novel:2"), 2, "--tokens");
  // However the choices were written, then and now.
  ASSERT_EQ(shell("$KINORA index clip.mp4 -o whole.kinora --tokens all:1 --retain key-norm:0.50 -q "
                  "-m " +
                  model)
                .code,
            0);
  EXPECT_EQ(answer("whole.kinora 'What is it?' --tokens all --retain key-norm:0.5"),
            answer("whole.kinora 'What is it?' --tokens all:1 --retain key-norm:ratio=0.5"));
  expect_error(shell("$KINORA ask whole.kinora 'What is it?' --tokens novel:0.5"), 2,
               "was made with --tokens all:");
  expect_error(shell("$KINORA ask whole.kinora 'What is it?' --retain key-norm:0.25"), 2,
               "was made with --retain key-norm:0.5:");
  EXPECT_EQ(shell("$KINORA library --forget fast; $KINORA library --forget half").code, 0);
}

TEST_F(Saved, TheBenchOpensWhatItSaved) {
  const Finished run = shell(
      "$KINORA bench stream --random-weights --shape bundled --device cpu --side 56 --frames 16 "
      "--frames-per-group 8 --questions 2 --moments 1 --answer-tokens 2 --json "
      "--memory mosaic:rows=16,window=8 --memory flat --reopen stream.kinora");
  ASSERT_EQ(run.code, 0) << run.err;
  const auto memories = nlohmann::json::parse(run.out).at("memories");
  ASSERT_EQ(memories.size(), 2);
  for (const auto& memory : memories) {
    const auto& reopened = memory.at("reopened");
    EXPECT_EQ(reopened.at("same_answer"), true) << memory.at("memory");
    EXPECT_EQ(reopened.at("first_token").size(), 2);
    EXPECT_GT(reopened.at("bytes"), 0);
  }
  // The last one is still there.
  EXPECT_EQ(std::filesystem::file_size(file("stream.kinora")),
            memories[1].at("reopened").at("bytes"));
  expect_error(shell("$KINORA bench stream --random-weights --shape bundled --device cpu --side 56 "
                     "--frames 8 --frames-per-group 8 --reopen absent/stream.kinora"),
               3, "cannot write absent/stream.kinora");
}

TEST_F(Saved, RefusesWhatDoesNotFit) {
  ASSERT_EQ(shell("$KINORA index clip.mp4 -o fit.kinora -q -m " + model).code, 0);
  expect_error(shell("$KINORA ask fit.kinora What? --memory mosaic"), 2, "--memory");
  expect_error(shell("$KINORA ask fit.kinora What? --retain key-norm:0.5"), 2, "--retain");
  expect_error(shell("$KINORA ask fit.kinora What? --fps 1"), 2, "frames");
  expect_error(shell("$KINORA ask clip.mp4 fit.kinora 'What is it?' -m " + model), 2, "first");
  expect_error(
      shell("$KINORA ask fit.kinora 'What is it?' -m " + fixtures + "/models/qwen2_5_vl_tied_new"),
      4, "qwen2_5_vl_untied_old");
  expect_error(
      shell("head -c 9000 fit.kinora > cut.kinora; $KINORA ask cut.kinora 'What is it?' -m " +
            model),
      4, "bytes");
  expect_error(shell("$KINORA index clip.mp4 -o clip.mp4 -m " + model), 2, "-o");
  expect_error(shell("$KINORA index clip.mp4 -o no/where.kinora -m " + model), 3, "where");
}

TEST_F(Saved, AFullDiskLeavesTheOldFile) {
  ASSERT_EQ(shell("$KINORA index clip.mp4 -o full.kinora -q -m " + model).code, 0);
  const Finished full = shell(
      "trap '' XFSZ; ulimit -f 8; $KINORA index clip.mp4 -o full.kinora "
      "--again -q -m " +
      model);
  EXPECT_EQ(full.code, 6) << full.err;
  EXPECT_NE(full.err.find("as it was"), std::string::npos) << full.err;
  EXPECT_EQ(shell("$KINORA ask full.kinora 'What is it?' --max-tokens 2 -q").code, 0);
}

// Indexing is killed at moments that cover all of it; what was saved before opens and answers.
TEST_F(Saved, AKilledProgramLeavesTheOldFile) {
  ASSERT_EQ(shell("$KINORA index clip.mp4 -o killed.kinora -q -m " + model).code, 0);
  const std::string expected =
      shell("$KINORA ask killed.kinora 'What is it?' --max-tokens 4 -q").out;
  const Finished killed = shell(
      "for i in $(seq 1 12); do $KINORA index clip.mp4 -o killed.kinora --again -q -m " + model +
      " > /dev/null & victim=$!; sleep 0.$(printf %03d $((RANDOM % 300))); kill -9 $victim; "
      "wait $victim 2> /dev/null; $KINORA ask killed.kinora 'What is it?' --max-tokens 4 -q || "
      "exit 1; done");
  EXPECT_EQ(killed.code, 0) << killed.err;
  std::string all;
  for (int i = 0; i < 12; ++i) all += expected;
  EXPECT_EQ(killed.out, all);
}

}  // namespace
}  // namespace kinora::testing

// Nothing is changed or left out in silence: one line before the answer, and "warnings" in JSON.
#include <gtest/gtest.h>

#include <kinora/session.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/notes.h"
#include "support/cli.h"
#include "support/temp_dir.h"

namespace kinora::testing {
namespace {

const std::string model = std::string(KINORA_FIXTURES) + "/models/qwen2_5_vl_untied_old";

class Silence : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = new TempDir;
    std::ofstream(file("words.srt")) << "1\n00:00:00,500 --> 00:00:01,000\nHello\n\n"
                                        "2\n00:00:01,500 --> 00:00:01,900\nand goodbye\n";
    make_media("-f lavfi -i testsrc2=size=64x48:rate=8:duration=2 -f lavfi -i sine=duration=2 -i " +
               file("words.srt") + " -map 0 -map 1 -map 2 -metadata:s:s:0 language=eng -c:s srt " +
               "-pix_fmt yuv420p " + talk());
    make_media("-f lavfi -i testsrc2=size=64x48:rate=8:duration=2 -pix_fmt yuv420p " + mute());
  }
  static void TearDownTestSuite() {
    delete directory_;
    directory_ = nullptr;
  }
  static std::string file(const std::string& name) { return directory_->file(name); }
  static std::string talk() { return file("talk.mkv"); }
  static std::string mute() { return file("mute.mp4"); }

  static Finished ask(const std::string& video, const std::vector<std::string>& more) {
    std::vector<std::string> all{"ask", video,           "What is it?", "-m",           model,
                                 "-q",  "--temperature", "0",           "--max-tokens", "2"};
    all.insert(all.end(), more.begin(), more.end());
    return kinora(all);
  }
  static nlohmann::json asked(const std::string& video, std::vector<std::string> more = {}) {
    more.emplace_back("--json");
    const Finished finished = ask(video, more);
    EXPECT_EQ(finished.code, 0) << finished.err;
    return nlohmann::json::parse(finished.out);
  }
  // Is there one about this?
  static bool warned(const nlohmann::json& answer, const std::string& words) {
    for (const auto& warning : answer.at("warnings")) {
      if (warning.get<std::string>().find(words) != std::string::npos) return true;
    }
    return false;
  }
  static TempDir* directory_;
};
TempDir* Silence::directory_ = nullptr;

TEST_F(Silence, SoundAndSubtitlesThatAreLeftOutAreSaid) {
  const Finished text = ask(talk(), {});
  EXPECT_EQ(text.err, "kinora: note: " + talk() +
                          ": its sound is not heard, its subtitles (eng) are not read "
                          "(--subtitles embedded)\n");
  const auto json = asked(talk());
  EXPECT_TRUE(warned(json, "its sound is not heard")) << json.at("warnings");
  EXPECT_TRUE(json.at("inputs")[0].at("sound").get<bool>());
  EXPECT_EQ(json.at("inputs")[0].at("subtitle_languages")[0], "eng");
  EXPECT_EQ(json.at("inputs")[0].at("subtitles"), 0);
  // Who said that they want none knows.
  const Finished none = ask(talk(), {"--subtitles", "none"});
  EXPECT_EQ(none.err, "kinora: note: " + talk() + ": its sound is not heard\n");
  EXPECT_EQ(none.out, text.out);
  EXPECT_EQ(ask(mute(), {}).err, "");
}

TEST_F(Silence, SubtitlesInsideTheVideoAreReadLikeThoseOfAFile) {
  const auto ids = [&](const std::string& subtitles) {
    const auto json = asked(talk(), {"--ids", "--subtitles", subtitles});
    EXPECT_EQ(json.at("inputs")[0].at("subtitles"), subtitles == "none" ? 0 : 2);
    return json.at("ids").at("prompt");
  };
  const auto embedded = ids("embedded");
  EXPECT_EQ(embedded, ids(file("words.srt")));
  EXPECT_EQ(embedded, ids("embedded:eng"));
  EXPECT_NE(embedded, ids("none"));
  EXPECT_FALSE(warned(asked(talk(), {"--subtitles", "embedded"}), "subtitles"));
  expect_error(ask(talk(), {"--subtitles", "embedded:ger"}), 4, "there are eng (subrip)");
  expect_error(ask(mute(), {"--subtitles", "embedded"}), 4, "no subtitles inside it");
}

TEST_F(Silence, ProbeShowsSubtitles) {
  EXPECT_NE(kinora({"probe", talk()}).out.find("subtitles       eng (subrip)\n"),
            std::string::npos);
  const auto json = nlohmann::json::parse(kinora({"probe", talk(), "--json"}).out);
  ASSERT_EQ(json.at("subtitles").size(), 1u);
  EXPECT_EQ(json.at("subtitles")[0].at("language"), "eng");
  EXPECT_TRUE(json.at("subtitles")[0].at("readable").get<bool>());
  EXPECT_EQ(kinora({"probe", mute()}).out.find("subtitles"), std::string::npos);
}

TEST_F(Silence, AnAnswerThatWasCutSaysSo) {
  const auto json = asked(mute());
  ASSERT_EQ(json.at("stop"), "max-tokens");
  EXPECT_TRUE(warned(json, "cut at 2 tokens (--max-tokens)")) << json.at("warnings");
  const Finished text = kinora(
      {"ask", mute(), "What is it?", "-m", model, "--temperature", "0", "--max-tokens", "2"});
  EXPECT_NE(text.err.find("kinora: note: the answer was cut at 2 tokens"), std::string::npos)
      << text.err;
  for (const char* why : {"budget-full", "context-full"}) {
    Answer answer;
    answer.stop = why;
    EXPECT_NE(cli::cut_note(answer), "");
  }
  Answer whole;
  whole.stop = "stop-token";
  EXPECT_EQ(cli::cut_note(whole), "");
  const Finished demo = kinora({"ask", "demo", "What moves after the bear?"});
  EXPECT_EQ(demo.err.find("note"), std::string::npos) << demo.err;
}

TEST_F(Silence, ASampleTooShortToTuneOnSaysSo) {
  std::vector<std::string> tune{"tune",      "-m",    model, "-o", file("table.json"),
                                "--restart", "--fps", "8"};
  for (int i = 0; i < 5; ++i) tune.insert(tune.end(), {"--sample", mute()});
  const Finished text = kinora(tune);
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.err.find("too few to tell patterns apart"), std::string::npos) << text.err;
  std::vector<std::string> scripted = tune;
  scripted.emplace_back("--json");
  const Finished json = kinora(scripted);
  EXPECT_EQ(json.err, "");
  EXPECT_TRUE(warned(nlohmann::json::parse(json.out), "too few"));
  EXPECT_EQ(cli::short_sample_note(25'000), "");
}

TEST_F(Silence, FramesThatMayBeElsewhereStayNearAndAreSaid) {
  const std::string film = file("film.mp4");
  make_media("-f lavfi -i testsrc2=size=64x48:rate=8:duration=8 -pix_fmt yuv420p -g 16 " + film);
  const Engine engine({.model = model, .device = "cpu"});
  const auto times = [&](double share) {
    SessionOptions options;
    options.snap_share = share;
    return Session(engine, options).add(film).times;
  };
  const std::vector<double> exact = times(0), near = times(0.5);
  ASSERT_GE(exact.size(), 8u);
  ASSERT_EQ(near.size(), exact.size());
  const double apart = (exact.back() - exact.front()) / static_cast<double>(exact.size() - 1);
  int keyframes = 0, before = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    EXPECT_LE(std::abs(near[i] - exact[i]), 0.5 * apart + 1e-6) << i;
    EXPECT_TRUE(i == 0 || near[i] > near[i - 1]) << i;
    keyframes += std::fmod(near[i], 2.0) < 1e-6;
    before += std::fmod(exact[i], 2.0) < 1e-6;
  }
  EXPECT_GT(keyframes, before);
  EXPECT_THROW(times(1.5), Error);
  SessionOptions options;
  options.snap_share = 0.5;
  InputInfo input;
  input.times = near;
  const auto notes = cli::frame_notes(options, {}, engine.describe(), {input});
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("50 % of their distance"), std::string::npos) << notes[0];
}

TEST_F(Silence, FfmpegsOwnWordsDoNotLeak) {
  // A damaged stretch in the middle makes FFmpeg complain to standard error if it is let.
  std::string bytes;
  {
    std::ifstream in(mute(), std::ios::binary);
    bytes.assign((std::istreambuf_iterator<char>(in)), {});
  }
  for (size_t i = 200; i < std::min<size_t>(bytes.size() / 2, 4000); i += 7) bytes[i] ^= 0x5a;
  std::ofstream(file("damaged.mp4"), std::ios::binary) << bytes;
  for (const std::string& name : {file("damaged.mp4"), file("words.srt")}) {
    const Finished finished = ask(name, {});
    std::istringstream lines(finished.err);
    for (std::string line; std::getline(lines, line);) {
      EXPECT_TRUE(line.starts_with("kinora: ")) << line;
    }
  }
}

}  // namespace
}  // namespace kinora::testing

// The command `watch` as a person meets it: files at any speed, pipes, questions from a pipe,
// standing questions, sources that end, break and change.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "support/cli.h"
#include "support/temp_dir.h"

namespace kinora::testing {
namespace {

const std::string fixtures = KINORA_FIXTURES;
const std::string model = fixtures + "/models/qwen2_5_vl_untied_old";

class Watch : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = new TempDir;
    make_media("-f lavfi -i testsrc2=size=64x48:rate=8:duration=6 -pix_fmt yuv420p " + clip());
  }
  static void TearDownTestSuite() {
    delete directory_;
    directory_ = nullptr;
  }
  static std::string file(const std::string& name) { return directory_->file(name); }
  static std::string clip() { return file("clip.mp4"); }
  static std::string data() { return "XDG_DATA_HOME=" + file("data") + " "; }
  static std::vector<nlohmann::json> lines_of(const std::string& text) {
    std::vector<nlohmann::json> lines;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }
  static int64_t count(const std::vector<nlohmann::json>& lines, const std::string& event) {
    return std::count_if(lines.begin(), lines.end(),
                         [&](const nlohmann::json& line) { return line.at("event") == event; });
  }
  // Watches what `serve` shows at $port, which goes away once and comes back. The time of the last
  // event, in seconds from the first frame.
  static double watch_across_a_break(const std::string& serve, const std::string& watched) {
    const Finished finished = kinora_shell(
        "port=$((20000 + RANDOM % 20000)); " + serve +
        " & server=$!; until grep -qi \":$(printf %04X $port) 00000000:0000 0A\" /proc/net/tcp; do "
        "sleep 0.1; done; timeout 60 $KINORA watch " +
        watched + " -m " + model +
        " --fps 2 --every 1s 'What is it?' --max-tokens 2 --json < /dev/null; "
        "code=$?; kill $server 2> /dev/null; wait; exit $code");
    const auto lines = lines_of(finished.out);
    EXPECT_GE(count(lines, "broke"), 1) << finished.out << finished.err;
    EXPECT_GE(count(lines, "back"), 1) << finished.out << finished.err;
    double latest = 0;
    for (const auto& line : lines) latest = std::max(latest, line.at("time").get<double>());
    return latest;
  }

  static TempDir* directory_;
};
TempDir* Watch::directory_ = nullptr;

TEST_F(Watch, AnswersLinesAboutAFileAndEndsWithIt) {
  const Finished finished =
      kinora_shell("printf 'What is it?\\n/status\\nWhy?\\n' | $KINORA watch " + clip() + " -m " +
                   model + " --speed max --max-tokens 4");
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(std::count(finished.out.begin(), finished.out.end(), '\n'), 2) << finished.out;
  EXPECT_NE(finished.err.find("frames"), std::string::npos) << finished.err;
}

TEST_F(Watch, SaysHowFarItIsAndWhatItHolds) {
  const Finished finished = kinora_shell(
      "(for i in 1 2 3 4 5 6 7 8 9; do echo /status; sleep 0.3; done) | $KINORA watch " + clip() +
      " -m " + model + " --speed max --json");
  ASSERT_EQ(finished.code, 0) << finished.err;
  int64_t frames = 0;
  for (const auto& line : lines_of(finished.out)) {
    if (line.at("event") != "status") continue;
    EXPECT_GE(line.at("frames"), frames);
    frames = line.at("frames");
    EXPECT_EQ(line.at("left_out"), 0);
    EXPECT_EQ(line.at("breaks"), 0);
    const auto& rows = line.at("row_bytes");
    EXPECT_EQ(rows.at("disk"), 0);
    const int64_t bytes = rows.at("device").get<int64_t>() + rows.at("host").get<int64_t>();
    EXPECT_EQ(bytes > 0, frames > 0) << line.dump();
  }
  EXPECT_GT(frames, 0) << finished.out;
}

TEST_F(Watch, AsksByItselfAndPrintsOnlyWhatChanged) {
  const Finished finished =
      kinora_shell("$KINORA watch " + clip() + " -m " + model +
                   " --speed max --every 2s 'What is it?' --max-tokens 4 --json < /dev/null");
  ASSERT_EQ(finished.code, 0) << finished.err;
  const auto lines = lines_of(finished.out);
  ASSERT_GE(count(lines, "answer"), 1);
  std::string before;
  double time = -1;
  for (const auto& line : lines) {
    if (line.at("event") != "answer") continue;
    EXPECT_NE(line.at("answer"), before);
    EXPECT_GT(line.at("time").get<double>(), time);
    before = line.at("answer");
    time = line.at("time");
  }
}

TEST_F(Watch, TakesAPipeAndSavesWhatItSaw) {
  const Finished finished = kinora_shell(
      "ffmpeg -nostdin -v error -i " + clip() + " -c copy -f matroska - | " + data() +
      "$KINORA watch - -m " + model + " --fps 2 --save " + file("pipe.kinora") + " --json");
  ASSERT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(count(lines_of(finished.out), "saved"), 1) << finished.out;
  const Finished asked = kinora(
      {"ask", file("pipe.kinora"), "What is it?", "-m", model, "--max-tokens", "4", "--json"});
  ASSERT_EQ(asked.code, 0) << asked.err;
  const auto json = nlohmann::json::parse(asked.out);
  EXPECT_EQ(json.at("inputs")[0].at("times").size(), 12u);
  EXPECT_EQ(json.at("frames"), 0);
  const Finished listed = kinora_shell(data() + "$KINORA library pipe --json");
  EXPECT_EQ(nlohmann::json::parse(listed.out).size(), 1u) << listed.err;
}

TEST_F(Watch, APresetLeavesTokensOutOfAStreamToo) {
  const auto rows = [&](const std::string& quality) {
    const std::string saved = file(quality + ".kinora");
    const Finished finished = kinora_shell(
        data() + "$KINORA watch " + clip() + " -m " + model + " --speed max --save " + saved +
        " --every 2s 'What is it?' --max-tokens 2 --json --quality " + quality + " < /dev/null");
    EXPECT_EQ(finished.code, 0) << finished.err;
    EXPECT_GE(count(lines_of(finished.out), "answer"), 1) << finished.out;
    const Finished asked =
        kinora({"ask", saved, "What is it?", "-m", model, "--max-tokens", "2", "--json"});
    EXPECT_EQ(asked.code, 0) << asked.err;
    return nlohmann::json::parse(asked.out).at("row_bytes").get<int64_t>();
  };
  EXPECT_LT(rows("fast"), rows("balanced"));
}

TEST_F(Watch, SurvivesAPipeThatBreaksInTheMiddle) {
  const Finished finished =
      kinora_shell("ffmpeg -nostdin -v error -i " + clip() +
                   " -c copy -f mpegts - | head -c 20000 | "
                   "$KINORA watch - -m " +
                   model + " --fps 2 --every 1s 'What is it?' --max-tokens 4");
  EXPECT_NE(finished.out.find("[00:00:0"), std::string::npos) << finished.out << finished.err;
}

// Pictures of another size, and of another codec, in one stream.
TEST_F(Watch, SurvivesAStreamThatChanges) {
  const Finished finished = kinora_shell(
      "(ffmpeg -nostdin -v error -f lavfi -i testsrc2=size=64x48:rate=8:duration=3 -pix_fmt "
      "yuv420p -c:v mpeg2video -f mpegts -; ffmpeg -nostdin -v error -f lavfi -i "
      "testsrc2=size=96x80:rate=8:duration=3 -pix_fmt yuv420p -c:v mpeg2video -f mpegts -) | "
      "$KINORA watch - -m " +
      model + " --fps 2 --every 1s 'What is it?' --max-tokens 4 --json");
  EXPECT_EQ(finished.code, 0) << finished.err;
  const auto lines = lines_of(finished.out);
  ASSERT_GE(count(lines, "answer"), 1);
}

// Five hours ahead, then back again.
TEST_F(Watch, SurvivesAClockThatJumps) {
  const auto part = [](const std::string& offset) {
    return "ffmpeg -nostdin -v error -f lavfi -i testsrc2=size=64x48:rate=8:duration=3 -pix_fmt "
           "yuv420p -c:v mpeg2video -output_ts_offset " +
           offset + " -f mpegts -; ";
  };
  const Finished finished =
      kinora_shell("(" + part("0") + part("18000") + part("10") + ") | $KINORA watch - -m " +
                   model + " --fps 2 --every 1s 'What is it?' --max-tokens 4 --json");
  EXPECT_EQ(finished.code, 0) << finished.err;
  const auto lines = lines_of(finished.out);
  ASSERT_GE(count(lines, "answer"), 1);
  for (const auto& line : lines) EXPECT_LT(line.at("time").get<double>(), 60) << line;
}

TEST_F(Watch, SaysWhatIsWrong) {
  expect_error(kinora({"watch", file("absent.mp4"), "-m", model}), 3, "absent.mp4");
  expect_error(kinora({"watch", clip(), "-m", model, "--speed", "fast"}), 2, "speed");
  expect_error(kinora({"watch", clip(), "-m", model, "--every", "soon", "What?"}), 2, "soon");
  expect_error(kinora({"watch", "/dev/video-none", "-m", model}), 3, "video-none");
  // A camera that nothing is behind; only root can make one.
  const std::string camera = file("camera");
  if (::mknod(camera.c_str(), S_IFCHR | 0600, makedev(81, 77)) == 0) {
    const Finished dark = kinora({"watch", camera, "-m", model});
    EXPECT_NE(dark.code, 0);
    EXPECT_NE(dark.err.find("camera"), std::string::npos) << dark.err;
  }
  const Finished refused =
      kinora({"watch", "rtsp://127.0.0.1:9/none", "-m", model, "--tries", "0"});
  EXPECT_NE(refused.code, 0);
  EXPECT_TRUE(refused.err.starts_with("kinora: ")) << refused.err;
}

// A camera that is watched and asked, whose connection is cut in the middle of the first showing.
TEST_F(Watch, FollowsACameraAndComesBackToIt) {
  const std::string camera = file("camera.mp4");
  make_media(
      "-f lavfi -i testsrc2=size=64x48:rate=8:duration=6 -pix_fmt yuv420p -c:v libx264 -bf 0 " +
      camera);
  const double latest = watch_across_a_break(
      "python3 " KINORA_SOURCE "/tests/support/plain_rtsp_server.py $port " + camera + " --cut 20",
      "rtsp://127.0.0.1:$port/clip --tries 1");
  EXPECT_GT(latest, 6);  // 2.5 s before the break, and 6 s after it
}

// A server that hangs up after a while and comes back.
TEST_F(Watch, ComesBackAfterABreak) {
  const std::string part = file("part.ts");
  make_media("-i " + clip() + " -c:v mpeg2video " + part);
  const std::string serve = "ffmpeg -nostdin -v error -re -i " + part +
                            " -c copy -f mpegts "
                            "\"tcp://127.0.0.1:$port?listen=1\"";
  const double latest =
      watch_across_a_break("( " + serve + "; " + serve + " )", "tcp://127.0.0.1:$port --tries 3");
  EXPECT_GT(latest, 7);  // the second time was counted behind the first
}

}  // namespace
}  // namespace kinora::testing

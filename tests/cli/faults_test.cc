// Files that kinora once failed on (tests/fixtures/faults): a wrong result, a crash, or a wait that
// grew with the square of the file. A program that waits is ended after a minute and fails.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "support/cli.h"
#include "support/temp_dir.h"

namespace kinora::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class Faults : public ::testing::Test {
 protected:
  static std::string fault(const std::string& name) { return KINORA_FIXTURES "/faults/" + name; }
  std::string file(const std::string& name) const { return directory_.file(name); }
  // What a compressed file holds.
  std::string unpacked(const std::string& name) const {
    const std::string target = file(name.substr(0, name.size() - 3));
    EXPECT_EQ(run_program({"/bin/sh", "-c", "gzip -dc " + fault(name) + " > " + target}).code, 0);
    return target;
  }
  // The only frame of a picture, as the program writes it.
  std::string shown(const std::string& picture, const std::string& name) const {
    const Finished finished = kinora({"frames", picture, "--all", "-o", file(name)});
    EXPECT_EQ(finished.code, 0) << finished.err;
    for (const auto& entry : fs::directory_iterator(file(name))) return entry.path().string();
    return "";
  }

  TempDir directory_;
};

std::vector<uint8_t> pixels_of(const std::string& picture) {
  const Finished raw =
      run_program({"/bin/sh", "-c",
                   "ffmpeg -nostdin -v error -i " + picture + " -f rawvideo -pix_fmt rgb24 -"});
  return {raw.out.begin(), raw.out.end()};
}

// The largest difference of two pictures, of 255; 256 where their sizes differ.
int levels_between(const std::string& one, const std::string& other) {
  const std::vector<uint8_t> a = pixels_of(one), b = pixels_of(other);
  if (a.empty() || a.size() != b.size()) return 256;
  int most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

TEST_F(Faults, PhotographsHaveTheColoursOfPillow) {
#ifdef KINORA_TURBOJPEG
  constexpr int most = 2;
#else
  constexpr int most = 3;  // FFmpeg's inverse transform: src/video/source/pictures_test.cc
#endif
  EXPECT_LE(levels_between(shown(fault("q95.jpg"), "photo"), fault("q95-pil.png")), most);
  EXPECT_LE(levels_between(shown(fault("lossy.webp"), "web"), fault("lossy-pil.png")), 2);
}

TEST_F(Faults, TurnedPicturesAreTurnedEveryTime) {
  for (int round = 0; round < 2; ++round) {
    const Finished finished = kinora({"probe", fault("exif6.webp"), "--json"});
    EXPECT_NE(finished.out.find("\"rotation\": 90"), std::string::npos) << finished.out;
  }
}

TEST_F(Faults, AnimatedWebpIsUnsupported) {
  expect_error(kinora({"frames", fault("anim.webp"), "--frames", "1", "-o", file("x")}), 5,
               "animated WebP");
}

TEST_F(Faults, WorkIsLinearInTheFile) {
  const Finished keys = kinora({"probe", unpacked("quadkeys.mp4.gz")});
  EXPECT_EQ(keys.code, 0) << keys.err;
  // 200,000 broken packets: some seconds, and more on a busy machine.
  const Finished broken = RunningProgram({KINORA_PROGRAM, "frames", unpacked("quadbroken.mp4.gz"),
                                          "--frames", "4", "--contact-sheet", file("s.png")})
                              .wait(200);
  EXPECT_EQ(broken.code, 0) << broken.err;
  const Finished marks = kinora({"ask", KINORA_SOURCE "/models/demo.mp4", "What?", "-q", "--frames",
                                 "2", "--subtitles", unpacked("lt.srt.gz")});
  EXPECT_EQ(marks.code, 6) << marks.err;  // two million brackets are text
}

// Ctrl-C while files that once held the program for a minute are read: at moments within the time
// that an undisturbed run takes on this machine.
TEST_F(Faults, CancellingEndsSoon) {
  const std::string keys = unpacked("quadkeys.mp4.gz"), broken = unpacked("quadbroken.mp4.gz");
  const std::string marks = unpacked("lt.srt.gz");
  const std::vector<std::vector<std::string>> commands = {
      {KINORA_PROGRAM, "probe", keys},
      {KINORA_PROGRAM, "frames", broken, "--frames", "4", "--contact-sheet", file("s.png")},
      {KINORA_PROGRAM, "ask", KINORA_SOURCE "/models/demo.mp4", "What?", "-q", "--frames", "2",
       "--subtitles", marks}};
  for (const std::vector<std::string>& command : commands) {
    SCOPED_TRACE(command[1]);
    const auto began = std::chrono::steady_clock::now();
    const int whole_code = RunningProgram(command).wait(200).code;
    const auto whole = std::chrono::duration_cast<std::chrono::microseconds>(
        std::chrono::steady_clock::now() - began);
    int stopped = 0;
    for (int round = 0; round < 6; ++round) {
      RunningProgram program(command);
      ::usleep(static_cast<useconds_t>(whole.count() * round / 10));
      program.signal(SIGINT);
      const Finished finished = program.wait(10);  // a hang; work in hand ends in 100 ms
      EXPECT_TRUE(finished.code == 130 || finished.code == whole_code)
          << finished.code << finished.err;
      stopped += finished.code == 130;
    }
    EXPECT_GT(stopped, 0);
  }
}

TEST_F(Faults, AListIsNamedAsWhatItIs) {
  expect_error(kinora({"frames", fault("rel.m3u8"), "--frames", "1", "-o", file("x")}), 4,
               "a list of other files");
}

TEST_F(Faults, JoinedRecordingsAreAsLongAsTheirPictures) {
  std::ifstream one(fault("opengop.ts"), std::ios::binary);
  std::ostringstream bytes;
  bytes << one.rdbuf();
  std::ofstream all(file("joined.ts"), std::ios::binary);
  for (int i = 0; i < 10; ++i) all << bytes.str();
  all.close();
  const Finished finished = kinora({"probe", file("joined.ts"), "--json"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  EXPECT_NEAR(json::parse(finished.out).at("duration").get<double>(), 40.0, 0.005);
}

TEST_F(Faults, ADamagedTableIsOneLine) {
  const std::string model = file("model");
  fs::create_directory(model);
  for (const auto& entry : fs::directory_iterator(KINORA_SOURCE "/models/kinora-tiny")) {
    const std::string name = entry.path().filename().string();
    if (name == "kinora-attention.json") continue;
    fs::create_symlink(fs::canonical(entry.path()), model + "/" + name);
  }
  fs::copy_file(fault("damaged-kinora-attention.json"), model + "/kinora-attention.json");
  expect_error(kinora({"ask", KINORA_SOURCE "/models/demo.mp4", "What?", "-q", "-m", model,
                       "--attention", "mminference", "--frames", "2"}),
               4, "no modality is called \"text\\n\"");
}

}  // namespace
}  // namespace kinora::testing

// The commands `frames` and `probe` as a person meets them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/cli.h"
#include "support/temp_dir.h"

namespace kinora::testing {
namespace {

// A PNG's size stands in its header, big-endian at bytes 16 and 20.
std::pair<int, int> png_size(const std::string& path) {
  const std::string bytes = [&] {
    std::string content(24, '\0');
    std::FILE* file = std::fopen(path.c_str(), "rb");
    if (file == nullptr) return std::string();
    const size_t read = std::fread(content.data(), 1, content.size(), file);
    std::fclose(file);
    content.resize(read);
    return content;
  }();
  if (bytes.size() < 24 || bytes.substr(1, 3) != "PNG") return {0, 0};
  const auto number = [&](size_t at) {
    int value = 0;
    for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
    return value;
  };
  return {number(16), number(20)};
}

class Frames : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = new TempDir;
    make_media("-f lavfi -i testsrc2=size=96x64:rate=10:duration=5 -g 20 -pix_fmt yuv420p " +
               clip());
    // FFmpeg 6 and newer take the rotation as an option, older ones as metadata.
    const std::string copy = " -i " + clip() + " -c copy ";
    const std::string newer = "ffmpeg -nostdin -v quiet -y -display_rotation 90" + copy + turned();
    if (std::system(newer.c_str()) != 0) make_media(copy + "-metadata:s:v rotate=90 " + turned());
  }
  static void TearDownTestSuite() {
    delete directory_;
    directory_ = nullptr;
  }
  static std::string file(const std::string& name) { return directory_->file(name); }
  static std::string clip() { return file("clip.mp4"); }
  static std::string turned() { return file("turned.mp4"); }
  static size_t files_in(const std::string& directory) {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(directory), {}));
  }

  static TempDir* directory_;
};
TempDir* Frames::directory_ = nullptr;

TEST_F(Frames, WritesOnePictureASecond) {
  const Finished finished = kinora({"frames", clip(), "--fps", "1", "-o", file("one")});
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(files_in(file("one")), 5u);
  for (const char* name :
       {"frame-000000-0.000s.png", "frame-000010-1.000s.png", "frame-000040-4.000s.png"}) {
    EXPECT_EQ(png_size(file("one") + "/" + name), std::pair(96, 64)) << name;
  }
}

TEST_F(Frames, MakesAContactSheetAndSizedPicturesAtOnce) {
  const Finished finished =
      kinora({"frames", clip(), "--frames", "6", "-o", file("six"), "--contact-sheet",
              file("sheet.png"), "--size", "40x30", "--columns", "3"});
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(files_in(file("six")), 6u);
  for (const auto& entry : std::filesystem::directory_iterator(file("six"))) {
    EXPECT_EQ(png_size(entry.path()), std::pair(40, 30));
  }
  const auto [width, height] = png_size(file("sheet.png"));
  EXPECT_GE(width, 3 * 40);
  EXPECT_LT(width, 4 * 40 + 40);
  EXPECT_GE(height, 2 * 30);
}

TEST_F(Frames, ListsFramesWithoutDecoding) {
  const auto listed = [&](std::vector<std::string> choice) {
    choice.insert(choice.begin(), {"frames", clip(), "--json"});
    const Finished finished = kinora(choice);
    EXPECT_EQ(finished.code, 0) << finished.err;
    const auto json = nlohmann::json::parse(finished.out);
    std::vector<int> indices;
    for (const auto& frame : json.at("frames")) {
      indices.push_back(frame.at("index"));
    }
    return indices;
  };
  EXPECT_EQ(listed({"--fps", "1"}), (std::vector{0, 10, 20, 30, 40}));
  EXPECT_EQ(listed({"--every", "2"}), (std::vector{0, 20, 40}));
  // Keyframes are 0, 20 and 40.
  EXPECT_EQ(listed({"--times", "0.3,1.9,4.4"}), (std::vector{3, 19, 44}));
  EXPECT_EQ(listed({"--times", "0.3,1.9,4.4", "--snap", "0.5"}), (std::vector{0, 20, 40}));
  EXPECT_EQ(listed({"--times", "0:01.25,4.999,0.1"}), (std::vector{1, 12, 49}));
  EXPECT_EQ(listed({"--indices", "7,3"}), (std::vector{3, 7}));
  EXPECT_EQ(listed({"--rule", "qwen", "--fps", "1"}), (std::vector{0, 16, 33, 49}));
  EXPECT_EQ(listed({"--rule", "qwen"}), (std::vector{0, 5, 11, 16, 22, 27, 33, 38, 44, 49}));
  EXPECT_EQ(listed({"--start", "0:01", "--rule", "qwen", "--frames", "4"}),
            (std::vector{10, 23, 36, 49}));
  EXPECT_EQ(listed({"--rule", "qwen", "--start", "1.01", "--end", "1.02"}), (std::vector{10}));
  EXPECT_EQ(listed({"--rule", "time", "--frames", "3"}), (std::vector{0, 24, 49}));
  EXPECT_EQ(listed({}), (std::vector{0, 10, 20, 30, 40}));
  EXPECT_EQ(listed({"--all"}).size(), 50u);
  EXPECT_EQ(listed({"--fps", "1", "--start", "0:03"}), (std::vector{30, 40}));
}

TEST_F(Frames, SaysByWhichRuleFramesWereChosen) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> rules = {
      {"every", {}},
      {"every", {"--every", "2"}},
      {"uniform", {"--frames", "3"}},
      {"times", {"--times", "1"}},
      {"indices", {"--indices", "1"}},
      {"all", {"--all"}},
      {"qwen", {"--frames", "4", "--rule", "qwen"}}};
  for (const auto& [name, choice] : rules) {
    std::vector<std::string> arguments = {"frames", clip(), "--json"};
    arguments.insert(arguments.end(), choice.begin(), choice.end());
    EXPECT_EQ(nlohmann::json::parse(kinora(arguments).out).at("rule"), name);
  }
}

TEST_F(Frames, PicturesAreUpright) {
  const Finished finished =
      kinora({"frames", turned(), "--indices", "0", "-o", file("upright"), "-q"});
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(finished.err, "");
  EXPECT_EQ(png_size(file("upright") + "/frame-000000-0.000s.png"), std::pair(64, 96));
}

TEST_F(Frames, BadRequestsAreOneLine) {
  expect_error(kinora({"frames", clip()}), 2, "-o DIR");
  expect_error(kinora({"frames", clip(), "-o", file("x"), "--fps", "1", "--all"}), 2, "one way");
  expect_error(kinora({"frames", clip(), "-o", file("x"), "--times", "1", "--every", "2"}), 2,
               "--every or --times, not both");
  expect_error(kinora({"frames", clip(), "-o", file("x"), "--fps", "0"}), 2, "fps");
  expect_error(kinora({"frames", clip(), "-o", file("x"), "--every", "0"}), 2, "--every");
  expect_error(kinora({"frames", clip(), "-o", file("x"), "--snap", "-1"}), 2, "not a time");
  expect_error(kinora({"frames", clip(), "-o", file("x"), "--snap", "near"}), 2, "not a time");
  expect_error(kinora({"frames", clip(), "-o", file("x"), "--times", "soon"}), 2, "'soon'");
  expect_error(kinora({"frames", clip(), "-o", file("x"), "--size", "40"}), 2, "'40'");
  expect_error(kinora({"frames", clip(), "-o", file("x"), "--indices", "50"}), 2, "49");
  expect_error(kinora({"frames", clip(), "-o", file("x"), "--rule", "qwen", "--all"}), 2, "qwen");
  expect_error(kinora({"frames", file("absent.mp4"), "-o", file("x")}), 3, "absent.mp4");
  expect_error(kinora({"frames", clip(), "-o", file("x"), "--raise-limits", "0.005"}), 6,
               "--raise-limits");
  EXPECT_FALSE(std::filesystem::exists(file("x")));
}

TEST_F(Frames, ProbeTellsWhatIsInside) {
  const Finished finished = kinora({"probe", turned(), "--json"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const auto json = nlohmann::json::parse(finished.out);
  EXPECT_EQ(json.at("frames"), 50);
  EXPECT_EQ(json.at("codec"), "h264");
  // Versions of ffmpeg differ in which way rotate=90 turns.
  EXPECT_TRUE(json.at("rotation") == 90 || json.at("rotation") == 270);
  EXPECT_EQ(json.at("size").at("width"), 64);
  EXPECT_EQ(json.at("coded_size").at("width"), 96);
  EXPECT_EQ(json.at("keyframes"), 3);
  EXPECT_NEAR(json.at("keyframe_gap").get<double>(), 2.0, 1e-9);
  EXPECT_NEAR(json.at("duration").get<double>(), 5.0, 1e-6);
  const auto& costs = json.at("question_cost");
  ASSERT_GE(costs.size(), 3u);
  EXPECT_EQ(costs[0].at("frames"), 10);  // 2 a second
  EXPECT_EQ(costs[0].at("tokens").get<int>(),
            costs[0].at("size").at("width").get<int>() / 28 *
                (costs[0].at("size").at("height").get<int>() / 28) * 5);
  const Finished text = kinora({"probe", clip()});
  EXPECT_EQ(text.code, 0);
  for (const char* word : {"50 frames", "keyframes", "96×64", "Qwen2.5-VL", "LLaVA-Video"}) {
    EXPECT_NE(text.out.find(word), std::string::npos) << word;
  }
}

TEST_F(Frames, ProbeRefusesWhatIsNoVideo) {
  expect_error(kinora({"probe", "/etc/passwd"}), 4, "/etc/passwd");
  expect_error(kinora({"probe", file("absent.mp4")}), 3, "absent.mp4");
}

// Pictures that stand alone: a damaged one is lost, and its neighbours are not.
TEST_F(Frames, ListsTheFramesThatWereLost) {
  const std::string path = file("torn.mkv");
  make_media("-f lavfi -i testsrc2=size=96x64:rate=10:duration=3 -c:v png " + path);
  {
    std::fstream video(path, std::ios::in | std::ios::out | std::ios::binary);
    video.seekp(static_cast<std::streamoff>(std::filesystem::file_size(path) / 2));
    video << std::string(9000, '\0');
  }
  const std::string folder = file("torn");
  const Finished finished = kinora({"frames", path, "--all", "-o", folder, "--json"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const auto json = nlohmann::json::parse(finished.out);
  int lost = 0;
  for (const auto& frame : json.at("frames")) {
    lost += frame.value("lost", false) ? 1 : 0;
    EXPECT_EQ(frame.contains("file"), !frame.value("lost", false));
    if (frame.contains("file")) {
      EXPECT_TRUE(std::filesystem::exists(frame.at("file").get<std::string>()));
    }
  }
  EXPECT_GE(lost, 1);
  EXPECT_EQ(lost, json.at("lost"));
}

TEST_F(Frames, SaysWhatACutFileLacks) {
  const std::string path = file("cut.mp4");
  make_media("-f lavfi -i testsrc2=size=96x64:rate=10:duration=20 -g 10 -movflags +faststart " +
             path);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  const Finished probed = kinora({"probe", path});
  EXPECT_EQ(probed.code, 0) << probed.err;
  EXPECT_NE(probed.out.find("that the header promises: the file was cut"), std::string::npos)
      << probed.out;
  const auto json = nlohmann::json::parse(kinora({"probe", path, "--json"}).out);
  EXPECT_NEAR(json.at("missing").get<double>() + json.at("duration").get<double>(), 20, 0.01);
  EXPECT_EQ(nlohmann::json::parse(kinora({"probe", clip(), "--json"}).out).at("missing"), 0);
  const Finished listed = kinora({"frames", path, "--frames", "3", "--json"});
  EXPECT_EQ(listed.code, 0);
  EXPECT_NE(listed.err.find("the file was cut"), std::string::npos) << listed.err;
  EXPECT_GT(nlohmann::json::parse(listed.out).at("missing").get<double>(), 1);
}

}  // namespace
}  // namespace kinora::testing

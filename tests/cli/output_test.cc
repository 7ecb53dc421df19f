// Standard output and standard error that cannot be written: nothing is lost in silence, and
// nothing aborts.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/cli.h"
#include "support/temp_dir.h"

namespace kinora::testing {
namespace {

constexpr int could_not_write = 6;

// Commands that print a result, of every kind: text at once, piece by piece, JSON, long help.
std::vector<std::string> printing_commands(const TempDir& dir) {
  std::ofstream(dir.file("set.jsonl")) << R"({"question": "What?", "answer": "nothing"})"
                                       << "\n";
  std::ofstream(dir.file("mlvu.json"))
      << R"([{"video": "a.mp4", "question": "What?", "answer": "x", "question_type": "needle"}])";
  return {"--version",
          "version",
          "help",
          "help policies",
          "help --man",
          "ask --help",
          "completion bash",
          "probe demo",
          "probe demo --json",
          "frames demo --frames 2 --json",
          "info",
          "info --json",
          "models",
          "tokenize \"two words\"",
          "ask demo \"What happens?\" --frames 2 --max-tokens 3",
          "ask demo \"What happens?\" --frames 2 --max-tokens 3 --json",
          "ask demo \"What happens?\" --frames 2 --dry-run",
          "chat -q < <(printf 'Hello?\\nAnd?\\n')",
          "eval " + dir.file("set.jsonl") + " --max-tokens 2 --no-cache",
          "eval " + dir.file("mlvu.json") + " --import mlvu --videos ."};
}

// Commands that print what they did besides writing it into a file, which they do again each time.
std::vector<std::string> working_commands(const TempDir& dir) {
  const std::string films = KINORA_FIXTURES "/eval/";
  std::ifstream all(films + "DATA.jsonl");
  std::ofstream timed(dir.file("timed.jsonl"));
  int kept = 0;
  for (std::string line; kept < 2 && std::getline(all, line);) {
    auto question = nlohmann::json::parse(line);
    if (!question.contains("times") || !question.contains("video")) continue;
    question["video"] = films + question.at("video").get<std::string>();
    timed << question << "\n";
    ++kept;
  }
  timed.close();
  const std::string film = films + "mixed-32-0-0.mp4";
  return {
      "index demo --frames 2 --again -o " + dir.file("demo.kinora"),
      "index demo --frames 2 --again --json -o " + dir.file("demo.kinora"),
      "library",
      "library --json",
      "inspect attention demo --frames 2 --layer 0 -o " + dir.file("inspected"),
      "inspect attention demo --frames 2 --layer 0 --json -o " + dir.file("inspected"),
      "tune -m kinora-tiny --sample demo --frames 16 -o " + dir.file("table.json"),
      "tune -m kinora-tiny --sample demo --frames 16 --json -o " + dir.file("table.json"),
      "calibrate " + dir.file("timed.jsonl") + " --heads 1 -o " + dir.file("heads.json"),
      "quantize " KINORA_SOURCE "/models/kinora-tiny --int8 -o $(mktemp -du -p " + dir.path() + ")",
      "bench stream --random-weights --shape bundled --device cpu --side 56 --frames 8 "
      "--frames-per-group 4 --moments 1 --questions 1 --memory flat",
      "watch " + film + " --speed max --fps 1 --every 1s 'What?' --max-tokens 2 -q",
      "watch " + film + " --speed max --fps 1 --every 1s 'What?' --max-tokens 2 --json"};
}

// Memories are listed in this folder, not in that of the person who runs the tests.
Finished run_in(const TempDir& dir, const std::string& command) {
  return kinora_shell("export XDG_DATA_HOME=" + dir.file("data") + "; $KINORA " + command);
}

void expect_errors_without_output(const TempDir& dir, const std::vector<std::string>& commands) {
  for (const std::string& command : commands) {
    for (const std::string out : {">/dev/full", ">&-"}) {
      SCOPED_TRACE(command + " " + out);
      const Finished finished = run_in(dir, command + " " + out);
      EXPECT_EQ(finished.code, could_not_write) << finished.err;
      EXPECT_NE(finished.err.find("cannot write to standard output"), std::string::npos)
          << finished.err;
    }
  }
}

void expect_work_without_remarks(const TempDir& dir, const std::vector<std::string>& commands) {
  for (const std::string& command : commands) {
    SCOPED_TRACE(command);
    const Finished shown = run_in(dir, command);
    ASSERT_EQ(shown.code, 0) << shown.err;
    EXPECT_FALSE(shown.out.empty());
    // Whoever closes standard error wants no remarks; a full disk loses them.
    const Finished closed = run_in(dir, command + " 2>&-");
    EXPECT_EQ(closed.code, 0);
    EXPECT_EQ(closed.out.empty(), shown.out.empty());
    const Finished full = run_in(dir, command + " 2>/dev/full");
    EXPECT_EQ(full.code, shown.err.empty() ? 0 : could_not_write);
    EXPECT_EQ(full.out.empty(), shown.out.empty());
  }
}

TEST(Output, ResultsThatCannotBeWrittenAreAnError) {
  const TempDir dir;
  expect_errors_without_output(dir, printing_commands(dir));
}

TEST(Output, RemarksThatCannotBeWrittenDoNotEndTheWork) {
  const TempDir dir;
  expect_work_without_remarks(dir, printing_commands(dir));
}

TEST(Output, ReportsThatCannotBeWrittenAreAnError) {
  const TempDir dir;
  ASSERT_EQ(run_in(dir, "index demo --frames 2 -o " + dir.file("demo.kinora")).code, 0);
  expect_errors_without_output(dir, working_commands(dir));
}

TEST(Output, RemarksBesideReportsDoNotEndTheWork) {
  const TempDir dir;
  expect_work_without_remarks(dir, working_commands(dir));
}

TEST(Output, ErrorsKeepTheirCodeWhereNothingCanBeWritten) {
  for (const std::string where :
       {"2>/dev/full", "2>&-", ">&- 2>&-", "<&- >&- 2>&-", ">/dev/full 2>/dev/full"}) {
    SCOPED_TRACE(where);
    EXPECT_EQ(kinora_shell("$KINORA probe /no/such/file " + where).code, 3);
    EXPECT_EQ(kinora_shell("$KINORA probe /no/such/file --json " + where).code, 3);
    EXPECT_EQ(kinora_shell("$KINORA nonsense " + where).code, 2);
  }
}

// What is printed must not end up in a file that the program opens for itself.
TEST(Output, ClosedDescriptorsAreNotTakenByFiles) {
  const TempDir dir;
  const std::string sheet = dir.file("sheet.png");
  const Finished finished = kinora_shell("$KINORA frames demo --frames 2 --json --contact-sheet " +
                                         sheet + " <&- >&- 2>&-");
  EXPECT_EQ(finished.code, could_not_write);
  std::ifstream file(sheet, std::ios::binary);
  std::string head(8, '\0');
  file.read(head.data(), 8);
  EXPECT_EQ(head, "\x89PNG\r\n\x1a\n");
}

TEST(Output, NamesThatAreNoTextWorkWithJson) {
  const TempDir dir;
  const std::string name = dir.file("caf\xe9\x1b[2J.mp4");
  std::filesystem::copy_file(KINORA_SOURCE "/models/demo.mp4", name);
  const std::string quoted = "$'" + dir.path() + "/caf\\xe9\\x1b[2J.mp4'";
  for (const std::string& command :
       {"probe " + quoted + " --json", "frames " + quoted + " --frames 2 --json",
        "ask " + quoted + " 'What?' --json --frames 2 --max-tokens 2 --trace " +
            dir.file("trace.json")}) {
    SCOPED_TRACE(command);
    const Finished finished = kinora_shell("$KINORA " + command);
    EXPECT_EQ(finished.code, 0) << finished.err;
    EXPECT_NE(finished.out.find("caf\xef\xbf\xbd\\u001b[2J.mp4"), std::string::npos);
  }
}

TEST(Output, HostileNamesStayOnOneLine) {
  const Finished finished =
      kinora_shell("$KINORA probe $'/no/such\\nkinora: all is well\\x1b[2J\\xff'");
  expect_error(finished, 3, "/no/such\\nkinora: all is well\\x1b[2J\\xff");
}

// Adds a tensor that nobody reads, as old models have some, and that takes no room on the disk.
void make_larger(const std::string& path, uint64_t bytes) {
  std::string file;
  {
    std::ifstream from(path, std::ios::binary);
    file.assign(std::istreambuf_iterator<char>(from), {});
  }
  uint64_t header = 0;
  std::memcpy(&header, file.data(), sizeof header);
  std::string text = file.substr(8, header);
  const uint64_t end = file.size() - 8 - header;
  text.resize(text.find_last_of('}'));
  text += R"(,"model.rotary_emb.inv_freq":{"dtype":"U8","shape":[)" + std::to_string(bytes) +
          R"(],"data_offsets":[)" + std::to_string(end) + "," + std::to_string(end + bytes) + "]}}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::ofstream to(path, std::ios::binary);
  to.write(reinterpret_cast<const char*>(&length), sizeof length);
  to << text;
  to.write(file.data() + 8 + header, static_cast<std::streamsize>(end));
  to.close();
  std::filesystem::resize_file(path, 8 + length + end + bytes);
}

// Weights that are not small are read where they are mapped: the second question finds pages
// without bytes.
TEST(Output, AModelThatIsCutWhileItIsUsedIsAnError) {
  const TempDir dir;
  const std::string model = dir.file("model");
  std::filesystem::copy(KINORA_SOURCE "/models/kinora-tiny", model,
                        std::filesystem::copy_options::recursive);
  make_larger(model + "/model.safetensors", uint64_t{260} << 20);
  const Finished finished =
      kinora_shell("coproc K { exec $KINORA chat -q --device cpu -m " + model +
                   "; }; out=${K[0]} in=${K[1]} pid=$K_PID; "
                   "echo Hello >&$in; read -r line <&$out; "
                   "for f in " +
                   model +
                   "/*.safetensors; do truncate -s 8192 $f; done; "
                   "echo Again >&$in; wait $pid");
  EXPECT_EQ(finished.code, 4) << finished.err;
  EXPECT_NE(finished.err.find("became shorter while it was in use"), std::string::npos)
      << finished.err;
}

}  // namespace
}  // namespace kinora::testing

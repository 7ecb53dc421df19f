// The commands that look at attention while a prompt is read: tune, inspect, eval --recall.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "support/cli.h"
#include "support/film.h"
#include "support/random_data.h"
#include "support/temp_dir.h"

namespace kinora::testing {
namespace {

const std::string model = std::string(KINORA_FIXTURES) + "/models/qwen2_5_vl_tied_new";

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

class Tools : public ::testing::Test {
 protected:
  void SetUp() override {
    KINORA_FRESH_RANDOM(random);
    film_ = write_film(directory_.file("film"), random, 24, 120, 160);
    std::ofstream(directory_.file("film.srt"))
        << "1\n00:00:05,000 --> 00:00:07,000\nA dog barks.\n";
  }
  Finished inspect(std::vector<std::string> more) const {
    std::vector<std::string> all = {"inspect", "attention", film_,    "-m", model,
                                    "--fps",   "1",         "--json", "-o", directory_.file("out")};
    all.insert(all.end(), more.begin(), more.end());
    return kinora(all);
  }

  const TempDir directory_;
  std::string film_;
};

TEST_F(Tools, InspectReadsAsAskDoes) {
  std::vector<int64_t> tokens;
  for (const auto& more : std::vector<std::vector<std::string>>{
           {"--one-group"},
           {},
           {"--retain", "key-norm:0.5", "--frames-per-group", "8"},
           {"--subtitles", directory_.file("film.srt"), "--retain", "attention-score:0.5"}}) {
    std::vector<std::string> flags = more;
    flags.insert(flags.end(), {"--layer", "1", "--attention", "a-shape:sink=3,local=16"});
    const Finished finished = inspect(flags);
    ASSERT_EQ(finished.code, 0) << finished.err;
    const auto out = nlohmann::json::parse(finished.out);
    EXPECT_EQ(out.at("layer"), 1);
    ASSERT_GT(out.at("heads").size(), 1u);
    for (const auto& head : out.at("heads")) {
      EXPECT_EQ(head.at("pattern"), "a-shape");
      EXPECT_GT(head.at("recall"), 0.01);
      EXPECT_LT(head.at("recall"), 0.9999);
      EXPECT_LT(head.at("share_of_flops"), 0.99);
    }
    tokens.push_back(out.at("tokens").get<int64_t>());
    EXPECT_TRUE(std::filesystem::exists(out.at("picture").get<std::string>()));
    EXPECT_TRUE(std::filesystem::exists(out.at("page").get<std::string>()));
  }
  EXPECT_EQ(tokens[0], tokens[1]);
  EXPECT_EQ(tokens[0], tokens[2]);
  EXPECT_GT(tokens[3], tokens[0]);  // the subtitle
}

TEST_F(Tools, InspectRefusesWhatIsNotThere) {
  expect_error(kinora({"inspect", "attention", film_, "-m", model, "--layer", "99"}), 2,
               "layer 99 of");
  expect_error(kinora({"inspect", "attention", film_, "-m", model, "--head", "99", "-o",
                       directory_.file("out")}),
               2, "head 99 of");
  expect_error(kinora({"inspect", "attention", film_, "-m", model, "--retain", "x"}), 2,
               "--retain 'x'");
}

TEST_F(Tools, TuneWritesATableThatAskTakes) {
  const std::string copy = directory_.file("model");
  std::filesystem::copy(model, copy);
  const Finished tuned = kinora({"tune", "-m", copy, "--sample", film_, "--fps", "1", "--subtitles",
                                 directory_.file("film.srt"), "--budget", "50", "--json"});
  ASSERT_EQ(tuned.code, 0) << tuned.err;
  const auto table = nlohmann::json::parse(tuned.out);
  EXPECT_EQ(table.at("budget"), 0.5);
  EXPECT_EQ(table.at("budget_unit"), "flops");
  for (const auto& layer : table.at("patterns")) {
    for (const auto& head : layer) EXPECT_LE(head.at("flops"), 0.5 + 1e-9);
  }
  const Finished answered =
      kinora({"ask", film_, "What is it?", "-m", copy, "--fps", "1", "--attention", "mminference",
              "--dense-below", "0", "--device", "cpu", "--max-tokens", "2", "-q"});
  EXPECT_EQ(answered.code, 0) << answered.err;

  std::ofstream(directory_.file("set.jsonl"))
      << R"({"question": "Who are you?", "answer": "a model"})"
      << "\n";
  expect_error(kinora({"tune", "-m", copy, "--sample", directory_.file("set.jsonl")}), 2,
               "a search needs at least 128");
}

// Byte for byte, on however many threads.
TEST_F(Tools, TuneTwiceGivesTheSameTable) {
  for (const char* unit : {"flops", "cpu", "gpu"}) {
    std::vector<std::string> tables;
    for (const char* threads : {"1", "2"}) {
      tables.push_back(directory_.file(std::string("table-") + unit + threads));
      const Finished tuned =
          kinora({"tune", "-m", model, "--sample", film_, "--fps", "1", "--subtitles",
                  directory_.file("film.srt"), "--budget", "30", "--budget-in", unit, "--threads",
                  threads, "-o", tables.back()});
      ASSERT_EQ(tuned.code, 0) << tuned.err;
    }
    EXPECT_EQ(read_text(tables[0]), read_text(tables[1])) << unit;
  }
  // What is not finished goes on only with the same budget.
  const std::string part = directory_.file("part");
  auto table = nlohmann::json::parse(read_text(directory_.file("table-cpu1")));
  table.at("patterns").at(0).at(0) = nullptr;
  std::ofstream(part) << table;
  const std::vector<std::string> again{"tune",     "-m",          model,
                                       "--sample", film_,         "--fps",
                                       "1",        "--subtitles", directory_.file("film.srt"),
                                       "-o",       part};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), again.begin(), again.end());
    return kinora(more);
  };
  expect_error(with({"--budget", "30"}), 2, "holds an unfinished search with another budget");
  expect_error(with({"--budget", "31", "--budget-in", "cpu"}), 2, "with another budget");
  EXPECT_EQ(with({"--budget", "30", "--budget-in", "cpu"}).code, 0);
  EXPECT_EQ(nlohmann::json::parse(read_text(part)),
            nlohmann::json::parse(read_text(directory_.file("table-cpu1"))));
}

TEST_F(Tools, TuneTakesSeveralPromptsOfASet) {
  const std::string set = directory_.file("set.jsonl");
  std::ofstream lines(set);
  for (const char* word : {"The cat sat. ", "The cat sat. ", "A dog ran by. "}) {
    std::string text;
    for (int i = 0; i < 100; ++i) text += word;
    lines << nlohmann::json{{"parts", {{{"text", text}}}}, {"question", "Who?"}, {"answer", "A"}}
          << "\n";
  }
  lines.close();
  const std::string table = directory_.file("table.json");
  const Finished tuned =
      kinora({"tune", "-m", model, "--sample", set, "--prompts", "2", "-o", table, "--json"});
  ASSERT_EQ(tuned.code, 0) << tuned.err;
  EXPECT_EQ(nlohmann::json::parse(tuned.out).at("format"), "kinora-attention");
  EXPECT_TRUE(std::filesystem::exists(table));
  EXPECT_FALSE(std::filesystem::exists(table + ".1"));
  EXPECT_FALSE(std::filesystem::exists(table + ".2"));
  expect_error(kinora({"tune", "-m", model, "--sample", set, "--prompts", "3", "-o", table}), 2,
               "has 2 prompts, not 3");
  expect_error(kinora({"tune", "-m", model, "--sample", film_, "--prompts", "2", "-o", table}), 2,
               "--prompts counts the prompts of a set");
}

}  // namespace
}  // namespace kinora::testing

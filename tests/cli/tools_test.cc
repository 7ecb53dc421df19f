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
  const std::string begun =
      part +
      ": holds an unfinished search that was begun with --budget 30 --budget-in cpu; give "
      "those, --restart, or another --output";
  expect_error(with({"--budget", "30"}), 2, begun);
  expect_error(with({"--budget", "31", "--budget-in", "cpu"}), 2, begun);
  EXPECT_EQ(with({"--budget", "30", "--budget-in", "cpu"}).code, 0);
  EXPECT_EQ(nlohmann::json::parse(read_text(part)),
            nlohmann::json::parse(read_text(directory_.file("table-cpu1"))));
}

// Other budgets are refused before the sample is read: it is not there.
TEST_F(Tools, TuneGoesOnOnlyAsItWasBegun) {
  const std::string table = directory_.file("table"), part = directory_.file("part");
  const std::vector<std::string> tune{"tune",  "-m", model,       "--sample", film_,
                                      "--fps", "1",  "--threads", "2"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), tune.begin(), tune.end());
    return kinora(more);
  };
  ASSERT_EQ(with({"--budget", "30", "-o", table}).code, 0);
  const auto finished = nlohmann::json::parse(read_text(table));
  EXPECT_FALSE(finished.contains("origin"));
  const auto write_part = [&](const nlohmann::json& origin, const std::string& unit) {
    auto unfinished = finished;
    unfinished.at("patterns").at(0).at(0) = nullptr;
    unfinished["budget_unit"] = unit;
    if (origin.is_object()) unfinished["origin"] = origin;
    std::ofstream(part) << unfinished;
  };
  struct Begun {
    std::string budget, unit, said;
  };
  for (const auto& [budget, unit, said] :
       {Begun{"30", "flops", "--budget 30 --budget-in flops"},
        Begun{"27.5", "cpu", "--budget 27.5 --budget-in cpu"},
        Begun{"", "gpu", "--budget-in gpu and no --budget"},
        Begun{"", "flops", "--budget-in flops and no --budget"}}) {
    write_part({{"budget", budget}, {"sample", ""}}, unit);
    const std::string before = read_text(part);
    for (const char* given : {"", "30", "27.5", "31"}) {
      for (const char* given_in : {"flops", "cpu", "gpu"}) {
        if (given == budget && given_in == unit) continue;
        std::vector<std::string> again{"tune", "-m", model,         "--sample", "not-there.mp4",
                                       "-o",   part, "--budget-in", given_in};
        if (*given != 0) again.insert(again.end(), {"--budget", given});
        expect_error(kinora(again), 2,
                     part + ": holds an unfinished search that was begun with " + said +
                         "; give those, --restart, or another --output");
      }
    }
    EXPECT_EQ(read_text(part), before);
  }
  write_part({{"budget", "30"}, {"sample", "another"}}, "flops");
  expect_error(with({"--budget", "30", "-o", part}), 2,
               part + ": holds an unfinished search on another sample");
  // Of an earlier version.
  write_part(nullptr, "flops");
  const Finished late = with({"-o", part});  // after a note on the sample
  EXPECT_EQ(late.code, 2);
  EXPECT_NE(late.err.find("was begun with 30.00 % of dense attention's FLOPs"), std::string::npos)
      << late.err;
  EXPECT_EQ(with({"--budget", "30", "-o", part}).code, 0);
  EXPECT_EQ(read_text(part), read_text(table));
  write_part({{"budget", "30"}, {"sample", "another"}}, "flops");
  EXPECT_EQ(with({"--budget", "30", "--restart", "-o", part}).code, 0);
  EXPECT_EQ(read_text(part), read_text(table));
}

TEST_F(Tools, TuneKeepsTheFinishedPartsOfASearchOnSeveralPrompts) {
  const std::string set = directory_.file("set.jsonl"), table = directory_.file("table.json");
  const auto write_set = [&](int first_words, int second_words) {
    std::ofstream lines(set);
    for (const int count : {first_words, second_words}) {
      std::string text;
      for (int i = 0; i < count; ++i) text += count % 2 == 0 ? "The cat sat. " : "A dog ran by. ";
      lines << nlohmann::json{{"parts", {{{"text", text}}}}, {"question", "Who?"}, {"answer", "A"}}
            << "\n";
    }
  };
  const auto tune = [&](const std::string& budget) {
    return kinora(
        {"tune", "-m", model, "--sample", set, "--prompts", "2", "--budget", budget, "-o", table});
  };
  const auto expect_too_short = [](const Finished& finished) {
    EXPECT_EQ(finished.code, 2);
    EXPECT_NE(finished.err.find("a search needs at least 128"), std::string::npos) << finished.err;
  };
  const auto first_recall = [&] {
    return nlohmann::json::parse(read_text(table + ".1")).at("patterns")[0][0].at("recall");
  };
  const auto mark = [&] {
    auto part = nlohmann::json::parse(read_text(table + ".1"));
    part["patterns"][0][0]["recall"] = 0.125;
    std::ofstream(table + ".1") << part;
  };
  write_set(100, 3);  // the second is too short
  expect_too_short(tune("50"));
  mark();
  expect_too_short(tune("50"));
  EXPECT_EQ(first_recall(), 0.125);  // taken as it is
  expect_too_short(tune("40"));
  EXPECT_NE(first_recall(), 0.125);  // searched anew with another budget …
  mark();
  write_set(102, 3);
  expect_too_short(tune("40"));
  EXPECT_NE(first_recall(), 0.125);  // … or on another sample
  write_set(102, 101);
  EXPECT_EQ(tune("40").code, 0);
  EXPECT_FALSE(std::filesystem::exists(table + ".1"));
  EXPECT_FALSE(nlohmann::json::parse(read_text(table)).contains("origin"));
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

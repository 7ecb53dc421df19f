// Policies as a person meets them: help, documentation, flags, errors.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "cli/answer_text.h"
#include "cli/eval_policy.h"
#include "cli/help/needs.h"
#include "cli/policies.h"
#include "generate/policies.h"
#include "memory/policies.h"
#include "support/cli.h"

namespace kinora::testing {
namespace {

using cli::parse_eval_policy;

// Characters of the longest line.
size_t widest_line(const std::string& text) {
  std::istringstream lines(text);
  size_t widest = 0;
  for (std::string line; std::getline(lines, line);) {
    widest =
        std::max(widest, static_cast<size_t>(std::count_if(line.begin(), line.end(), [](char c) {
                   return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
                 })));
  }
  return widest;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Policies, HelpListsEveryPointPolicyAndSetting) {
  const Finished help = kinora({"help", "policies"});
  ASSERT_EQ(help.code, 0) << help.err;
  EXPECT_LE(widest_line(help.out), 100u) << help.out;
  for (const PolicyPoint* point : cli::policy_points()) {
    EXPECT_TRUE(has(help.out, point->name + ": " + point->summary)) << point->name;
    const Finished own = kinora({"help", point->name});
    ASSERT_EQ(own.code, 0) << own.err;
    EXPECT_LE(widest_line(own.out), 100u) << own.out;
    for (const PolicyInfo& policy : point->policies) {
      EXPECT_TRUE(has(help.out, "\n  " + policy.name + " ")) << policy.name;
      EXPECT_TRUE(has(own.out, "\n  " + policy.name + " ")) << policy.name;
      for (const SettingInfo& setting : policy.settings) {
        const std::string shown =
            setting.needed ? setting.key : setting.key + "=" + setting.initial;
        EXPECT_TRUE(has(help.out, "\n    " + shown + " ")) << policy.name << ":" << shown;
      }
    }
  }
}

TEST(Needs, TheReadmeHasTheTableThatTheProgramPrints) {
  const std::string path = KINORA_FIXTURES "/../../README.md";
  std::ifstream file(path);
  if (!file) GTEST_SKIP() << path << " is not here: no checkout";
  const std::string written{std::istreambuf_iterator<char>(file), {}};
  const Finished table = kinora({"help", "needs", "--markdown"});
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_TRUE(has(written, table.out)) << table.out;
  // Published sizes of the weights, in bytes: 3.75 and 8.29 billion parameters of 16 bits.
  const auto needs = cli::model_needs({1, 600});
  EXPECT_NEAR(static_cast<double>(needs[0].weight_bytes), 7.51e9, 0.02e9);
  EXPECT_NEAR(static_cast<double>(needs[1].weight_bytes), 16.58e9, 0.02e9);
  for (const cli::ModelNeeds& model : needs) {
    EXPECT_GT(model.needs[0].bytes, model.weight_bytes) << model.model;
    EXPECT_GT(model.needs[1].bytes, model.weight_bytes) << model.model;
    const cli::Need& need = model.needs[1];
    EXPECT_LT(need.packed, need.bytes) << model.model;
    EXPECT_GT(need.packed, need.bytes / 2) << model.model;
  }
}

TEST(Policies, TheDocumentIsWhatTheProgramPrints) {
  const std::string path = KINORA_FIXTURES "/../../docs/policies.md";
  std::ifstream file(path);
  if (!file) GTEST_SKIP() << path << " is not here: no checkout";
  const std::string written{std::istreambuf_iterator<char>(file), {}};
  const Finished help = kinora({"help", "policies", "--markdown"});
  ASSERT_EQ(help.code, 0) << help.err;
  EXPECT_EQ(help.out, written) << "kinora help policies --markdown > docs/policies.md";
  expect_error(kinora({"help", "attention", "--markdown"}), 2, "policies");
}

// The page is made by docs/results/render, the program by cmake/QualityFigures.cmake.
TEST(Quality, TheFiguresAreThoseOfTheResults) {
  const std::string path = KINORA_FIXTURES "/../../docs/results/README.md";
  std::ifstream file(path);
  if (!file) GTEST_SKIP() << path << " is not here: no checkout";
  const auto cells_of = [](const std::string& line) {
    std::vector<std::string> cells;
    std::istringstream parts(line.substr(1));
    for (std::string cell; std::getline(parts, cell, '|');) {
      const size_t begin = cell.find_first_not_of(' ');
      if (begin == std::string::npos) continue;
      cells.push_back(cell.substr(begin, cell.find_last_not_of(' ') + 1 - begin));
    }
    return cells;
  };
  std::string line;
  while (std::getline(file, line) && line != "<!-- table: headline-presets -->") continue;
  std::vector<std::vector<std::string>> table;
  while (std::getline(file, line) && line != "<!-- end -->") {
    if (line.starts_with("| ")) table.push_back(cells_of(line));
  }
  ASSERT_EQ(table.size(), 4u);
  const Finished help = kinora({"help", "quality"});
  ASSERT_EQ(help.code, 0) << help.err;
  EXPECT_LE(widest_line(help.out), 100u);
  for (size_t column = 1; column < table[0].size(); ++column) {
    std::vector<std::string> figures;
    std::istringstream lines(help.out);
    while (std::getline(lines, line)) {
      if (line.starts_with("  " + table[0][column])) figures.push_back(line);
    }
    ASSERT_EQ(figures.size(), 1u) << table[0][column];
    size_t at = 0;
    for (size_t row = 1; row < table.size(); ++row) {
      ASSERT_EQ(table[row].size(), table[0].size());
      at = figures[0].find(" " + table[row][column], at + 1);
      ASSERT_NE(at, std::string::npos) << figures[0] << " lacks " << table[row][column];
    }
  }
}

TEST(Policies, FlagsNameThem) {
  const Finished help = kinora({"ask", "--help"});
  for (const PolicyPoint* point : cli::policy_points()) {
    if (point->policies.size() == 1) continue;  // no flag chooses there yet
    for (const std::string& name : point->names()) EXPECT_TRUE(has(help.out, name)) << name;
  }
  EXPECT_TRUE(has(kinora({"eval", "--help"}).out, "dense-below=…"));
}

TEST(Policies, WrongOnesAreRefusedBeforeAnythingIsRead) {
  const auto ask = [](const std::string& flag, const std::string& text) {
    return kinora({"ask", "absent.mp4", "What?", "-m", "absent", flag, text});
  };
  expect_error(ask("--attention", "mommo"), 2,
               "--attention 'mommo': no policy has this name; did "
               "you mean momo?");
  expect_error(ask("--attention", "momo:blocks=32"), 2, "did you mean block?");
  expect_error(ask("--attention", "momo:k=0"), 2, "k is '0', but must be 1 or more");
  expect_error(ask("--attention", "mminference:first=1"), 2, "last");
  expect_error(ask("--attention", std::string(10'000, 'x')), 2, "…");
  expect_error(ask("--retain", "key-nrm:0.5"), 2,
               "--retain 'key-nrm:0.5': no policy has this name; "
               "did you mean key-norm?");
  expect_error(ask("--retain", "key-norm"), 2, "ratio is missing");
  expect_error(ask("--tokens", "esv:0.5"), 2,
               "--tokens 'esv:0.5': no policy has this name; did you mean evs?");
  expect_error(ask("--tokens", "evs"), 2, "ratio is missing");
  expect_error(ask("--tokens", "evs:2"), 2, "ratio is '2', but must be above 0 and at most 1");
  expect_error(ask("--draft", "ngrm"), 2,
               "--draft 'ngrm': no policy has this name; did you mean ngram?");
  expect_error(ask("--draft", "ngram:tokens=0"), 2, "tokens is '0'");
  for (const PolicyPoint* point : {&draft_point(), &memory_point()}) {
    const Finished refused = ask("--" + point->name, "nonsense");
    expect_error(refused, 2, "--" + point->name + " 'nonsense': no policy has this name");
    for (const std::string& name : point->names()) EXPECT_TRUE(has(refused.err, name)) << name;
  }
  expect_error(kinora({"inspect", "attention", "absent.mp4", "-m", "absent", "--attention", "x"}),
               2, "--attention 'x'");
  expect_error(kinora({"bench", "overlap", "absent.mp4", "--random-weights", "--shape", "bundled",
                       "--retain", "x"}),
               2, "--retain 'x'");
  expect_error(kinora({"bench", "overlap", "absent.mp4", "--random-weights", "--shape", "bundled",
                       "--tokens", "all,x"}),
               2, "--tokens 'x'");
  for (const char* attention : {"x", "mminference"}) {
    expect_error(kinora({"bench", "overlap", "absent.mp4", "--random-weights", "--shape", "bundled",
                         "--attention", attention}),
                 2, attention);
  }
}

TEST(Policies, AttentionInFp8NeedsAHopperGpu) {
  expect_error(kinora({"ask", "demo", "What?", "--device", "cpu", "--attention-dtype", "fp8"}), 5,
               "attention in fp8 needs a Hopper GPU, and this runs on cpu; use bf16");
  expect_error(kinora({"ask", "demo", "What?", "--attention-dtype", "f16"}), 2,
               "'f16' is not bf16 or fp8");
}

TEST(Bench, AttentionTellsWhatShareIsRead) {
  const auto told = kinora_shell(
      "$KINORA bench attention --device cpu --tokens 700 --frame 64 --heads 4 --kv-heads 2 "
      "--repeats 1 --attention a-shape:sink=64,local=2000 --mix none/dense --mix both/a-shape "
      "--hold 0,1 --json");
  ASSERT_EQ(told.code, 0) << told.err;
  const auto json = nlohmann::json::parse(told.out);
  const auto& rows = json.at("rows");
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_NEAR(rows[0].at("held").get<double>(), 1, 1e-3) << "dense";
  EXPECT_GT(rows[1].at("held").get<double>(), 0.1);
  EXPECT_LT(rows[1].at("held_lowest").get<double>(), 0.999);
  EXPECT_NEAR(rows[3].at("held").get<double>(), 1, 0.02) << "all heads take what holds most";
  EXPECT_EQ(json.at("keys")[0].at("needed_of_heads").size(), 4u);
  EXPECT_EQ(json.at("keys")[0].at("mixes")[1].at("heads").size(), 4u);
}

TEST(Bench, AttentionRefusesWhatItCannotMeasure) {
  expect_error(kinora({"bench", "attention", "--hold", "0.95"}), 2, "--mix");
  expect_error(kinora({"bench", "attention", "--hold", "1.5"}), 2, "--hold");
  expect_error(kinora({"bench", "attention", "--mix", "auto"}), 2, "BOUNDARY/PATTERN");
  expect_error(kinora({"bench", "attention", "--device", "cpu", "--tokens", "0"}), 2, "--tokens");
  expect_error(kinora({"bench", "attention", "--attention", "nonsense"}), 2, "nonsense");
  expect_error(kinora({"bench", "attention", "--attention", "mminference"}), 2, "table");
  expect_error(kinora({"bench", "attention", "--heads", "28", "--kv-heads", "5"}), 2, "28 heads");
  expect_error(kinora({"bench", "attention", "--mix", "a-shape"}), 2, "BOUNDARY/PATTERN");
  expect_error(kinora({"bench", "attention", "--mix", "some/a-shape"}), 2, "'some'");
  expect_error(kinora({"bench", "attention", "--mix", "both/nonsense"}), 2, "nonsense");
  expect_error(kinora({"bench", "attention", "--text", "256"}), 2, "--text 256");
  expect_error(kinora({"bench", "model", "--random-weights", "--attention", "mminference"}), 2,
               "--mix");
  expect_error(kinora({"bench", "model", "--random-weights", "--mix", "none/a-shape"}), 2,
               "'dense' has none");
  expect_error(kinora({"bench", "model", "--random-weights", "--attention", "mminference", "--mix",
                       "none/zigzag"}),
               2, "zigzag");
}

EvalPolicy parsed(const std::string& text) {
  EngineOptions engine;
  return parse_eval_policy(text, engine);
}

TEST(EvalPolicies, ReadEverySetting) {
  const EvalPolicy plain = parsed("dense");
  EXPECT_EQ(plain.name, "dense");
  EXPECT_EQ(plain.session.attention, "dense");
  EXPECT_EQ(plain.session.retain, "all");
  const EvalPolicy all = parsed(
      "momo:k=64,exact=64+delta=32;retain=key-norm:0.5;memory=flat;draft=ngram:tokens=4;"
      "dense-below=0;attention-dtype=fp8;rows=bf16;group=32;frames=0.5;pixels=0.25");
  EXPECT_EQ(all.session.attention, "momo:k=64,exact=64+delta=32");
  EXPECT_EQ(all.session.retain, "key-norm:0.5");
  EXPECT_EQ(all.session.memory, "flat");
  EXPECT_EQ(all.session.draft, "ngram:tokens=4");
  EXPECT_EQ(all.session.dense_below, 0);
  EXPECT_EQ(all.session.attention_dtype, "fp8");
  EXPECT_EQ(all.session.row_type, "bf16");
  EXPECT_EQ(all.session.frames_per_group, 32);
  EXPECT_EQ(all.session.frame_share, 0.5);
  EXPECT_EQ(all.session.pixel_share, 0.25);
  EXPECT_EQ(parsed("attention=grid+delta").session.attention, "grid+delta");
  EXPECT_EQ(parsed("mminference+delta").session.attention, "mminference+delta");
  EXPECT_EQ(parsed("retain=0.25").session.attention, "dense");
  EXPECT_EQ(parsed("dense").session.tokens, "all");
  EXPECT_EQ(parsed("tokens=evs:0.25;retain=key-norm:0.5").session.tokens, "evs:0.25");
}

TEST(EvalPolicies, PresetsReachTheEngineAndCanBeOverruled) {
  EngineOptions engine;
  const EvalPolicy fast = parse_eval_policy("quality=fast", engine);
  EXPECT_TRUE(engine.native_bf16);
  EXPECT_NE(fast.session.tokens, "all");
  EXPECT_EQ(parsed("quality=fast;tokens=all").session.tokens, "all");
  EngineOptions exact;
  parse_eval_policy("quality=exact", exact);
  EXPECT_FALSE(exact.native_bf16);
}

TEST(EvalPolicies, RefuseWhatTheyDoNotKnow) {
  const auto problem = [](const std::string& text) -> std::string {
    try {
      parsed(text);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage) << text;
      EXPECT_LT(std::string(error.what()).size(), 600u);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(problem("retian=all"),
            "policy 'retian=all': no setting is called 'retian'; did you mean retain? There are "
            "attention, tokens, retain, memory, draft, dense-below, attention-dtype, rows, group, "
            "frames, pixels, snap and quality");
  EXPECT_TRUE(has(problem("mommo;rows=f32"), "attention 'mommo': no policy has this name"));
  EXPECT_TRUE(has(problem("retain=norm:0.5"), "retention 'norm:0.5'"));
  EXPECT_TRUE(has(problem("tokens=norm:0.5"), "tokens 'norm:0.5'"));
  EXPECT_TRUE(has(problem("draft=nonsense"), "draft 'nonsense': no policy has this name"));
  EXPECT_TRUE(has(problem("memory=nonsense"), "memory 'nonsense': no policy has this name"));
  EXPECT_TRUE(has(problem("rows=f64"), "auto, exact, f32, bf16, f16, int8 or fp8"));
  EXPECT_TRUE(has(problem("dense-below=99999999999999999999"), "0 or more"));
  EXPECT_TRUE(has(problem("dense-below=-1"), "0 or more"));
  EXPECT_TRUE(has(problem("group=0"), "1 or more"));
  EXPECT_TRUE(has(problem("frames=2"), "above 0 and at most 1"));
  EXPECT_TRUE(has(problem("quality=best"), "balanced"));
  EXPECT_TRUE(has(problem("momo;dense"), "given twice"));
  for (const char* text : {"", ";", "momo;", "rows=", "=f32", "dense-below", "attention="}) {
    EXPECT_NE(problem(text), "") << text;
  }
  EXPECT_NE(problem(std::string(10'000, ';')), "");
}

TEST(AttentionText, HasALineForEveryPart) {
  AttentionSummary summary;
  summary.calls = 14;
  summary.dense_calls = 7;
  summary.computed_share = 0.3141;
  summary.index_seconds = 0.0125;
  summary.run_seconds = 1.5;
  summary.parts = {{"a-shape", 12, 0.75, 1.25}, {"last queries", 42, 0.25, 0.25}};
  EXPECT_EQ(cli::attention_text(summary),
            "attention: 31.4 % of the dense FLOPs, index 0.013 s, run 1.500 s, 7 of 14 calls "
            "dense\n"
            "  a-shape: 12 heads, 75.0 % of the computed pairs, 1.250 s\n"
            "  last queries: 42 heads, 25.0 % of the computed pairs, 0.250 s\n");
}

TEST(AttentionText, SaysHowMuchRanInFp8) {
  Answer answer;
  EXPECT_EQ(cli::report_text(answer, 0, 0).find("fp8"), std::string::npos);
  answer.attention_report.emplace();
  answer.attention_report->calls = answer.attention_report->dense_calls = 60;
  EXPECT_EQ(cli::report_text(answer, 0, 0).find("fp8"), std::string::npos);
  answer.attention_report->dtype = "fp8";
  answer.attention_report->fp8_launches = 56;
  answer.attention_report->bf16_launches = 4;
  EXPECT_TRUE(cli::report_text(answer, 0, 0)
                  .starts_with("attention in fp8: 56 of 60 launches, the others in bf16\n"));
}

}  // namespace
}  // namespace kinora::testing

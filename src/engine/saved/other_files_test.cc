// Saved memories that this kinora would not write: by earlier versions, or to mislead.
#include <gtest/gtest.h>
#include <kinora/session.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "support/archive_parts.h"
#include "support/film.h"
#include "support/random_data.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

using namespace testing;

AnswerOptions greedy() {
  AnswerOptions options;
  options.temperature = 0;
  options.max_tokens = 6;
  options.ignore_stop_tokens = true;
  return options;
}

InputOptions every_frame() {
  InputOptions options;
  options.frames = FrameChoice::all();
  return options;
}

class OtherFiles : public ::testing::TestWithParam<const char*> {
 protected:
  std::vector<int32_t> answer_of(Session session) {
    return session.ask("What is it?", greedy()).ids;
  }

  const TempDir directory_;
  const Engine engine_{
      {.model = std::string(KINORA_FIXTURES) + "/models/" + GetParam(), .device = "cpu"}};
};

// With right checksums, but with sizes that the file does not bear out: refused before there is
// made room for them.
TEST_P(OtherFiles, ThatMisleadAreRefused) {
  KINORA_FRESH_RANDOM(random);
  testing::write_film(directory_.file("film"), random, 9);  // the last unit may be short
  const std::string bad = directory_.file("bad.kinora");
  const int64_t most = std::numeric_limits<int32_t>::max();
  for (const char* tokens : {"all", "novel:0.5", "evs:0.3"}) {
    for (const bool picture : {false, true}) {
      SessionOptions options;
      options.tokens = tokens;
      Session session(engine_, options);
      session.add(directory_.file(picture ? "film/1002.ppm" : "film"),
                  picture ? InputOptions() : every_frame());
      session.save(directory_.file("talk.kinora"));
      const std::vector<int32_t> answer = session.ask("What is it?", greedy()).ids;
      std::vector<ArchivePart> parts = parts_of(directory_.file("talk.kinora"));
      write_parts(bad, parts);
      EXPECT_EQ(answer_of(Session::reopen(engine_, bad)), answer);
      const auto about = nlohmann::ordered_json::parse(part_called("about", parts));
      const auto& look = about["inputs"][0]["look"];
      const auto number = [&](const char* name) { return look[name].get<int64_t>(); };
      const int64_t units = number("units"), unit = number("tokens_per_unit");
      const int64_t width = look["grid"][0].get<int64_t>(), height = look["grid"][1].get<int64_t>();
      using Edits = std::vector<std::pair<std::string, nlohmann::ordered_json>>;
      const auto grid = [](int64_t across, int64_t down) {
        return nlohmann::ordered_json{across, down};
      };
      std::vector<Edits> misleading = {
          {{"units", most}, {"tokens_per_unit", 1}, {"grid", grid(1, 1)}, {"seconds_per_unit", 0}},
          {{"units", units + 1}},
          {{"units", units - 1}},
          {{"units", units * number("frames_per_unit") + 1}},
          {{"units", -1}},
          {{"units", most}, {"frames_per_unit", 1}, {"tokens_per_unit", 1}, {"grid", grid(1, 1)}},
          {{"units", 1}, {"tokens_per_unit", most}, {"frames_per_unit", 100}},
          {{"tokens_per_unit", most / units}},
          {{"tokens_per_unit", most / units}, {"grid", grid(20000, 20000)}},
          {{"tokens_per_unit", 0}},
          {{"trailing_tokens", most}},
          {{"trailing_tokens", -1}},
          {{"grid", grid(50000, 50000)}},
          {{"grid", grid(most, most)}},
          {{"grid", grid(most, 1)}},
          {{"grid", grid(1, most)}},
          {{"grid", grid(-1, -1)}},
          {{"grid", grid(unit + 1, 1)}},
          {{"frames_per_unit", 0}},
          {{"frames_per_unit", most}, {"units", 2}},
      };
      if (width * height == unit) misleading.push_back({{"grid", grid(width + 1, height)}});
      for (const Edits& edits : misleading) {
        auto changed = about;
        for (const auto& [name, value] : edits) changed["inputs"][0]["look"][name] = value;
        if (changed == about) continue;
        SCOPED_TRACE(std::string(tokens) + " " + changed["inputs"][0]["look"].dump());
        part_called("about", parts) = changed.dump();
        write_parts(bad, parts);
        try {
          Session::reopen(engine_, bad);
          ADD_FAILURE() << "nothing was thrown";
        } catch (const Error& error) {
          const std::string said = error.what();
          EXPECT_EQ(error.kind(), ErrorKind::bad_input) << said;
          EXPECT_EQ(said.find('\n'), std::string::npos) << said;
          EXPECT_NE(said.find(bad), std::string::npos) << said;
          EXPECT_NE(said.find("make it again"), std::string::npos) << said;
        }
      }
    }
  }
}

TEST_P(OtherFiles, WithChoicesWrittenOtherwiseAreTheSame) {
  KINORA_FRESH_RANDOM(random);
  const std::string film = testing::write_film(directory_.file("film"), random, 8);
  const std::string path = directory_.file("talk.kinora");
  for (const auto& [tokens, plain_tokens] : {std::pair("all", "all"),
                                             {"all:1", "all"},
                                             {"all:ratio=1", "all"},
                                             {"novel:0.50", "novel:0.5"},
                                             {"novel:ratio=0.500", "novel:0.5"}}) {
    for (const auto& [retain, plain_retain] :
         {std::pair("all", "all"), {"key-norm:0.50", "key-norm:0.5"}, {"all:1", "all"}}) {
      SCOPED_TRACE(std::string(tokens) + " " + retain);
      SessionOptions options, plain;
      options.tokens = tokens;
      options.retain = retain;
      plain.tokens = plain_tokens;
      plain.retain = plain_retain;
      Session session(engine_, options), other(engine_, plain);
      session.add(film, every_frame());
      other.add(film, every_frame());
      EXPECT_EQ(session.memory_key(), other.memory_key());
      const MemoryFile saved = session.save(path);
      const std::vector<int32_t> answer = session.ask("What is it?", greedy()).ids;
      // Files of earlier versions have choices as they were written, and a list of tokens beside
      // any but plain "all".
      std::vector<ArchivePart> parts = parts_of(path);
      std::string& about = part_called("about", parts);
      const auto write_as = [&](const std::string& name, const std::string& now,
                                const std::string& then) {
        const std::string field = "\"" + name + "\": \"", text = field + now + "\"";
        ASSERT_NE(about.find(text), std::string::npos) << about;
        about.replace(about.find(text), text.size(), field + then + "\"");
      };
      write_as("tokens", plain_tokens, tokens);
      write_as("retain", plain_retain, retain);
      if (saved.token_choice == "all" && tokens != std::string("all")) {
        parts.push_back({"input/0/kept", std::string(8, '\0')});
      }
      const std::string earlier = directory_.file("earlier.kinora");
      write_parts(earlier, parts);
      for (const std::string& file : {path, earlier}) {
        const MemoryFile described = describe_memory(file);
        EXPECT_EQ(described.token_choice, plain_tokens);
        EXPECT_EQ(described.retain, plain_retain);
        EXPECT_EQ(described.key, saved.key);
        EXPECT_EQ(described.inputs.at(0).tokens, session.inputs().at(0).tokens);
        EXPECT_EQ(answer_of(Session::reopen(engine_, file)), answer);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, OtherFiles,
                         ::testing::Values("qwen2_5_vl_tied_new", "llava_onevision_new",
                                           "qwen3_vl_tied"));

}  // namespace
}  // namespace kinora

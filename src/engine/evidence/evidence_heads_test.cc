#include "engine/evidence/evidence_heads.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

ModelInfo model_of(int layers) {
  ModelInfo info;
  info.family = "small";
  info.parameters = 1234;
  info.rows.layers = layers;
  info.heads = 6;
  return info;
}

EvidenceHeads table_of(const ModelInfo& info) {
  EvidenceHeads table = evidence_heads_of(info);
  table.chosen = {{2, 0b100101}, {4, 0b10}};
  return table;
}

TEST(EvidenceHeads, AreReadAsWritten) {
  const EvidenceHeads table = table_of(model_of(7));
  const EvidenceHeads again = parse_evidence_heads(to_json(table), "t.json");
  EXPECT_EQ(again.model, "small 1234");
  EXPECT_EQ(again.layers, 7);
  EXPECT_EQ(again.heads, 6);
  ASSERT_EQ(again.chosen.size(), 2u);
  EXPECT_EQ(again.chosen[0].layer, 2);
  EXPECT_EQ(again.chosen[0].heads, 0b100101u);
  EXPECT_EQ(again.chosen[1].layer, 4);
  EXPECT_EQ(again.chosen[1].heads, 0b10u);
}

TEST(EvidenceHeads, WithoutATableAreThoseInTheMiddle) {
  const testing::TempDir directory;
  const auto found = find_evidence_heads(real_files(), directory.file(""), model_of(28));
  ASSERT_EQ(found.size(), 4u);
  EXPECT_EQ(found.front().layer, 12);
  EXPECT_EQ(found.back().layer, 15);
  for (const LayerHeads& layer : found) EXPECT_EQ(layer.heads, all_heads);
  EXPECT_EQ(find_evidence_heads(real_files(), "", model_of(2)).size(), 2u);
}

TEST(EvidenceHeads, ATableOfAnotherModelIsRefused) {
  const testing::TempDir directory;
  real_files().write(directory.file("kinora-evidence.json"), to_json(table_of(model_of(7))));
  const std::string place = std::filesystem::path(directory.file("x")).parent_path().string();
  EXPECT_EQ(find_evidence_heads(real_files(), place, model_of(7)).size(), 2u);
  EXPECT_THROW(find_evidence_heads(real_files(), place, model_of(8)), Error);
}

TEST(EvidenceHeads, RefuseWhatMakesNoSense) {
  const auto refused = [](const std::string& from, const std::string& to) {
    std::string text = to_json(table_of(model_of(7)));
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    try {
      parse_evidence_heads(text, "table.json");
      FAIL() << to;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::bad_input);
      EXPECT_NE(std::string(error.what()).find("table.json"), std::string::npos);
    }
  };
  refused("kinora-evidence", "something");
  refused("\"version\": 1", "\"version\": 2");
  refused("\"layer\": 4", "\"layer\": 7");
  refused("\"layer\": 4", "\"layer\": 2");
  refused("\"heads\": 6", "\"heads\": 5");
  refused("\"chosen\"", "\"choice\"");
  refused("{", "");
  refused("{", "{\"x\": " + std::string(250'000, '[') + std::string(250'000, ']') + ",");
}

}  // namespace
}  // namespace kinora

#include "model/families/families.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "base/error.h"

namespace kinora {
namespace {

TEST(FamiliesTest, AreFoundByTheirName) {
  std::set<std::string_view> names;
  for (const Family* family : families()) {
    EXPECT_EQ(find_family(family->model_type()), family);
    EXPECT_TRUE(names.insert(family->model_type()).second) << family->model_type();
  }
  EXPECT_EQ(find_family("gpt2"), nullptr);
  EXPECT_EQ(find_family(""), nullptr);
  EXPECT_TRUE(seeing_families().starts_with("qwen2_5_vl or llava_onevision"));
}

TEST(FamiliesTest, AnUnknownOneIsRefusedWithThoseThereAre) {
  try {
    family_of(ConfigFiles({{"model_type", "gpt2"}}, "config.json"));
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unsupported);
    for (const Family* family : families()) {
      EXPECT_NE(std::string(error.what()).find(family->model_type()), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace kinora

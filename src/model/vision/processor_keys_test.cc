#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "model/vision/processor_pixels.h"

namespace kinora {
namespace {

using nlohmann::json;

TEST(ProcessorKeys, KnowsWhatItDoes) {
  EXPECT_NO_THROW(check_processor_keys(json::object(), "x"));
  EXPECT_NO_THROW(check_processor_keys({{"resample", 3},
                                        {"do_resize", true},
                                        {"do_rescale", true},
                                        {"rescale_factor", 0.00392156862745098}},
                                       "x"));
  EXPECT_NO_THROW(check_processor_keys({{"resample", nullptr}, {"do_resize", nullptr}}, "x"));
}

TEST(ProcessorKeys, RefusesTheRestByName) {
  const auto expect = [](const json& config, ErrorKind kind, const std::string& key) {
    try {
      check_processor_keys(config, "x");
      ADD_FAILURE() << config << " is accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind);
      EXPECT_NE(std::string(error.what()).find(key), std::string::npos) << error.what();
    }
  };
  for (const char* key : {"do_resize", "do_rescale"}) {
    expect({{key, false}}, ErrorKind::unsupported, key);
    expect({{key, 1}}, ErrorKind::bad_input, key);
  }
  for (const int filter : {0, 1, 2, 4, 5}) {
    expect({{"resample", filter}}, ErrorKind::unsupported, "resample");
  }
  expect({{"rescale_factor", 1}}, ErrorKind::unsupported, "rescale_factor");
  expect({{"rescale_factor", "1/255"}}, ErrorKind::bad_input, "rescale_factor");
}

TEST(ProcessorKeys, PixelsAreLeftBetweenZeroAndOneWithoutNormalising) {
  const auto first = [](const json& config) {
    return normalizer_from(config, {0.5f, 0.5f, 0.5f}, {0.25f, 0.25f, 0.25f}, "x").channel(0);
  };
  EXPECT_FLOAT_EQ(first({{"do_normalize", true}})[255], 2);
  EXPECT_FLOAT_EQ(first({{"do_normalize", false}, {"image_mean", {0.1, 0.1, 0.1}}})[255], 1);
  EXPECT_FLOAT_EQ(first({{"do_normalize", false}})[0], 0);
  EXPECT_THROW(first({{"do_normalize", "no"}}), Error);
}

}  // namespace
}  // namespace kinora

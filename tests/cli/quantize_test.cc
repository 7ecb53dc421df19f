// The command `quantize`: a directory in fewer bits that every other command takes.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/cli.h"
#include "support/temp_dir.h"

namespace kinora::testing {
namespace {

const std::string model = std::string(KINORA_SOURCE) + "/models/kinora-tiny";

TEST(Quantize, WritesWhatInfoAndAskRead) {
  const TempDir directory;
  const std::string out = directory.file("int8");
  const Finished made = kinora({"quantize", model, "-o", out, "--int8", "--json"});
  ASSERT_EQ(made.code, 0) << made.err;
  const auto result = nlohmann::json::parse(made.out);
  EXPECT_EQ(result["kind"], "int8");
  EXPECT_LT(result["bytes_after"], result["bytes_before"]);

  const Finished shown = kinora({"info", out, "--json"});
  ASSERT_EQ(shown.code, 0) << shown.err;
  const auto info = nlohmann::json::parse(shown.out);
  EXPECT_NE(info["quantization"].get<std::string>().find("int-quantized"), std::string::npos);
  EXPECT_EQ(info["stored_bytes"], result["bytes_after"]);
  EXPECT_LT(info["weight_bytes"], result["bytes_before"]);

  const Finished asked = kinora({"ask", "demo", "What is shown?", "-m", out, "--frames", "2"});
  EXPECT_EQ(asked.code, 0) << asked.err;
}

TEST(Quantize, SaysWhatIsWrong) {
  const TempDir directory;
  const std::string out = directory.file("out");
  expect_error(kinora({"quantize", model, "-o", out}), 2, "--int4, --int8 and --fp8");
  expect_error(kinora({"quantize", model, "-o", out, "--int4", "--int8"}), 2, "one of");
  expect_error(kinora({"quantize", model, "-o", directory.path(), "--int8"}), 2, "exists already");
  expect_error(kinora({"quantize", "/no/such/model", "-o", out, "--int8"}), 3, "/no/such/model");
  std::ofstream(directory.file("short.txt")) << "Too short.";
  expect_error(
      kinora({"quantize", model, "-o", out, "--int4", "--sample", directory.file("short.txt")}), 4,
      "at least 100");
}

}  // namespace
}  // namespace kinora::testing

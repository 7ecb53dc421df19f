// What people type and read: sizes, errors, progress, traces.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/error_text.h"
#include "cli/session_flags.h"
#include "cli/terminal/terminal.h"
#include "cli/trace_file.h"

namespace kinora::cli {
namespace {

TEST(Sizes, AreReadInEveryUsualForm) {
  EXPECT_EQ(parse_size("2000000"), 2000000);
  EXPECT_EQ(parse_size("1048576"), 1 << 20);
  EXPECT_EQ(parse_size("6GiB"), int64_t{6} << 30);
  EXPECT_EQ(parse_size("6 GB"), int64_t{6} << 30);
  EXPECT_EQ(parse_size("1.5g"), int64_t{3} << 29);
  EXPECT_EQ(parse_size("512MiB"), int64_t{512} << 20);
  EXPECT_EQ(parse_size("2K"), 2048);
  EXPECT_EQ(parse_size("512 MiB"), int64_t{512} << 20);
  EXPECT_EQ(parse_size("0.5kb"), 512);
  EXPECT_EQ(parse_size("100000 B"), 100000);
  EXPECT_EQ(parse_size("1.5G"), int64_t{3} << 29);
  for (const char* wrong :
       {"", "GiB", "0", "-1", "6 parsecs", "1e3", "6GiBs", "inf", "9999999T", "nan", "1..5G",
        "6 G B", "0x10", "0.1", "6-", "+6G", "100", "1048575"}) {
    EXPECT_THROW(parse_size(wrong), Error) << wrong;
  }
}

TEST(Errors, NameTheFlagsThatHelp) {
  EXPECT_EQ(error_text(Error(ErrorKind::bad_input, "the file is damaged")), "the file is damaged");
  EXPECT_EQ(
      error_text(Error(ErrorKind::resource, "no memory; use the device cpu", ErrorHint::use_cpu)),
      "no memory; use the device cpu (--device cpu)");
  for (int i = 1; i <= static_cast<int>(ErrorHint::make_head_table); ++i) {
    const Error error(ErrorKind::usage, "wrong", static_cast<ErrorHint>(i));
    EXPECT_NE(error_text(error), "wrong") << i;
  }
}

TEST(Trace, HasOneThreadALaneInTheOrderOfTheRoad) {
  const std::vector<Span> spans = {{"generate", "generate 3 tokens", 2, 2.5},
                                   {"decode 10", "decode b", 0.5, 1},
                                   {"decode 2", "decode a", 0, 1},
                                   {"decode 2", "decode c", 1, 1.25}};
  const auto json = nlohmann::json::parse(trace_json(spans));
  std::vector<std::string> lanes, names;
  for (const auto& event : json.at("traceEvents")) {
    if (event.at("name") == "thread_name") lanes.push_back(event.at("args").at("name"));
    if (event.at("ph") == "X") names.push_back(event.at("name"));
  }
  EXPECT_EQ(lanes, (std::vector<std::string>{"decode 2", "decode 10", "generate"}));
  EXPECT_EQ(names,
            (std::vector<std::string>{"decode a", "decode c", "decode b", "generate 3 tokens"}));
  const auto& last = json.at("traceEvents").back();
  EXPECT_EQ(last.at("ts"), 2e6);
  EXPECT_EQ(last.at("dur"), 5e5);
}

}  // namespace
}  // namespace kinora::cli

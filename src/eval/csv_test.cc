#include "eval/csv.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace kinora {
namespace {

TEST(Csv, ReadsQuotesCommasAndLineEnds) {
  const auto rows = read_csv("name,said\r\none,\"a, \"\"b\"\"\nc\"\n\ntwo,\n");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].at("said"), "a, \"b\"\nc");
  EXPECT_EQ(rows[1].at("name"), "two");
  EXPECT_EQ(rows[1].at("said"), "");
}

TEST(Csv, NamesTheRowThatIsWrong) {
  try {
    read_csv("a,b\n1,2\n1,2,3\n");
    FAIL() << "a row with too many fields passed";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("row 2"), std::string::npos) << error.what();
  }
  EXPECT_THROW(read_csv("a,b\n\"1,2\n"), Error);
  EXPECT_THROW(read_csv(""), Error);
}

}  // namespace
}  // namespace kinora

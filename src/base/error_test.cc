#include "base/error.h"

#include <gtest/gtest.h>

#include <set>

#include "base/cancel.h"

namespace kinora {
namespace {

TEST(Error, EveryKindHasItsOwnExitCodeAndName) {
  std::set<int> codes;
  std::set<std::string> names;
  const ErrorKind kinds[] = {ErrorKind::internal,    ErrorKind::usage,    ErrorKind::not_found,
                             ErrorKind::bad_input,   ErrorKind::resource, ErrorKind::network,
                             ErrorKind::unsupported, ErrorKind::cancelled};
  for (const ErrorKind kind : kinds) {
    EXPECT_NE(exit_code(kind), 0);
    codes.insert(exit_code(kind));
    names.insert(error_kind_name(kind));
  }
  EXPECT_EQ(codes.size(), std::size(kinds));
  EXPECT_EQ(names.size(), std::size(kinds));
}

TEST(CancelToken, CopiesShareTheFlag) {
  const CancelToken token;
  const CancelToken copy = token;
  EXPECT_NO_THROW(copy.check());
  token.cancel();
  EXPECT_TRUE(copy.cancelled());
  try {
    copy.check();
    FAIL() << "a raised token let the work go on";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::cancelled);
  }
}

}  // namespace
}  // namespace kinora

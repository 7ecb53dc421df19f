// `kinora serve` before it serves: whom it would let in, and what it would need for that.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "support/cli.h"
#include "support/temp_dir.h"

namespace kinora::testing {
namespace {

class Serve : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kinora({"serve", "--help"}).code != 0) GTEST_SKIP() << "built without the server";
  }
  // Without a key in the environment.
  static Finished serve(const std::string& flags) {
    return kinora_shell("unset KINORA_API_KEY; exec timeout 60 $KINORA serve --port 0 " + flags);
  }

  TempDir directory_;
};

TEST_F(Serve, LetsOtherMachinesInOnlyWithKeys) {
  for (const char* host : {"0.0.0.0", "::", "10.0.0.1"}) {
    expect_error(serve(std::string("--host ") + host), 2, std::string("--host ") + host);
  }
  const std::string empty = directory_.file("empty"), none = directory_.file("none");
  std::ofstream(empty) << "# no key yet\n\n";
  expect_error(serve("--host 0.0.0.0 --keys " + empty), 2, "there is no key in it");
  expect_error(serve("--host 0.0.0.0 --keys " + none), 3, "the file of keys cannot be read");
}

TEST_F(Serve, ListensOnTheLoopbackUnlessToldOtherwise) {
  const std::string help = kinora({"serve", "--help"}).out;
  EXPECT_NE(help.find("--host"), std::string::npos);
  EXPECT_NE(help.find("(default 127.0.0.1)"), std::string::npos) << help;
  // The first line says where; a signal ends it well.
  const Finished ended =
      kinora_shell("unset KINORA_API_KEY; $KINORA serve --port 0 --quiet --data " +
                   directory_.path() + " > " + directory_.file("said") + " & until grep -q http " +
                   directory_.file("said") + "; do sleep 0.1; done; kill -TERM $!; wait $!");
  EXPECT_EQ(ended.code, 0) << ended.err;
  std::ifstream said(directory_.file("said"));
  std::string line;
  std::getline(said, line);
  EXPECT_NE(line.find("http://127.0.0.1:"), std::string::npos) << line;
}

TEST_F(Serve, SaysWhatIsWrongWithItsFlags) {
  expect_error(serve("--host nowhere.example"), 2, "--host nowhere.example");
  expect_error(serve("--media-root " + directory_.file("none")), 3, "no such folder of media");
  expect_error(serve("--max-body 5parsecs"), 2, "5parsecs");
  expect_error(serve("--max-running 0"), 2, "--max-running");
  expect_error(serve("--memory-budget 1KiB"), 6, "memory budget");
}

}  // namespace
}  // namespace kinora::testing

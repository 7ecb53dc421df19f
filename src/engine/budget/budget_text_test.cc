#include "engine/budget/budget_text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "support/random_data.h"

namespace kinora {
namespace {

TEST(BudgetText, SizesAreEnoughWhenTheyAreReadBack) {
  EXPECT_EQ(size_text(0), "0 bytes");
  EXPECT_EQ(size_text(116), "116 bytes");
  EXPECT_EQ(size_text(1024), "1.0 KiB");
  EXPECT_EQ(size_text(int64_t{116} << 20), "116.0 MiB");
  EXPECT_EQ(size_text((int64_t{116} << 20) + 1), "116.1 MiB");
  EXPECT_EQ(size_text(int64_t{3} << 29), "1.50 GiB");
  KINORA_FRESH_RANDOM(random);
  for (int round = 0; round < 2000; ++round) {
    const auto bytes = static_cast<int64_t>(std::exp2(random.uniform(10, 45)));
    const std::string text = size_text(bytes);
    const double unit = text.ends_with("GiB") ? 0x1p30 : text.ends_with("MiB") ? 0x1p20 : 0x1p10;
    const auto back = static_cast<int64_t>(std::stod(text) * unit);
    EXPECT_GE(back, bytes) << text;
    EXPECT_LE(static_cast<double>(back), static_cast<double>(bytes) + 0.11 * unit) << text;
  }
}

BudgetRequest small_request() {
  BudgetRequest request;
  InputShape film;
  film.may_shrink = true;
  film.frames = 40;
  film.tokens_per_unit = 10;
  request.inputs = {film};
  request.text_tokens = [](std::span<const int64_t>) { return int64_t{5}; };
  request.token_bytes = 1024;
  return request;
}

TEST(BudgetText, ARefusalSaysWhatIsNeededAllowedAndEnough) {
  BudgetRequest request = small_request();
  request.max_tokens = 12;
  const Error by_tokens = refusal(request, plan_budget(request));
  EXPECT_EQ(by_tokens.kind(), ErrorKind::resource);
  // 15 tokens for one frame, with a quarter left for the answer
  EXPECT_NE(std::string(by_tokens.what()).find("budget of 12 tokens of context"),
            std::string::npos);
  EXPECT_NE(std::string(by_tokens.what()).find("smallest that works is 19 tokens, for 1 frames"),
            std::string::npos)
      << by_tokens.what();
  EXPECT_EQ(std::string(by_tokens.what()).find("clear"), std::string::npos);
  request.tokens_before = 3;
  EXPECT_NE(std::string(refusal(request, plan_budget(request)).what()).find("or clear the"),
            std::string::npos);

  request = small_request();
  request.max_bytes = 1 << 20;
  request.strict = true;
  const Error strict = refusal(request, plan_budget(request));
  EXPECT_EQ(strict.hint(), ErrorHint::not_strict);
  EXPECT_NE(std::string(strict.what()).find("budget of 1.0 MiB of memory"), std::string::npos)
      << strict.what();
  request.max_bytes = BudgetRequest::unlimited;
  request.max_row_bytes = 100;
  const Error rows = refusal(request, plan_budget(request));
  EXPECT_NE(std::string(rows.what()).find("100 bytes of memory for keys and values"),
            std::string::npos)
      << rows.what();
  EXPECT_NE(std::string(rows.what()).find("469.0 KiB would do"), std::string::npos) << rows.what();
}

TEST(BudgetText, ChangesNameTheLimitAndWhatBecameOfTheVideo) {
  BudgetRequest request = small_request();
  request.retention = parse_retention("key-norm:0.8");
  request.max_row_bytes = 1024 * (64 + 5 + 200);
  const BudgetPlan harder = plan_budget(request);
  ASSERT_TRUE(harder.fits);
  EXPECT_EQ(share_change(request, harder),
            "to keep within 269.0 KiB of memory for keys and values, key-norm:0.503 of every group "
            "of frames stays in memory instead of 0.8");
  request.retention = {};
  const BudgetPlan fewer = plan_budget(request);
  ASSERT_EQ(fewer.frames[0], 20);
  EXPECT_EQ(
      frames_change(request, fewer, "film.mkv", {{0, 0}, {5, 0.5}, {9, 4}}, 40),
      "to keep within 269.0 KiB of memory for keys and values, 3 of 40 frames of film.mkv are "
      "looked at (0.5 a second)");
}

}  // namespace
}  // namespace kinora

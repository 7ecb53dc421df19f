#include "engine/ingest/segment_reader.h"

#include <gtest/gtest.h>

#include <deque>

#include "base/error.h"
#include "support/random_data.h"

namespace kinora {
namespace {

// Groups that were made before.
class ReadyIngest final : public Ingest {
 public:
  std::deque<TokenGroup> groups;

  std::optional<TokenGroup> next(const CancelToken& cancel) override {
    cancel.check();
    return ready();
  }
  std::optional<TokenGroup> ready() override {
    if (groups.empty()) return std::nullopt;
    TokenGroup group = std::move(groups.front());
    groups.pop_front();
    return group;
  }
  double vision_seconds() const override { return 0; }
  double wait_seconds() const override { return 0; }
};

// Units [first, first + count) of two tokens each, and one more at the end; a token is its number.
// Some of them are left out.
TokenGroup numbered(Random& random, int64_t first, int64_t count, bool last) {
  TokenGroup group{first, count, last, {}, {}, {}, {}, {}};
  for (int64_t token = 0; token < 2 * count + (last ? 1 : 0); ++token) {
    if (random.below(3) != 0) group.kept.push_back(static_cast<int32_t>(token));
  }
  group.tokens = Tensor(DType::f32, {std::ssize(group.kept), 3});
  for (int64_t i = 0; i < group.tokens.elements(); ++i) {
    group.tokens.data<float>()[i] =
        static_cast<float>(2 * first + group.kept[static_cast<size_t>(i / 3)]);
  }
  for (int64_t unit = first; unit < first + count; ++unit) {
    group.frames.push_back({unit, static_cast<double>(unit)});
    group.times.push_back(static_cast<double>(unit));
  }
  return group;
}

TEST(SegmentReader, PiecesEndWhereSegmentsAndGroupsEnd) {
  KINORA_FRESH_RANDOM(random);
  for (int round = 0; round < 200; ++round) {
    const int64_t total = 1 + random.below(65);
    ReadyIngest ingest;
    int64_t tokens = 0;
    for (int64_t at = 0; at < total;) {
      const int64_t count = std::min(total - at, 1 + random.below(9));
      ingest.groups.push_back(numbered(random, at, count, at + count == total));
      tokens += ingest.groups.back().tokens.size(0);
      at += count;
    }
    ReadReport report;
    report.delivered = total;
    TokenGroup end;
    end.report = std::make_shared<const ReadReport>(report);
    ingest.groups.push_back(std::move(end));

    SegmentReader reader(ingest, {});
    int64_t unit = 0, token = 0, frames = 0;
    while (unit < total) {
      int64_t left = std::min(total - unit, 1 + random.below(12));  // of a segment
      while (left > 0) {
        const TokenGroup piece = reader.take(left, 2);
        ASSERT_EQ(piece.first, unit);
        ASSERT_GE(piece.count, 1);
        ASSERT_LE(piece.count, left);
        EXPECT_EQ(piece.last, unit + piece.count == total);
        ASSERT_EQ(static_cast<int64_t>(piece.times.size()), piece.count);
        for (const double time : piece.times) EXPECT_EQ(time, static_cast<double>(unit++));
        ASSERT_EQ(piece.tokens.size(0), std::ssize(piece.kept));
        for (int64_t row = 0; row < piece.tokens.size(0); ++row, ++token) {
          const int64_t number = 2 * piece.first + piece.kept[static_cast<size_t>(row)];
          ASSERT_EQ(piece.tokens.view().row<float>(row)[2], static_cast<float>(number));
          ASSERT_LE(number, 2 * (piece.first + piece.count) - (piece.last ? 0 : 1));
        }
        frames += static_cast<int64_t>(piece.frames.size());
        EXPECT_EQ(reader.at_end_of_group(), frames == unit);
        left -= piece.count;
      }
    }
    EXPECT_EQ(token, tokens);
    EXPECT_EQ(frames, total);
    EXPECT_EQ(reader.report().delivered, total);
    EXPECT_THROW(reader.take(1, 2), Error);
    EXPECT_THROW(reader.report(), Error);
  }
}

}  // namespace
}  // namespace kinora

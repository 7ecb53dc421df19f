// Old rows that wait in a file, or outside of a GPU: questions read the same, memory stays bounded,
// damage is an error of the question that meets it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <optional>
#include <ostream>
#include <set>
#include <string>

#include "base/error.h"
#include "memory/partial/partial_test_support.h"
#include "memory/policies.h"
#include "memory/row_file.h"
#include "memory/saved_bytes.h"
#include "memory/saved_rows.h"
#include "support/random_data.h"

namespace kinora {
namespace {

using testing::group_of;
using testing::next_position;
using testing::play;
using testing::text_tokens;
using testing::turning_layout;
using testing::video_tokens;

std::vector<std::byte> noise(Random& random, int64_t size) {
  std::vector<std::byte> bytes(static_cast<size_t>(size));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
  return bytes;
}

TEST(RowFile, GivesBackPagesInAnyOrderAndRefusesDamage) {
  KINORA_FRESH_RANDOM(random);
  RowFile file;
  constexpr int64_t page = RowFile::page;
  const auto bytes = noise(random, 12 * page);
  std::vector<RowFile::Page> pages = file.write(bytes);
  const auto more = file.write(std::span(bytes).first(static_cast<size_t>(3 * page)));
  pages.insert(pages.end(), more.begin(), more.end());
  EXPECT_EQ(file.bytes(), 15 * page);
  // Pages of two pieces, swapped: they no longer lie together.
  std::swap(pages[1], pages[13]);
  std::vector<std::byte> out(static_cast<size_t>(5 * page));
  file.read(pages, 0, 5, out.data());
  EXPECT_TRUE(std::equal(out.begin(), out.end(), bytes.begin()));
  const char wrong = static_cast<char>(~std::to_integer<int>(bytes[static_cast<size_t>(2 * page)]));
  ASSERT_EQ(::pwrite(file.descriptor(), &wrong, 1, 2 * page), 1);
  EXPECT_THROW(file.read(pages, 0, 5, out.data()), Error);
  file.read(pages, 3, 9, noise(random, 9 * page).data());
  ASSERT_EQ(::ftruncate(file.descriptor(), 4 * page), 0);
  EXPECT_THROW(file.read(pages, 5, 1, out.data()), Error);
}

TEST(SavedBytes, KeepsWhatWasNeededLast) {
  KINORA_FRESH_RANDOM(random);
  constexpr int64_t page = RowFile::page;
  const auto bytes = noise(random, 10 * page - 5);
  int64_t reads = 0;
  SavedBytes saved(10 * page - 5, page, [&](int64_t first, int64_t count, std::byte* out) {
    const int64_t begin = first * page,
                  end = std::min<int64_t>(std::ssize(bytes), begin + count * page);
    std::copy(bytes.begin() + begin, bytes.begin() + end, out);
    reads += count;
  });
  const auto check = [&](int64_t begin, int64_t end) {
    saved.need(begin, end);
    ASSERT_TRUE(std::equal(bytes.begin() + begin, bytes.begin() + end, saved.data() + begin));
  };
  check(0, 1);
  check(page - 1, 3 * page);
  EXPECT_EQ(reads, 3);
  EXPECT_EQ(saved.resident(), 3 * page);
  check(9 * page, 10 * page - 5);
  check(0, 1);
  saved.keep(2 * page);
  EXPECT_LE(saved.resident(), 2 * page);
  reads = 0;
  check(0, 1);                     // needed last, so it stayed
  check(9 * page, 10 * page - 5);  // as did the one before
  EXPECT_EQ(reads, 0);
  check(2 * page, 3 * page);
  EXPECT_EQ(reads, 1);
  EXPECT_THROW(saved.need(0, 10 * page), Error);
}

// The file has the pieces in an order of its own; those who read need not know.
TEST(SavedBytes, PiecesOfAFileComeToTheirPlaces) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool threads(2);
  for (const int64_t unit : {1, 63, 129, 1000, 5000}) {
    const int64_t pieces = 1 + random.below(300), page = unit * (1 + random.below(20));
    auto order = std::make_shared<FileOrder>();
    order->unit = unit;
    for (int32_t i = 0; i < pieces; ++i) order->piece_at.push_back(i);
    for (size_t i = order->piece_at.size(); i > 1; --i) {
      std::swap(order->piece_at[i - 1],
                order->piece_at[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
    }
    order->place_of.resize(order->piece_at.size());
    const auto file = noise(random, pieces * unit);
    std::vector<std::byte> bytes(file.size());  // as they are read
    for (int32_t place = 0; place < pieces; ++place) {
      const int32_t piece = order->piece_at[static_cast<size_t>(place)];
      order->place_of[static_cast<size_t>(piece)] = place;
      std::copy_n(file.begin() + place * unit, unit, bytes.begin() + piece * unit);
    }
    std::atomic<int64_t> announced = 0;
    SavedBytes saved(
        pieces * unit, page,
        [&](int64_t first, int64_t count, std::byte* out) {
          const int64_t end = std::min<int64_t>(std::ssize(file), (first + count) * page);
          std::copy(file.begin() + first * page, file.begin() + end, out);
        },
        [&](int64_t first, int64_t count) {
          EXPECT_GE(first, 0);
          EXPECT_LE((first + count - 1) * page, pieces * unit);
          announced += count;
        },
        order);
    for (int round = 0; round < 60; ++round) {
      std::vector<SavedBytes::Range> ranges;
      for (int64_t i = random.below(5); i >= 0; --i) {
        const int64_t begin = random.below(pieces * unit);
        ranges.push_back({begin, begin + random.below(pieces * unit - begin + 1)});
      }
      const int64_t before = saved.resident();
      announced = 0;
      saved.announce(threads, ranges);
      EXPECT_EQ(saved.resident(), before);
      const SavedBytes::Pages pages = saved.need(threads, ranges);
      EXPECT_EQ(saved.resident(), before + pages.late);
      EXPECT_LE(pages.late, pages.wanted);
      EXPECT_LE(pages.late, announced * page);
      EXPECT_GT(pages.late + page, announced * page - page);
      for (const auto& [begin, end] : ranges) {
        ASSERT_TRUE(std::equal(bytes.begin() + begin, bytes.begin() + end, saved.data() + begin));
      }
      if (round % 3 > 0) continue;
      const int64_t most = random.below(pieces * unit + 1);
      saved.keep(most);
      EXPECT_LE(saved.resident(), most);
    }
    EXPECT_EQ(saved.need(threads, {}).wanted, 0);
    saved.keep(0);
    EXPECT_EQ(saved.resident(), 0);
  }
  auto cut = std::make_shared<FileOrder>();
  *cut = {3, {1, 0}, {1, 0}};
  EXPECT_THROW(SavedBytes(6, 4, nullptr, nullptr, cut), Error);  // a piece in two pages
  EXPECT_THROW(SavedBytes(9, 3, nullptr, nullptr, cut), Error);  // other pieces
}

TEST(SavedRows, GroupsStandSideBySide) {
  KINORA_FRESH_RANDOM(random);
  for (const int64_t rows : {0, 1, 63, 65, 200}) {
    std::vector<int32_t> ordinals, groups;
    for (int32_t token = 0; std::ssize(ordinals) < rows; ++token) {
      if (random.uniform() < 0.8) ordinals.push_back(token);
      if (token < rows) groups.push_back(static_cast<int32_t>(random.below(12)) - 1);
    }
    constexpr int64_t window = 64;
    const std::vector<int32_t> order = grouped_order(ordinals, groups, window);
    ASSERT_EQ(std::ssize(order), rows);
    const auto group_of = [&](int32_t row) {
      const auto token = static_cast<size_t>(ordinals[static_cast<size_t>(row)]);
      return token < groups.size() ? groups[token] : -1;
    };
    for (int64_t first = 0; first < rows; first += window) {
      const int64_t end = std::min(rows, first + window);
      const std::span<const int32_t> there(order.begin() + first, order.begin() + end);
      std::vector<int32_t> sorted(there.begin(), there.end());
      std::sort(sorted.begin(), sorted.end());
      for (int64_t i = first; i < end; ++i) EXPECT_EQ(sorted[static_cast<size_t>(i - first)], i);
      std::set<int32_t> ended;  // groups that another one has followed
      for (size_t i = 1; i < there.size(); ++i) {
        const int32_t before = group_of(there[i - 1]), now = group_of(there[i]);
        if (before == now) {
          EXPECT_LT(there[i - 1], there[i]);
        } else {
          ended.insert(before);
        }
        EXPECT_FALSE(ended.contains(now));
      }
    }
  }
}

struct Waiting {
  std::string policy;
  std::string tiers;
  bool gpu = false;

  friend void PrintTo(const Waiting& one, std::ostream* out) { *out << one.policy << one.tiers; }
};

class OldRows : public ::testing::TestWithParam<Waiting> {
 protected:
  void SetUp() override {
    std::string why;
    if (GetParam().gpu && cuda_devices(&why).empty()) GTEST_SKIP() << why;
  }
};

TEST_P(OldRows, AreReadAsIfTheyHadStayed) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool threads(2);
  const Device device = GetParam().gpu ? Device::cuda() : Device::cpu();
  const Context context(threads, device);
  const std::string& policy = GetParam().policy;
  // Every second policy with rows of 8 bits, which fill a page only now and then.
  const RowLayout layout = turning_layout(
      policy.starts_with("mosaic") || policy.starts_with("sliding") ? DType::i8 : DType::f32);
  const auto make = [&](const std::string& text) {
    return make_memory(text, {layout, device, {}});
  };
  const auto memory = make(policy), waiting = make(policy + GetParam().tiers);
  const auto both = [&](const testing::ScriptGroup& group) {
    const auto expected = play(context, *memory, group), read = play(context, *waiting, group);
    for (size_t layer = 0; layer < read.size(); ++layer) {
      ASSERT_EQ(read[layer].ordinals, expected[layer].ordinals);
      ASSERT_EQ(read[layer].keys, expected[layer].keys);
      ASSERT_EQ(read[layer].values, expected[layer].values);
    }
  };
  std::optional<MemoryMark> early, early_there;
  both(group_of(random, text_tokens(0, 3)));
  for (int32_t first = 0; first < 1600; first += 16) {
    both(group_of(random, video_tokens(3, 16, 2, 3, 2, first)));
    if (first % 400 != 0) continue;
    const MemoryMark here = memory->mark(), there = waiting->mark();
    if (first == 400) early = here, early_there = there;
    both(group_of(random, text_tokens(next_position(*memory), 4)));
    both(group_of(random, text_tokens(next_position(*memory), 1)));
    memory->rewind(here);
    waiting->rewind(there);
  }
  const MemoryBytes bytes = waiting->bytes();
  EXPECT_EQ(bytes.total() - bytes.host - bytes.device, bytes.disk);
  const int64_t row = layout.row_bytes(), step = RowFile::page / std::gcd(RowFile::page, row);
  // Twice what may stay, a group, and what is left until rows and pages end together is the most
  // of a layer's keys or values.
  const auto most = [&](int64_t rows) {
    return 2 * 2 * row * (2 * rows + 96 + step + 4 * RowFile::page / row);
  };
  const MemoryBytes whole = memory->bytes();
  const int64_t rows_there = memory->row_count(0) * 4 * row;
  if (GetParam().tiers.find("host") != std::string::npos) {
    EXPECT_GT(bytes.disk, 0);
    const int64_t index = device.is_cpu() ? whole.host - rows_there : whole.host;
    EXPECT_LT(bytes.host - index, most(600));
  } else {
    EXPECT_EQ(bytes.disk, 0);
  }
  if (!device.is_cpu()) {
    EXPECT_LT(bytes.device - (whole.device - rows_there), most(300));
    EXPECT_GT(bytes.host - whole.host, 0);
  }
  // A fork has them, too, and each side goes on alone.
  const auto fork = waiting->fork(waiting->mark());
  const auto plain_fork = memory->fork(memory->mark());
  const auto question = group_of(random, text_tokens(next_position(*memory), 4));
  const auto expected = play(context, *plain_fork, question), read = play(context, *fork, question);
  EXPECT_EQ(read[0].keys, expected[0].keys);
  EXPECT_EQ(read[1].values, expected[1].values);
  for (int32_t first = 1600; first < 2400; first += 16) {
    both(group_of(random, video_tokens(3, 16, 2, 3, 2, first)));
  }
  const auto again = group_of(random, text_tokens(next_position(*plain_fork), 3));
  EXPECT_EQ(play(context, *fork, again)[1].keys, play(context, *plain_fork, again)[1].keys);
  // Back to where rows were that have been in the file for long, and on from there.
  memory->rewind(*early);
  waiting->rewind(*early_there);
  for (int32_t first = 400; first < 1000; first += 16) {
    both(group_of(random, video_tokens(3, 16, 2, 3, 2, first)));
  }
  both(group_of(random, text_tokens(next_position(*memory), 4)));
}

// Bytes of a file that a question about old frames wants. All layers have the same rows and are
// asked the same.
FetchCounts fetched_by_a_question(Random& random, const std::string& more) {
  const ThreadPool threads(2);
  const Context context(threads);
  RowLayout layout = turning_layout();
  layout.layers = 5;
  const auto memory =
      make_memory("mosaic:rows=64,window=48,host=200" + more, {layout, Device::cpu(), {}});
  const auto play_alike = [&](const testing::ScriptGroup& group) {
    const Tensor embeddings = testing::embeddings_of(group, Device::cpu());
    MemoryGroup fresh{group.tokens};
    fresh.embeddings = embeddings.view();
    const auto positions = memory->begin(context, fresh);
    const std::vector<Position> at(positions.begin(), positions.end());
    std::vector<float> keys;
    for (const uint64_t stamp : group.stamps) {
      const auto key = testing::plain_row(stamp, 0, false);
      keys.insert(keys.end(), key.begin(), key.end());
    }
    keys = testing::turned(std::move(keys), at, layout);
    auto queries = testing::turned(testing::plain_queries_of(group, 0), at, layout);
    const auto count = static_cast<int64_t>(group.tokens.size());
    for (int layer = 0; layer < layout.layers; ++layer) {
      const NewRows rows = memory->append(layer);
      copy_bytes(rows.keys.raw(), Device::cpu(), keys.data(), Device::cpu(), keys.size() * 4);
      copy_bytes(rows.values.raw(), Device::cpu(), keys.data(), Device::cpu(), keys.size() * 4);
      QueryView view = memory->queries();
      view.queries = ConstTensorView(reinterpret_cast<const std::byte*>(queries.data()), DType::f32,
                                     Shape{count, testing::turning_heads, 6}, Device::cpu());
      std::vector<RowSet> sets;
      memory->read(context, layer, view, sets);
      memory->after(context, layer, view);
    }
  };
  play_alike(group_of(random, text_tokens(0, 3)));
  for (int32_t first = 0; first < 1600; first += 16) {
    play_alike(group_of(random, video_tokens(3, 16, 2, 3, 2, first)));
  }
  EXPECT_GT(memory->bytes().disk, 0);
  const FetchCounts before = memory->fetched();
  play_alike(group_of(random, text_tokens(next_position(*memory), 4)));
  const FetchCounts after = memory->fetched();
  return {after.wanted - before.wanted, after.late - before.late};
}

// What one layer's queries look for is read for the next one before it asks: layers that are alike
// find all of it there, unless nothing is to be read ahead.
TEST(OldRowsOfAMosaic, AreReadAhead) {
  KINORA_FRESH_RANDOM(random);
  const uint64_t seed = random.next();
  Random same(seed), again(seed);
  const FetchCounts counts = fetched_by_a_question(same, "");
  const FetchCounts without = fetched_by_a_question(again, ",ahead=0");
  // The first layer, of five, has nobody before it.
  EXPECT_GT(counts.late, 0);
  EXPECT_LE(5 * counts.late, counts.wanted);
  EXPECT_EQ(without.wanted, counts.wanted);
  EXPECT_GT(without.late, counts.late);
}

TEST(FlatRowsInAFile, AreThereWhenTheyWereReadAhead) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool threads(2);
  const Context context(threads);
  const RowLayout layout = turning_layout();
  FlatMemory memory(layout, Device::cpu(), {}, {.host = 200});
  for (int32_t first = 0; first < 1600; first += 16) {
    play(context, memory, group_of(random, video_tokens(3, 16, 2, 3, 2, first)));
  }
  ASSERT_GT(memory.bytes().disk, 0);
  const std::vector<RowRange> some{{100, 180}, {900, 1000}, {1000, 1001}, {2500, 2900}};
  ASSERT_TRUE(memory.fetch_ahead(context, 1, some));
  ASSERT_TRUE(memory.fetch_ahead(context, 1, some));  // waits for the first
  memory.fetch(context, 1, some);
  EXPECT_GE(memory.fetched().wanted, 2 * 581 * layout.row_bytes());
  EXPECT_EQ(memory.fetched().late, 0);
  memory.fetch(context, 0, some);
  EXPECT_GT(memory.fetched().late, 0) << "of another layer";
  const RowRange newest{memory.row_count(0) - 1, memory.row_count(0)};
  EXPECT_FALSE(memory.fetch_ahead(context, 0, {&newest, 1})) << "it never left";
}

std::vector<Waiting> all_waiting() {
  std::vector<Waiting> all;
  for (const char* policy : {"mosaic:rows=60,window=48,resident=300", "uniform:rows=60,window=48",
                             "frame-retrieval:rows=60,window=48", "sliding:rows=60"}) {
    all.push_back({policy, ",host=600"});
    all.push_back({policy, ",gpu=300", true});
    all.push_back({policy, ",gpu=300,host=600", true});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Memories, OldRows, ::testing::ValuesIn(all_waiting()),
                         [](const auto& which) {
                           return (which.param.gpu ? "gpu" : "n") + std::to_string(which.index);
                         });

}  // namespace
}  // namespace kinora

// All memories that can be chosen, through the interface alone: marks, rewinds, forks and files
// leave each of them as if it had been told only what is left, and one whose budget holds
// everything reads what a plain memory reads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/files/archive.h"
#include "memory/partial/partial_test_support.h"
#include "memory/policies.h"
#include "support/random_data.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

using testing::any_video;
using testing::group_of;
using testing::next_position;
using testing::play;
using testing::ReadRows;
using testing::ScriptGroup;
using testing::text_tokens;
using testing::turning_layout;

std::unique_ptr<Memory> make(const std::string& text, DType rows = DType::f32) {
  return make_memory(text, {turning_layout(rows), Device::cpu(), {}});
}

struct Branch {
  struct Saved {
    MemoryMark mark;
    std::vector<ScriptGroup> script;
  };
  std::unique_ptr<Memory> memory;
  std::vector<ScriptGroup> script;
  std::vector<Saved> marks;
};

class Forest {
 public:
  Forest(Random& random, std::string policy, DType rows)
      : random_(random), policy_(std::move(policy)), rows_(rows) {
    branches_.push_back({make(policy_, rows_), {}, {}});
  }

  void step() {
    const size_t which = any(branches_.size());
    Branch& branch = branches_[which];
    const double choice = random_.uniform();
    if (choice < 0.5) {
      add(branch);
    } else if (choice < 0.65) {
      branch.marks.push_back({branch.memory->mark(), branch.script});
    } else if (choice < 0.8 && !branch.marks.empty()) {
      const size_t back = any(branch.marks.size());
      branch.memory->rewind(branch.marks[back].mark);
      branch.script = branch.marks[back].script;
      branch.marks.resize(back + 1);
    } else if (choice < 0.92 && branches_.size() < 6) {
      const bool now = branch.marks.empty() || random_.below(2) == 0;
      const Branch::Saved from = now ? Branch::Saved{branch.memory->mark(), branch.script}
                                     : branch.marks[any(branch.marks.size())];
      const bool saved = random_.below(2) == 0 && ends_with_frames(from.script);
      branches_.push_back(
          {saved ? reopened(*branch.memory, from.mark) : branch.memory->fork(from.mark),
           from.script,
           {}});
    } else if (branches_.size() > 1) {
      branches_.erase(branches_.begin() + static_cast<int64_t>(which));
    }
  }

 private:
  // A file does not know what a question under way was given.
  static bool ends_with_frames(const std::vector<ScriptGroup>& script) {
    return script.empty() || script.back().tokens.back().modality != Modality::text;
  }

  // The same memory, by way of a file.
  std::unique_ptr<Memory> reopened(const Memory& memory, const MemoryMark& mark) {
    const std::string path = directory_.file("memory");
    ArchiveWriter out(path);
    memory.save(mark, out);
    out.commit();
    std::unique_ptr<Memory> other = make(policy_, rows_);
    other->load(context_, Archive::open(path), Loading::whole);
    EXPECT_EQ(other->token_count(), mark.tokens);
    return other;
  }

  size_t any(size_t count) {
    return static_cast<size_t>(random_.below(static_cast<int64_t>(count)));
  }

  ScriptGroup next_group(const Memory& memory) {
    const double kind = random_.uniform();
    const int32_t position = next_position(memory);
    if (kind < 0.4) return group_of(random_, any_video(random_, memory));
    if (kind < 0.6) return group_of(random_, text_tokens(position, 2 + random_.below(4)));
    if (kind < 0.8) return group_of(random_, text_tokens(position, 1));
    ScriptGroup tree = group_of(random_, text_tokens(position, 1 + random_.below(5)));
    for (size_t i = 0; i < tree.tokens.size(); ++i) {
      tree.parents.push_back(static_cast<int32_t>(random_.below(static_cast<int64_t>(i) + 1)) - 1);
    }
    for (auto node = static_cast<int32_t>(any(tree.tokens.size())); node >= 0;
         node = tree.parents[static_cast<size_t>(node)]) {
      tree.accepted.insert(tree.accepted.begin(), node);
    }
    return tree;
  }

  // One more group, and what it reads is what it would read in a memory that was told only what
  // this branch was told.
  void add(Branch& branch) {
    const std::unique_ptr<Memory> fresh = make(policy_, rows_);
    for (const ScriptGroup& group : branch.script) play(context_, *fresh, group);
    branch.script.push_back(next_group(*branch.memory));
    const std::vector<ReadRows> expected = play(context_, *fresh, branch.script.back());
    const std::vector<ReadRows> read = play(context_, *branch.memory, branch.script.back());
    ASSERT_EQ(branch.memory->token_count(), fresh->token_count());
    for (size_t layer = 0; layer < read.size(); ++layer) {
      ASSERT_EQ(read[layer].ordinals, expected[layer].ordinals) << "layer " << layer;
      ASSERT_EQ(read[layer].keys, expected[layer].keys);
      ASSERT_EQ(read[layer].values, expected[layer].values);
      ASSERT_EQ(read[layer].weights, expected[layer].weights);
    }
  }

  const testing::TempDir directory_;
  Random& random_;
  std::string policy_;
  DType rows_;
  const ThreadPool threads_{1};
  const Context context_{threads_};
  std::vector<Branch> branches_;
};

class Memories : public ::testing::TestWithParam<std::string> {};

TEST_P(Memories, ForgetWhatIsRewoundAndShareWhatIsForked) {
  KINORA_FRESH_RANDOM(random);
  for (const DType rows : {DType::f32, DType::f32, DType::i8, DType::u8}) {
    SCOPED_TRACE(row_type_name(rows));
    Forest forest(random, GetParam(), rows);
    for (int step = 0; step < 60 && !HasFatalFailure(); ++step) forest.step();
  }
}

// The largest |x| of a head of a row.
double largest_of(std::span<const float> rows, size_t head) {
  double largest = 0;
  for (size_t i = 0; i < 6; ++i) {
    largest = std::max(largest, std::abs(double{rows[head * 6 + i]}));
  }
  return largest;
}

// A rounding to int8 loses at most half of a step, 1/127 of the head's largest element M, to the
// nearest bf16. A key that is moved was rounded before, when its largest element was at most √2 M,
// and turning spreads an error by √2 at most: 2 halves, and one more for the second rounding.
TEST(RowsInEightBits, LoseHalfAStepForEachRounding) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool threads(1);
  const Context context(threads);
  for (const auto& [policy, moved] :
       {std::pair{"flat", false}, std::pair{"sliding:rows=12,positions=original", false},
        std::pair{"sliding:rows=9,sinks=2", true},
        std::pair{"uniform:rows=10,window=5,positions=consecutive", true}}) {
    SCOPED_TRACE(policy);
    const auto exact = make(policy), packed = make(policy, DType::i8);
    for (int round = 0; round < 12; ++round) {
      auto tokens = any_video(random, *exact);
      if (round % 3 == 2) tokens = text_tokens(next_position(*exact), 1 + random.below(3));
      const ScriptGroup group = group_of(random, std::move(tokens));
      const auto expected = play(context, *exact, group), read = play(context, *packed, group);
      for (size_t layer = 0; layer < read.size(); ++layer) {
        ASSERT_EQ(read[layer].ordinals, expected[layer].ordinals);
        for (size_t i = 0; i < read[layer].keys.size(); ++i) {
          const double key_half = 0.5 * largest_of(expected[layer].keys, i / 6) / 127;
          const double value_half = 0.5 * largest_of(expected[layer].values, i / 6) / 127;
          ASSERT_NEAR(read[layer].keys[i], expected[layer].keys[i],
                      key_half * (moved ? 3.1 : 1.008));
          ASSERT_NEAR(read[layer].values[i], expected[layer].values[i], value_half * 1.008);
        }
      }
    }
    // 6 codes and a scale of 2 bytes instead of 6 floats.
    EXPECT_EQ(packed->layout().bytes_per_token() * 24, exact->layout().bytes_per_token() * 8);
  }
}

// Refused by name, before anything is asked of the GPU.
TEST(RowsInF16, AreForCpus) {
  try {
    FlatMemory memory(turning_layout(DType::f16), Device::cuda(0));
    FAIL() << "f16 was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unsupported);
    const std::string said = error.what();
    EXPECT_NE(said.find("not as f16"), std::string::npos) << said;
    EXPECT_NE(said.find("int8 or fp8"), std::string::npos) << said;
  }
}

// A GPU keeps and moves the same bytes as the CPU. Keys turn there in another order of operations,
// which may change a code by one.
TEST_P(Memories, ReadOnAGpuWhatTheyReadOnTheCpu) {
  if (cuda_devices().empty()) GTEST_SKIP() << "no GPU on this machine";
  KINORA_FRESH_RANDOM(random);
  const ThreadPool threads(2);
  const Context host(threads), gpu(threads, Device::cuda());
  for (const DType type : {DType::f32, DType::i8, DType::u8}) {
    SCOPED_TRACE(row_type_name(type));
    const auto here = make(GetParam(), type);
    const auto there = make_memory(GetParam(), {turning_layout(type), gpu.device, {}});
    for (int round = 0; round < 12; ++round) {
      auto tokens = any_video(random, *here);
      if (round % 3 == 2) tokens = text_tokens(next_position(*here), 1 + random.below(3));
      const ScriptGroup group = group_of(random, std::move(tokens));
      const auto expected = play(host, *here, group), read = play(gpu, *there, group);
      ASSERT_EQ(read.size(), expected.size());
      for (size_t layer = 0; layer < read.size(); ++layer) {
        // A GPU finds clusters for many rows at once, and other ones: text is read all the same.
        if (GetParam().starts_with("mosaic")) {
          const auto& found = read[layer].ordinals;
          for (int32_t i = 0; i < there->token_count(); ++i) {
            if (there->token(i).modality != Modality::text) continue;
            ASSERT_TRUE(std::binary_search(found.begin(), found.end(), i)) << "token " << i;
          }
          continue;
        }
        ASSERT_EQ(read[layer].keys.size(), expected[layer].keys.size());
        // What it keeps follows from codes that it has turned before.
        if (GetParam().starts_with("compact")) continue;
        ASSERT_EQ(read[layer].ordinals, expected[layer].ordinals);
        for (size_t first = 0; first < read[layer].keys.size(); first += 6) {  // a head
          double largest = 0;
          for (size_t i = first; i < first + 6; ++i) {
            largest = std::max(largest, std::abs(double{expected[layer].keys[i]}));
          }
          // A step of int8, or of e4m3 right below the largest code; f32 turns to and fro.
          const double step = type == DType::f32  ? 2e-5 + 1e-6 * largest
                              : type == DType::i8 ? largest / 127 * 1.01
                                                  : largest * 32 / 448 * 1.01;
          for (size_t i = first; i < first + 6; ++i) {
            ASSERT_NEAR(read[layer].keys[i], expected[layer].keys[i], step);
          }
        }
      }
    }
  }
}

TEST_P(Memories, ReadEverythingThatFits) {
  KINORA_FRESH_RANDOM(random);
  const ThreadPool threads(1);
  const Context context(threads);
  const std::string name = GetParam().substr(0, GetParam().find(':'));
  const auto memory = make(name), flat = make("flat");  // with room for all of this
  for (int round = 0; round < 12; ++round) {
    auto tokens = any_video(random, *memory);
    if (round % 3 == 2) tokens = text_tokens(next_position(*memory), 1 + random.below(3));
    const ScriptGroup group = group_of(random, std::move(tokens));
    const auto read = play(context, *memory, group), expected = play(context, *flat, group);
    for (size_t layer = 0; layer < read.size(); ++layer) {
      ASSERT_EQ(read[layer].ordinals, expected[layer].ordinals);
      ASSERT_EQ(read[layer].keys, expected[layer].keys);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Memories,
    ::testing::Values("flat", "sliding:rows=9,sinks=2", "sliding:rows=12,positions=original",
                      "uniform:rows=7", "uniform:rows=10,window=5,positions=consecutive",
                      "frame-retrieval:rows=8",
                      "frame-retrieval:rows=11,window=6,positions=original", "compact:rows=9",
                      "compact:rows=13,positions=consecutive", "compact:rows=10,by=attention",
                      "mosaic:rows=12,recent=3,cluster=4,positions=original",
                      "mosaic:rows=9,cluster=6,resident=10,search=20,visual=query",
                      "mosaic:rows=16,window=8,positions=consecutive,search=9,rank=mean"),
    [](const auto& which) { return "n" + std::to_string(which.index); });

}  // namespace
}  // namespace kinora

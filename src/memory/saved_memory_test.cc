// Memories in files: what a plain memory with pruned rows and states gives back, what is read only
// when it is needed, and what damage does.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "base/files/archive.h"
#include "base/files/byte_stream.h"
#include "memory/partial/partial_test_support.h"
#include "memory/policies.h"
#include "support/random_data.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

using testing::group_of;
using testing::next_position;
using testing::play;
using testing::text_tokens;
using testing::turning_layout;
using testing::video_tokens;

class SavedMemory : public ::testing::Test {
 protected:
  std::unique_ptr<Memory> make(const std::string& policy, const RowLayout& layout,
                               const std::string& retain = "all") {
    return make_memory(policy, {layout, Device::cpu(), parse_retention(retain)});
  }
  // Text, then pictures of 2 × 3 tokens in several groups: at most 50, since each of them reads all
  // rows before it.
  void fill(Memory& memory, Random& random, int32_t pictures) {
    play(context_, memory, group_of(random, text_tokens(0, 4)));
    const int32_t together = std::max(4, pictures / 50);
    for (int32_t first = 0; first < pictures; first += together) {
      play(context_, memory, group_of(random, video_tokens(4, together, 2, 3, 2, first)));
    }
  }
  std::string saved(const Memory& memory) {
    const std::string path = directory_.file("memory");
    ArchiveWriter out(path);
    memory.save(memory.mark(), out);
    out.commit();
    return path;
  }
  void damage(const std::string& path, const std::string& section) {
    const ArchiveSection found = Archive::open(path)->section(section);
    ASSERT_GT(found.bytes, 0) << section;
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    const int64_t at = found.offset + found.bytes / 2;
    file.seekg(at);
    const auto byte = static_cast<char>(file.get() ^ 4);
    file.seekp(at);
    file.put(byte);
  }
  static ErrorKind kind_of(const std::function<void()>& work) {
    try {
      work();
    } catch (const Error& error) {
      return error.kind();
    }
    ADD_FAILURE() << "nothing was thrown";
    return ErrorKind::internal;
  }

  const testing::TempDir directory_;
  const ThreadPool threads_{1};
  const Context context_{threads_};
};

TEST_F(SavedMemory, PrunedRowsStayPruned) {
  KINORA_FRESH_RANDOM(random);
  for (const DType type : {DType::f32, DType::i8, DType::u8}) {
    const RowLayout layout = turning_layout(type);
    const auto memory = make("flat", layout, "key-norm:0.4");
    fill(*memory, random, 12);
    const auto other = make("flat", layout, "key-norm:0.4");
    other->load(context_, Archive::open(saved(*memory)), Loading::whole);
    ASSERT_EQ(other->token_count(), memory->token_count());
    for (int layer = 0; layer < layout.layers; ++layer) {
      EXPECT_LT(memory->row_count(layer), memory->token_count());
      EXPECT_EQ(other->row_count(layer), memory->row_count(layer));
    }
    EXPECT_EQ(other->bytes().total(), memory->bytes().total());
    const auto question = group_of(random, text_tokens(next_position(*memory), 3));
    EXPECT_EQ(play(context_, *other, question)[1].keys, play(context_, *memory, question)[1].keys);
  }
}

TEST_F(SavedMemory, StatesOfHybridLayersComeBack) {
  KINORA_FRESH_RANDOM(random);
  RowLayout layout = turning_layout();
  layout.state_bytes = {48, 0};
  FlatMemory memory(layout), other(layout);
  const auto tokens = text_tokens(0, 3);
  memory.begin(context_, {tokens});
  const NewRows rows = memory.append(1);
  for (int64_t i = 0; i < rows.keys.elements(); ++i) {
    rows.keys.data<float>()[i] = static_cast<float>(random.normal());
    rows.values.data<float>()[i] = static_cast<float>(random.normal());
  }
  uint8_t* state = memory.state(0).data<uint8_t>();
  for (int i = 0; i < 48; ++i) state[i] = static_cast<uint8_t>(random.next());
  other.load(context_, Archive::open(saved(memory)), Loading::whole);
  EXPECT_TRUE(std::equal(state, state + 48, other.state(0).data<uint8_t>()));
  EXPECT_EQ(other.row_count(1), 3);
}

TEST_F(SavedMemory, QuestionsReadOnlyTheRowsTheyNeed) {
  KINORA_FRESH_RANDOM(random);
  for (const auto& [policy, type] :
       {std::pair<std::string, DType>{"mosaic:rows=48,cluster=8", DType::f32},
        {"frame-retrieval:rows=48", DType::f32},
        {"uniform:rows=48", DType::f32},
        {"uniform:rows=48", DType::i8}}) {
    SCOPED_TRACE(policy + " " + std::string(row_type_name(type)));
    const auto memory = make(policy, turning_layout(type));
    fill(*memory, random, type == DType::f32 ? 1200 : 4800);
    const auto other = make(policy, turning_layout(type));
    other->load(context_, Archive::open(saved(*memory)), Loading::whole);
    EXPECT_EQ(other->bytes().held() - memory->bytes().held(), -other->bytes().disk);
    EXPECT_GT(other->bytes().disk, 0);
    const int64_t before = other->bytes().disk;
    const auto question = group_of(random, text_tokens(next_position(*memory), 3));
    const auto expected = play(context_, *memory, question);
    const auto read = play(context_, *other, question);
    for (size_t layer = 0; layer < read.size(); ++layer) {
      EXPECT_EQ(read[layer].ordinals, expected[layer].ordinals);
      EXPECT_EQ(read[layer].keys, expected[layer].keys);
      EXPECT_EQ(read[layer].values, expected[layer].values);
    }
    EXPECT_LT(other->bytes().disk, before);
    EXPECT_GT(other->bytes().disk, 0);
  }
}

// A file whose checksums are right and whose order of rows is none.
TEST_F(SavedMemory, OnlyAnOrderOfAllRowsIsBelieved) {
  KINORA_FRESH_RANDOM(random);
  const std::string policy = "mosaic:rows=48,cluster=8";
  const auto memory = make(policy, turning_layout());
  fill(*memory, random, 40);
  const auto whole = Archive::open(saved(*memory));
  const std::string packed = whole->read("layer/1/order");
  ByteReader from(packed, "order");
  const auto order = from.all<int32_t>();
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
  const auto loads = [&](const std::vector<int32_t>& changed, int64_t page = 0, size_t cut = 0) {
    const std::string path = directory_.file("changed");
    ArchiveWriter out(path);
    for (const ArchiveSection& section : whole->sections()) {
      ByteWriter bytes;
      bytes.put_all(changed);
      const bool here = section.name == "layer/1/order";
      const bool rows = section.name == "layer/1/values";
      const std::string content = here ? bytes.bytes() : whole->read(section.name);
      out.begin(section.name, rows && page > 0 ? page : section.page);
      out.append(content.data(), content.size() - (rows ? cut : 0));
      out.end();
    }
    out.commit();
    make(policy, turning_layout())->load(context_, Archive::open(path), Loading::whole);
  };
  loads(order);
  auto twice = order, none = order, fewer = order;
  twice[3] = twice[5];
  none[random.below(4) == 0 ? 0 : none.size() - 1] = random.below(2) == 0 ? -1 : 1 << 30;
  fewer.pop_back();
  for (const auto& changed : {twice, none, fewer, std::vector<int32_t>()}) {
    EXPECT_EQ(kind_of([&] { loads(changed); }), ErrorKind::bad_input);
  }
  const int64_t row = whole->section("layer/1/values").bytes / std::ssize(order);
  EXPECT_EQ(kind_of([&] { loads(order, row + 1); }), ErrorKind::bad_input);
  EXPECT_EQ(kind_of([&] { loads(order, 0, static_cast<size_t>(row)); }), ErrorKind::bad_input);
}

TEST_F(SavedMemory, DamageIsTheErrorOfWhoReadsIt) {
  KINORA_FRESH_RANDOM(random);
  const auto flat = make("flat", turning_layout());
  fill(*flat, random, 20);
  for (const char* part : {"tokens", "layout", "layer/0/keys", "layer/1/values"}) {
    const std::string path = saved(*flat);
    damage(path, part);
    const auto other = make("flat", turning_layout());
    EXPECT_EQ(kind_of([&] { other->load(context_, Archive::open(path), Loading::whole); }),
              ErrorKind::bad_input)
        << part;
  }
  // A memory that is read lazily opens; a question that needs the damaged rows fails, and goes on
  // failing; nothing is ever made of them.
  const auto mosaic = make("mosaic:rows=4096", turning_layout());
  fill(*mosaic, random, 40);
  const std::string path = saved(*mosaic);
  damage(path, "layer/1/keys");
  const auto other = make("mosaic:rows=4096", turning_layout());
  other->load(context_, Archive::open(path), Loading::whole);
  const MemoryMark mark = other->mark();
  const auto question = group_of(random, text_tokens(next_position(*mosaic), 3));
  for (int again = 0; again < 2; ++again) {
    EXPECT_EQ(kind_of([&] { play(context_, *other, question); }), ErrorKind::bad_input);
    other->rewind(mark);
  }
  damage(path, "mosaic");
  const auto third = make("mosaic", turning_layout());
  EXPECT_EQ(kind_of([&] { third->load(context_, Archive::open(path), Loading::whole); }),
            ErrorKind::bad_input);
}

TEST_F(SavedMemory, RowsOfAnotherShapeAreRefused) {
  KINORA_FRESH_RANDOM(random);
  const auto memory = make("flat", turning_layout());
  fill(*memory, random, 8);
  const std::string path = saved(*memory);
  RowLayout deeper = turning_layout(), wider = turning_layout();
  deeper.layers = 3;
  wider.kv_heads = 3;
  for (const RowLayout& layout :
       {deeper, wider, turning_layout(DType::bf16), turning_layout(DType::i8)}) {
    for (const char* policy : {"flat", "mosaic", "compact"}) {
      const auto other = make(policy, layout);
      EXPECT_EQ(kind_of([&] { other->load(context_, Archive::open(path), Loading::whole); }),
                ErrorKind::bad_input);
    }
  }
  // A memory that was saved as another kind lacks what this one needs.
  const auto mosaic = make("mosaic", turning_layout());
  EXPECT_EQ(kind_of([&] { mosaic->load(context_, Archive::open(path), Loading::whole); }),
            ErrorKind::bad_input);
}

}  // namespace
}  // namespace kinora

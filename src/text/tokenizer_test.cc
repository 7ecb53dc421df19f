// The tokenizer against ids that Hugging Face gave, and its own rules.
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "support/random_data.h"
#include "support/temp_dir.h"
#include "text/text_stream.h"
#include "text/tokenizer_bytes.h"
#include "text/tokenizer_test_text.h"

namespace kinora {
namespace {

using nlohmann::json;

const std::string kFixtures = std::string(KINORA_FIXTURES) + "/tokenizers";

// The formats of tests/reference/README.md.
class FixtureFile {
 public:
  FixtureFile(const std::string& path, const char* magic) : content_(real_files().read(path)) {
    if (content_.substr(0, 8) != magic) throw std::runtime_error(path + " is no fixture");
    std::memcpy(&count_, content_.data() + 8, 4);
  }
  uint32_t count() const { return count_; }
  uint64_t number() {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(content_.at(position_++));
      value |= static_cast<uint64_t>(byte & 127) << shift;
      if (byte < 128) return value;
    }
  }
  std::string text() {
    const uint64_t size = number();
    position_ += size;
    return content_.substr(position_ - size, size);
  }
  std::vector<int32_t> ids() {
    std::vector<int32_t> values(number());
    for (int32_t& value : values) value = static_cast<int32_t>(number());
    return values;
  }

 private:
  std::string content_;
  uint32_t count_ = 0;
  size_t position_ = 12;
};

void expect_equal_ids(const Tokenizer& tokenizer, const std::string& ids_path) {
  FixtureFile texts(kFixtures + "/strings.bin", "KNRSTR01");
  FixtureFile expected(ids_path, "KNRIDS01");
  ASSERT_GE(texts.count(), 10000u);
  ASSERT_EQ(texts.count(), expected.count());
  int differences = 0;
  for (uint32_t i = 0; i < texts.count(); ++i) {
    const std::string text = texts.text();
    const std::vector<int32_t> ids = expected.ids();
    if (tokenizer.encode(text) == ids) continue;
    if (++differences <= 3) ADD_FAILURE() << "string " << i << ": " << text;
  }
  EXPECT_EQ(differences, 0) << "of " << texts.count();
}

class TokenizerFixture : public ::testing::TestWithParam<const char*> {
 protected:
  Tokenizer tokenizer = Tokenizer::load(real_files(), kFixtures + "/" + GetParam());
};

TEST_P(TokenizerFixture, EncodesAsHuggingFace) {
  expect_equal_ids(tokenizer, kFixtures + "/" + GetParam() + ".ids");
}

TEST_P(TokenizerFixture, DecodesAsHuggingFace) {
  int cases = 0;
  for (const json& entry : json::parse(real_files().read(kFixtures + "/decode.json"))) {
    if (entry.at("tokenizer") != GetParam()) continue;
    ++cases;
    const auto ids = entry.at("ids").get<std::vector<int32_t>>();
    EXPECT_EQ(tokenizer.decode(ids, false), entry.at("text").get<std::string>());
    EXPECT_EQ(tokenizer.decode(ids, true), entry.at("text_skip_special").get<std::string>());
  }
  EXPECT_GT(cases, 50);
}

TEST_P(TokenizerFixture, StreamEqualsDecodeAndNeverGivesHalfACharacter) {
  KINORA_FRESH_RANDOM(random);
  for (int round = 0; round < 2000; ++round) {
    std::vector<int32_t> ids;
    if (round % 2) {
      for (int64_t left = random.below(30); left > 0; --left) {
        ids.push_back(static_cast<int32_t>(random.below(tokenizer.vocabulary_size() + 3)) - 1);
      }
    } else {
      ids = tokenizer.encode(tokenizer::testing::random_text(random, random.below(30)));
    }
    const bool skip_special = round % 3 == 0;
    TextStream stream(tokenizer, skip_special);
    std::string joined;
    for (const int32_t id : ids) {
      const std::string piece = stream.push(id);
      ASSERT_EQ(tokenizer::find_invalid_utf8(piece), std::string::npos);
      joined += piece;
    }
    joined += stream.finish();
    ASSERT_EQ(joined, tokenizer.decode(ids, skip_special));
    ASSERT_EQ(stream.finish(), "");
  }
}

TEST_P(TokenizerFixture, ThreadsAgree) {
  KINORA_FRESH_RANDOM(random);
  std::vector<std::string> texts;
  std::vector<std::vector<int32_t>> expected;
  for (int i = 0; i < 200; ++i) {
    texts.push_back(tokenizer::testing::random_text(random, 50));
    expected.push_back(tokenizer.encode(texts.back()));
  }
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < texts.size(); ++i) {
        const size_t which = (i + t * 50) % texts.size();
        wrong[t] += tokenizer.encode(texts[which]) != expected[which];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

INSTANTIATE_TEST_SUITE_P(Fixtures, TokenizerFixture, ::testing::Values("qwen", "llama", "smol"));

// A published tokenizer is too big for the repository. KINORA_REAL_TOKENIZER names its directory;
// `tests/reference/make real-tokenizer DIR` writes the ids to expect.
TEST(Tokenizer, RealOneEncodesAsHuggingFace) {
  const char* directory = std::getenv("KINORA_REAL_TOKENIZER");
  if (!directory) GTEST_SKIP() << "KINORA_REAL_TOKENIZER is not set";
  const std::string name = std::filesystem::weakly_canonical(directory).filename();
  const std::string ids = std::string(KINORA_SOURCE) + "/build/reference/" + name + ".ids";
  if (!real_files().is_file(ids)) {
    GTEST_SKIP() << "no " << ids << "; run tests/reference/make real-tokenizer " << directory;
  }
  expect_equal_ids(Tokenizer::load(real_files(), directory), ids);
}

// Bytes that the vocabulary lacks are passed over, or become the unknown token.
TEST(Tokenizer, BytesWithoutATokenAreUnknown) {
  const testing::TempDir folder;
  json file = json::parse(real_files().read(kFixtures + "/smol/tokenizer.json"));
  const auto ids = [&](const char* text) {
    real_files().write(folder.file("tokenizer.json"), file.dump());
    return Tokenizer::load(real_files(), folder.path()).encode(text);
  };
  EXPECT_TRUE(ids("\x01").empty());
  const int32_t unknown = file["model"]["vocab"]["?"].get<int32_t>();
  file["model"]["unk_token"] = "?";
  EXPECT_EQ(ids("\x01\x02"), (std::vector<int32_t>{unknown, unknown}));
  file["model"]["fuse_unk"] = true;
  EXPECT_EQ(ids("\x01\x02"), std::vector<int32_t>{unknown});
}

TEST(Tokenizer, KnowsItsTokens) {
  const Tokenizer qwen = Tokenizer::load(real_files(), kFixtures + "/qwen");
  const int32_t end = qwen.require("<|im_end|>");
  EXPECT_EQ(qwen.id_of("<|im_end|>"), end);
  EXPECT_EQ(qwen.end_token(), end);
  EXPECT_EQ(qwen.pad_token(), qwen.require("<|endoftext|>"));
  EXPECT_EQ(qwen.begin_token(), std::nullopt);
  EXPECT_EQ(qwen.bytes_of(end), "<|im_end|>");
  EXPECT_EQ(qwen.bytes_of(-1), "");
  EXPECT_EQ(qwen.bytes_of(1 << 30), "");
  EXPECT_TRUE(qwen.is_special(end));
  EXPECT_FALSE(qwen.is_special(qwen.require("<tool_call>")));
  EXPECT_FALSE(qwen.is_special(-1));
  EXPECT_EQ(qwen.id_of("<|no such token|>"), std::nullopt);
  EXPECT_THROW(qwen.require("<|no such token|>"), Error);
  EXPECT_EQ(qwen.vocabulary_size(), 1021);
  int special = 0;
  for (int32_t id = 0; id < qwen.vocabulary_size(); ++id) special += qwen.is_special(id);
  EXPECT_EQ(special, 16);
}

TEST(Tokenizer, SpecialTokensAreTextForAStranger) {
  const Tokenizer qwen = Tokenizer::load(real_files(), kFixtures + "/qwen");
  const std::string text = "a<|im_end|>b";
  EXPECT_EQ(qwen.encode(text).size(), 3u);
  const std::vector<int32_t> plain = qwen.encode(text, {.parse_special = false});
  EXPECT_GT(plain.size(), 3u);
  for (const int32_t id : plain) EXPECT_FALSE(qwen.is_special(id));
  EXPECT_EQ(qwen.decode(plain), text);
  EXPECT_EQ(qwen.decode(qwen.encode(text), /*skip_special=*/true), "ab");
}

TEST(Tokenizer, TheTemplateAddsTheBeginning) {
  const Tokenizer llama = Tokenizer::load(real_files(), kFixtures + "/llama");
  const int32_t begin = llama.require("<|begin_of_text|>");
  EXPECT_EQ(llama.begin_token(), begin);
  std::vector<int32_t> ids = llama.encode("Hello", {.add_special = true});
  EXPECT_EQ(ids.front(), begin);
  ids.erase(ids.begin());
  EXPECT_EQ(ids, llama.encode("Hello"));
  EXPECT_EQ(llama.encode("", {.add_special = true}), std::vector<int32_t>{begin});
  EXPECT_TRUE(llama.encode("").empty());
}

TEST(Tokenizer, RefusesTextThatIsNoUtf8) {
  const Tokenizer qwen = Tokenizer::load(real_files(), kFixtures + "/qwen");
  try {
    qwen.encode("good \xff bad");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_input);
    EXPECT_STREQ(error.what(), "the text is not valid UTF-8 at byte 5 (0xff); convert it to UTF-8");
  }
  KINORA_FRESH_RANDOM(random);
  for (int i = 0; i < 5000; ++i) {
    std::string text;
    for (int64_t left = random.below(20); left > 0; --left) {
      text += static_cast<char>(random.below(256));
    }
    if (tokenizer::find_invalid_utf8(text) == std::string::npos) continue;
    EXPECT_THROW(qwen.encode(text), Error);
  }
}

TEST(Tokenizer, RoundTripsNormalText) {
  KINORA_FRESH_RANDOM(random);
  const Tokenizer llama = Tokenizer::load(real_files(), kFixtures + "/llama");
  for (int i = 0; i < 5000; ++i) {
    const std::string text = tokenizer::testing::random_text(random, random.below(40));
    ASSERT_EQ(llama.decode(llama.encode(text)), text);
  }
}

}  // namespace
}  // namespace kinora

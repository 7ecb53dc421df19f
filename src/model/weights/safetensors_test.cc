#include "model/weights/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "model/weights/safetensors_writer.h"
#include "support/random_data.h"
#include "support/temp_dir.h"

namespace kinora {
namespace {

std::string with_header(const std::string& header, const std::string& data) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>((header.size() >> (8 * i)) & 0xff);
  return bytes + header + data;
}

// Files that exist only here. Mappings are exactly as long as the file, so that the address
// sanitizer sees a read past the end, which a mapped page would hide.
class MemoryFiles final : public FileSystem {
 public:
  std::map<std::string, std::string> content;

  bool is_file(const std::string& path) const override { return content.contains(path); }
  bool is_directory(const std::string&) const override { return true; }
  std::vector<std::string> list(const std::string&) const override { return {}; }
  std::shared_ptr<MappedFile> map(const std::string& path) const override {
    return std::make_shared<Mapping>(content.at(path));
  }
  std::string read(const std::string& path, int64_t) const override { return content.at(path); }
  void write(const std::string& path, std::string_view bytes) override {
    content[path] = std::string(bytes);
  }

 private:
  class Mapping final : public MappedFile {
   public:
    explicit Mapping(const std::string& bytes)
        : size_(bytes.size()), data_(std::make_unique<std::byte[]>(size_)) {
      std::memcpy(data_.get(), bytes.data(), size_);
    }
    std::span<const std::byte> bytes() const override { return {data_.get(), size_}; }

   private:
    size_t size_;
    std::unique_ptr<std::byte[]> data_;
  };
};

class SafetensorsTest : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& bytes) {
    files_.write("model/" + name, bytes);
  }
  SafetensorsFile open(const std::string& bytes) {
    write("file.safetensors", bytes);
    return SafetensorsFile::open(files_, "model/file.safetensors");
  }
  // Expects bad input whose message holds `what` and stays on one line.
  void expect_damaged(const std::string& bytes, const std::string& what) {
    try {
      open(bytes);
      ADD_FAILURE() << "accepted, though " << what;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::bad_input) << error.what();
      EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  }

  MemoryFiles files_;
};

NamedTensors sample_tensors(Random& random) {
  NamedTensors tensors;
  const std::pair<const char*, DType> types[] = {{"a.weight", DType::f32}, {"b", DType::bf16},
                                                 {"c", DType::f16},        {"d", DType::i8},
                                                 {"e", DType::i32},        {"f", DType::u8}};
  for (const auto& [name, dtype] : types) {
    Tensor tensor(dtype, Shape{3, 1 + random.below(7), 2});
    for (int64_t i = 0; i < tensor.bytes(); ++i) {
      tensor.view().raw()[i] = static_cast<std::byte>(random.below(256));
    }
    tensors.emplace_back(name, tensor);
  }
  return tensors;
}

TEST_F(SafetensorsTest, ReadsBackEveryTypeWithoutCopying) {
  KINORA_FRESH_RANDOM(random);
  const NamedTensors tensors = sample_tensors(random);
  const SafetensorsFile file = open(safetensors_bytes(tensors));
  ASSERT_EQ(file.entries().size(), tensors.size());
  const std::byte* first = nullptr;
  for (const auto& [name, tensor] : tensors) {
    const Tensor read = file.tensor(name);
    EXPECT_EQ(read.dtype(), tensor.dtype());
    EXPECT_EQ(read.shape(), tensor.shape());
    EXPECT_EQ(
        std::memcmp(read.view().raw(), tensor.view().raw(), static_cast<size_t>(tensor.bytes())),
        0);
    if (first == nullptr) {
      first = read.view().raw();
    } else if (tensor.dtype() == DType::bf16) {
      EXPECT_EQ(read.view().raw(), first + tensors[0].second.bytes());
    }
  }
}

TEST_F(SafetensorsTest, ReadsRealFiles) {
  KINORA_FRESH_RANDOM(random);
  const testing::TempDir directory;
  const NamedTensors tensors = sample_tensors(random);
  write_safetensors(real_files(), directory.file("model.safetensors"), tensors);
  const TensorFiles files = TensorFiles::open(real_files(), directory.path());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(std::memcmp(files.tensor(name).view().raw(), tensor.view().raw(),
                          static_cast<size_t>(tensor.bytes())),
              0);
  }
}

TEST_F(SafetensorsTest, TensorsOutliveTheFileObject) {
  KINORA_FRESH_RANDOM(random);
  const NamedTensors tensors = sample_tensors(random);
  Tensor kept;
  {
    const SafetensorsFile file = open(safetensors_bytes(tensors));
    kept = file.tensor("e");
  }
  EXPECT_EQ(std::memcmp(kept.view().raw(), tensors[4].second.view().raw(),
                        static_cast<size_t>(kept.bytes())),
            0);
}

TEST_F(SafetensorsTest, CopiesWhatIsNotAligned) {
  const std::string header = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}} )";
  ASSERT_NE((8 + header.size()) % 4, 0u);
  const float value = 1.25f;
  std::string data(4, '\0');
  std::memcpy(data.data(), &value, 4);
  EXPECT_EQ(open(with_header(header, data)).tensor("a").data<float>()[0], value);
}

TEST_F(SafetensorsTest, AcceptsMetadataEmptyTensorsAndScalars) {
  const SafetensorsFile file = open(with_header(
      R"({"__metadata__":{"format":"pt"},"e":{"dtype":"F32","shape":[0,5],"data_offsets":[0,0]},)"
      R"("s":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})",
      "x"));
  EXPECT_EQ(file.tensor("e").shape(), (Shape{0, 5}));
  EXPECT_EQ(file.tensor("s").rank(), 0);
  EXPECT_EQ(file.tensor("s").data<uint8_t>()[0], 'x');
}

TEST_F(SafetensorsTest, OtherTypesAreAnErrorOnlyWhenNeeded) {
  const SafetensorsFile file =
      open(with_header(R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},)"
                       R"("b":{"dtype":"F99","shape":[1],"data_offsets":[8,9]}})",
                       std::string(9, '\0')));
  for (const char* name : {"a", "b"}) {
    try {
      file.tensor(name);
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::unsupported);
    }
  }
  try {
    file.tensor("z");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::not_found);
  }
}

TEST_F(SafetensorsTest, RefusesDamagedHeaders) {
  const auto entry = [](const std::string& shape, const std::string& offsets,
                        const std::string& dtype = "F32") {
    return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
           "}";
  };
  const std::string good = entry("[1]", "[0,4]");
  const std::string four(4, '\0');
  const std::string eight(8, '\0');

  expect_damaged("", "too short");
  expect_damaged("1234567", "too short");
  expect_damaged(std::string(8, '\xff'), "claims a header");
  expect_damaged(std::string("\x10\0\0\0\0\0\0\0{}", 10), "claims a header");
  expect_damaged(with_header("", ""), "not valid JSON");
  expect_damaged(with_header("{\"a\":", four), "not valid JSON");
  expect_damaged(with_header("{\"a\xff\":" + good + "}", four), "not valid JSON");
  expect_damaged(with_header("[1]", ""), "not an object");
  expect_damaged(with_header("7", ""), "not an object");
  expect_damaged(with_header("{\"a\":7}", ""), "not described");
  expect_damaged(with_header("{\"a\":{}}", ""), "no dtype");
  expect_damaged(with_header(R"({"a":{"dtype":"F32"}})", ""), "no shape");
  expect_damaged(with_header(R"({"a":{"dtype":"F32","shape":[1]}})", four), "data_offsets");
  expect_damaged(with_header("{\"a\":" + entry("[1]", "[0,4,8]") + "}", eight), "data_offsets");
  expect_damaged(with_header("{\"a\":" + good + ",\"a\":" + good + "}", four), "twice");
  expect_damaged(with_header(R"({"a":{"dtype":"F32","dtype":"F32"}})", ""), "twice");
  expect_damaged(with_header("{\"a\":" + good + "}", ""), "past the end");
  expect_damaged(with_header("{\"a\":" + entry("[1]", "[4,0]") + "}", four), "ends before");
  expect_damaged(with_header("{\"a\":" + entry("[2]", "[0,4]") + "}", four), "need 8");
  expect_damaged(with_header("{\"a\":" + entry("[-1]", "[0,4]") + "}", four), "whole number");
  expect_damaged(with_header("{\"a\":" + entry("[1.0]", "[0,4]") + "}", four), "whole number");
  expect_damaged(with_header("{\"a\":" + entry("[\"1\"]", "[0,4]") + "}", four), "whole number");
  expect_damaged(with_header("{\"a\":" + entry("[18446744073709551615]", "[0,4]") + "}", four),
                 "whole number");
  expect_damaged(with_header("{\"a\":" + entry("[99999999999999999999999]", "[0,4]") + "}", four),
                 "whole number");
  expect_damaged(with_header("{\"a\":" + entry("[4294967296,4294967296]", "[0,4]") + "}", four),
                 "large");
  expect_damaged(
      with_header("{\"a\":" + entry("[0,4611686018427387904,4611686018427387904]", "[0,0]") + "}",
                  ""),
      "large");
  expect_damaged(with_header("{\"a\":" + entry("[1,1,1,1,1,1]", "[0,4]") + "}", four), "list");
  expect_damaged(with_header("{\"a\":" + entry("[[1]]", "[0,4]") + "}", four), "nested");
  expect_damaged(with_header(R"({"a":{"b":{"c":1}}})", ""), "nested");
  expect_damaged(with_header(std::string(100'000, '['), ""), "nested");
  // The second begins inside the first, then four bytes after it, then the file is too long.
  expect_damaged(with_header("{\"a\":" + good + ",\"b\":" + entry("[1]", "[0,4]") + "}", eight),
                 "overlaps");
  expect_damaged(with_header("{\"a\":" + good + ",\"b\":" + entry("[1]", "[2,6]") + "}", eight),
                 "overlaps");
  expect_damaged(with_header("{\"b\":" + entry("[1]", "[4,8]") + "}", eight), "no tensor");
  expect_damaged(with_header("{\"a\":" + good + "}", eight), "last 4 bytes");
}

TEST_F(SafetensorsTest, SurvivesEveryTruncation) {
  KINORA_FRESH_RANDOM(random);
  const std::string whole = safetensors_bytes(sample_tensors(random));
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_THROW(open(whole.substr(0, length)), Error) << length;
  }
}

TEST_F(SafetensorsTest, SurvivesFlippedBits) {
  KINORA_FRESH_RANDOM(random);
  const std::string whole = safetensors_bytes(sample_tensors(random));
  const auto header = 8 + static_cast<int64_t>(static_cast<unsigned char>(whole[0])) +
                      256 * static_cast<int64_t>(static_cast<unsigned char>(whole[1]));
  for (int trial = 0; trial < 2000; ++trial) {
    std::string flipped = whole;
    for (int64_t flips = 1 + random.below(3); flips > 0; --flips) {
      const auto at = static_cast<size_t>(random.below(header));
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << random.below(8)));
    }
    try {
      const SafetensorsFile file = open(flipped);
      for (const auto& [name, entry] : file.entries()) {
        if (!entry.known) continue;
        const Tensor tensor = file.tensor(name);  // whatever it says must lie inside the file
        int64_t sum = 0;
        for (int64_t i = 0; i < tensor.bytes(); ++i) {
          sum += std::to_integer<int64_t>(tensor.view().raw()[i]);
        }
        EXPECT_GE(sum, 0);
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::bad_input) << error.what();
    }
  }
}

class ShardsTest : public SafetensorsTest {
 protected:
  void write_shards(Random& random) {
    tensors_ = sample_tensors(random);
    write("one.safetensors", safetensors_bytes({tensors_.begin(), tensors_.begin() + 2}));
    write("two.safetensors", safetensors_bytes({tensors_.begin() + 2, tensors_.end()}));
    nlohmann::json map;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      map[tensors_[i].first] = i < 2 ? "one.safetensors" : "two.safetensors";
    }
    index_ = {{"metadata", {{"total_size", 1}}}, {"weight_map", map}};
  }
  TensorFiles open_directory() {
    write("model.safetensors.index.json", index_.dump());
    return TensorFiles::open(files_, "model");
  }
  void expect_refused(ErrorKind kind, const std::string& what) {
    try {
      open_directory();
      ADD_FAILURE() << "accepted, though " << what;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind) << error.what();
      EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
    }
  }

  NamedTensors tensors_;
  nlohmann::json index_;
};

TEST_F(ShardsTest, FindsTensorsInTheirShards) {
  KINORA_FRESH_RANDOM(random);
  write_shards(random);
  const TensorFiles files = open_directory();
  EXPECT_EQ(files.names().size(), tensors_.size());
  int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors_) {
    bytes += tensor.bytes();
    const Tensor read = files.tensor(name);
    EXPECT_EQ(
        std::memcmp(read.view().raw(), tensor.view().raw(), static_cast<size_t>(tensor.bytes())),
        0);
  }
  EXPECT_EQ(files.bytes(), bytes);
  EXPECT_EQ(files.find("nothing"), nullptr);
  EXPECT_THROW(files.tensor("nothing"), Error);
}

TEST_F(ShardsTest, RefusesBadIndexes) {
  KINORA_FRESH_RANDOM(random);
  write_shards(random);
  const nlohmann::json good = index_;
  for (const char* name :
       {"../one.safetensors", "/etc/passwd", "sub/one.safetensors", "..", "", "a\\b", "nul\0x"}) {
    index_ = good;
    index_["weight_map"]["b"] = std::string(name) == "nul" ? std::string("nul\0x", 5) : name;
    expect_refused(ErrorKind::bad_input, "not the name of a file");
  }
  index_ = good;
  index_["weight_map"]["b"] = 7;
  expect_refused(ErrorKind::bad_input, "does not name files");
  index_ = good;
  index_["weight_map"]["b"] = "three.safetensors";
  expect_refused(ErrorKind::not_found, "three.safetensors");
  index_ = good;
  index_["weight_map"]["b"] = "two.safetensors";
  expect_refused(ErrorKind::bad_input, "does not have it");
  index_ = {{"metadata", 1}};
  expect_refused(ErrorKind::bad_input, "weight_map");
  index_ = nlohmann::json::array();
  expect_refused(ErrorKind::bad_input, "weight_map");
}

TEST_F(ShardsTest, SaysWhatIsMissingFromADirectory) {
  EXPECT_THROW(
      {
        try {
          TensorFiles::open(files_, "model");
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::not_found);
          throw;
        }
      },
      Error);
}

}  // namespace
}  // namespace kinora

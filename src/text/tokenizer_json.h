// Looking into the JSON of a tokenizer's files: members that may be missing, and errors that name
// the file. Used by what reads tokenizer.json and tokenizer_config.json.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/file.h"

namespace kinora::tokenizer {

constexpr int64_t kMaxId = int64_t{1} << 22;
constexpr size_t kMaxTokenBytes = 4096;

// A token as a message may show it.
std::string shown(const std::string& text);

// The member, or null where there is none.
const nlohmann::json& member(const nlohmann::json& object, const char* key);

class JsonFile {
 public:
  // Reads and parses it. Throws not_found, or bad_input for what is no JSON or nests too deeply.
  JsonFile(const FileSystem& files, const std::string& directory, const std::string& name);

  const nlohmann::json& root() const { return root_; }

  [[noreturn]] void fail(const std::string& what, ErrorKind kind = ErrorKind::bad_input) const;
  // A part that is well formed, but of a kind that kinora does not have.
  [[noreturn]] void refuse(const std::string& part, const std::string& type) const;

  bool flag(const nlohmann::json& object, const char* key, bool otherwise) const;
  std::string type_of(const nlohmann::json& object, const char* part) const;
  std::string text_of(const nlohmann::json& object, const char* key, const char* part) const;
  int32_t checked_id(const nlohmann::json& value, const std::string& token) const;

 private:
  std::string path_;
  nlohmann::json root_;
};

}  // namespace kinora::tokenizer

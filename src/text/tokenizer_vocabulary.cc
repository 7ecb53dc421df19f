// Which tokens there are, from tokenizer.json: the model's vocabulary, merges or scores, and the
// tokens that were added.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "text/tokenizer_bytes.h"
#include "text/tokenizer_parts.h"

namespace kinora::tokenizer {
namespace {

using nlohmann::json;

class VocabularyReader {
 public:
  VocabularyReader(const JsonFile& in, TokenizerFile& file) : in_(in), file_(file) {}

  void run() {
    const json& root = in_.root();
    choose_model(root);
    read_vocabulary(root);
    // Before the added tokens, which no merge may name.
    if (file_.model != TokenModel::unigram) read_merges(root.at("model"));
    read_added(root);
  }

 private:
  // Whether the token is written in the byte-level alphabet, so that merging may reach it.
  bool put_token(int32_t id, const std::string& token) {
    const auto place = static_cast<size_t>(id);
    if (place >= file_.tokens.size()) file_.tokens.resize(place + 1);
    TokenizerFile::Token& entry = file_.tokens[place];
    if (entry.present) {
      in_.fail(fmt::format("two tokens have the id {}; one is {}", id, shown(token)));
    }
    entry.present = true;
    file_.ids.emplace(token, id);
    if (file_.model != TokenModel::byte_pairs) {
      entry.bytes = token;  // read_decoder says what it stands for
      return false;
    }
    std::optional<std::string> bytes = byte_level_to_bytes(token);
    if (!bytes) {
      entry.bytes = token;
      return false;
    }
    entry.bytes = std::move(*bytes);
    return true;
  }

  static bool has_step(const json& step, std::string_view type) {
    if (member(step, "type") == type) return true;
    const json& parts = member(step, "pretokenizers");
    return parts.is_array() &&
           std::ranges::any_of(parts, [&](const json& part) { return has_step(part, type); });
  }

  void choose_model(const json& root) {
    const json& model = member(root, "model");
    if (!model.is_object()) in_.fail("has no model");
    const json& type = member(model, "type");
    if (type == "Unigram") {
      file_.model = TokenModel::unigram;
    } else if (!type.is_null() && type != "BPE") {
      in_.refuse("the model type", type.is_string() ? type.get<std::string>() : type.dump());
    } else if (!has_step(member(root, "pre_tokenizer"), "ByteLevel")) {
      file_.model = TokenModel::character_pairs;
    }
  }

  void read_vocabulary(const json& root) {
    const json& model = member(root, "model");
    if (file_.model == TokenModel::unigram) return read_scores(model);
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const json& value = member(model, key);
      if (!value.is_null() && value != "")
        in_.refuse(std::string("the model's ") + key, value.dump());
    }
    const json& dropout = member(model, "dropout");
    if (!dropout.is_null() && dropout != 0.0) in_.refuse("the model's dropout", dropout.dump());

    const json& vocabulary = member(model, "vocab");
    if (!vocabulary.is_object()) in_.fail("has no model.vocab");
    if (vocabulary.empty()) in_.fail("model.vocab is empty");
    file_.tokens.reserve(vocabulary.size());
    file_.ids.reserve(vocabulary.size());
    file_.ignore_merges = in_.flag(model, "ignore_merges", false);
    file_.byte_tokens.fill(-1);
    for (const auto& [token, value] : vocabulary.items()) {
      if (token.size() > kMaxTokenBytes) {
        in_.fail(fmt::format("a token has {} bytes; more than {} is no token", token.size(),
                             kMaxTokenBytes));
      }
      const int32_t id = in_.checked_id(value, token);
      const bool in_bytes = put_token(id, token);
      if (file_.model == TokenModel::character_pairs) file_.vocabulary.emplace(token, id);
      if (!in_bytes) continue;
      const std::string& bytes = file_.tokens[static_cast<size_t>(id)].bytes;
      if (bytes.size() == 1) file_.byte_tokens[static_cast<unsigned char>(bytes[0])] = id;
      if (file_.ignore_merges) file_.whole_words.emplace(bytes, id);
    }
    if (in_.flag(model, "byte_fallback", false)) find_byte_tokens();
    const json& unknown = member(model, "unk_token");
    if (unknown.is_null()) return;
    if (!unknown.is_string()) in_.fail("model.unk_token is not a string");
    const auto found = file_.ids.find(unknown.get<std::string>());
    if (found == file_.ids.end()) in_.fail("model.unk_token is not in model.vocab");
    file_.unknown = found->second;
    file_.fuse_unknown = in_.flag(model, "fuse_unk", false);
  }

  // The tokens <0x00> to <0xFF>, which stand for characters that have none of their own.
  void find_byte_tokens() {
    if (file_.model == TokenModel::byte_pairs) in_.refuse("the model's option", "byte_fallback");
    for (size_t byte = 0; byte < 256; ++byte) {
      const auto found = file_.vocabulary.find(fmt::format("<0x{:02X}>", byte));
      file_.byte_tokens[byte] = found == file_.vocabulary.end() ? -1 : found->second;
    }
  }

  // A list of [piece, score].
  void read_scores(const json& model) {
    const json& pieces = member(model, "vocab");
    if (!pieces.is_array()) in_.fail("has no model.vocab");
    if (pieces.empty()) in_.fail("model.vocab is empty");
    if (static_cast<int64_t>(pieces.size()) > kMaxId) in_.fail("model.vocab is too long");
    file_.tokens.reserve(pieces.size());
    file_.byte_tokens.fill(-1);
    for (const json& piece : pieces) {
      const auto id = static_cast<int32_t>(file_.scores.size());
      const bool valid =
          piece.is_array() && piece.size() == 2 && piece[0].is_string() && piece[1].is_number();
      if (!valid) in_.fail(fmt::format("entry {} of model.vocab is not [\"piece\", score]", id));
      const auto& text = piece[0].get_ref<const std::string&>();
      if (text.size() > kMaxTokenBytes) {
        in_.fail(fmt::format("a token has {} bytes; more than {} is no token", text.size(),
                             kMaxTokenBytes));
      }
      put_token(id, text);
      file_.vocabulary.insert_or_assign(text, id);
      file_.scores.push_back(piece[1].get<double>());
      if (!std::isfinite(file_.scores.back()))
        in_.fail(fmt::format("the score of {} is no number", id));
    }
    if (in_.flag(model, "byte_fallback", false)) find_byte_tokens();
    const json& unknown = member(model, "unk_id");
    if (unknown.is_null()) return;
    file_.unknown = in_.checked_id(unknown, "unk_id");
    if (static_cast<size_t>(file_.unknown) >= file_.scores.size()) {
      in_.fail("model.unk_id is not in model.vocab");
    }
  }

  void read_added(const json& root) {
    const json& added = member(root, "added_tokens");
    if (!added.is_null() && !added.is_array()) in_.fail("added_tokens is not a list");
    std::unordered_set<std::string> contents;
    for (const json& entry : added) {
      const json& content = member(entry, "content");
      if (!content.is_string()) in_.fail("an added token has no content");
      AddedToken token;
      token.content = content.get<std::string>();
      if (token.content.empty()) continue;  // never matches anything
      if (token.content.size() > kMaxTokenBytes) {
        in_.fail(fmt::format("an added token has {} bytes; at most {} are allowed",
                             token.content.size(), kMaxTokenBytes));
      }
      if (!contents.insert(token.content).second) {
        in_.fail(fmt::format("the added token {} is listed twice", shown(token.content)));
      }
      token.id = in_.checked_id(member(entry, "id"), token.content);
      token.special = in_.flag(entry, "special", false);
      token.normalized = in_.flag(entry, "normalized", !token.special);
      token.single_word = in_.flag(entry, "single_word", false);
      token.strip_left = in_.flag(entry, "lstrip", false);
      token.strip_right = in_.flag(entry, "rstrip", false);
      const auto known = file_.ids.find(token.content);
      if (known == file_.ids.end()) {
        put_token(token.id, token.content);
      } else if (known->second != token.id) {
        in_.fail(fmt::format("the added token {} has the id {}, but {} in model.vocab",
                             shown(token.content), token.id, known->second));
      }
      file_.tokens[static_cast<size_t>(token.id)].special = token.special;
      file_.added.push_back(std::move(token));
    }
  }

  int32_t merge_part(const std::string& part, size_t number) const {
    const auto found = file_.ids.find(part);
    if (found == file_.ids.end()) {
      in_.fail(fmt::format("merge {} names the token {}, which model.vocab does not have", number,
                           shown(part)));
    }
    return found->second;
  }

  void read_merges(const json& model) {
    const json& merges = member(model, "merges");
    if (!merges.is_array()) in_.fail("has no model.merges");
    if (merges.empty() && file_.ids.size() > 256 && !file_.ignore_merges) {
      in_.fail("model.merges is empty, though model.vocab has more than single bytes");
    }
    file_.merges.reserve(merges.size());
    size_t number = 0;
    for (const json& merge : merges) {
      ++number;
      std::string left, right;
      if (merge.is_string()) {
        const auto& text = merge.get_ref<const std::string&>();
        if (text.starts_with("#version")) continue;
        const size_t space = text.find(' ');
        if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
          in_.fail(fmt::format("merge {} is not two tokens with a space between: {}", number,
                               shown(text)));
        }
        left = text.substr(0, space);
        right = text.substr(space + 1);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
                 merge[1].is_string()) {
        left = merge[0].get<std::string>();
        right = merge[1].get<std::string>();
      } else {
        in_.fail(
            fmt::format("merge {} is neither \"left right\" nor [\"left\", \"right\"]", number));
      }
      file_.merges.push_back(
          {merge_part(left, number), merge_part(right, number), merge_part(left + right, number)});
    }
  }

  const JsonFile& in_;
  TokenizerFile& file_;
};

}  // namespace

void read_vocabulary(const JsonFile& in, TokenizerFile& file) { VocabularyReader(in, file).run(); }

}  // namespace kinora::tokenizer

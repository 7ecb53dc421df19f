#include "text/tokenizer_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/error.h"
#include "base/json/json_depth.h"
#include "text/tokenizer_bytes.h"
#include "text/tokenizer_pieces.h"
#include "text/tokenizer_split_known.h"
#include "text/tokenizer_utf8.h"

namespace kinora::tokenizer {
namespace {

using nlohmann::json;

constexpr int64_t kMaxFileBytes = int64_t{128} << 20;
constexpr int64_t kMaxId = int64_t{1} << 22;
constexpr size_t kMaxTokenBytes = 4096;

// A token as a message may show it.
std::string shown(const std::string& text) {
  const std::string whole = json(text).dump(-1, ' ', false, json::error_handler_t::replace);
  return whole.size() <= 80 ? whole : whole.substr(0, 70) + "…\"";
}

class Reader {
 public:
  Reader(const FileSystem& files, std::string directory)
      : files_(files), directory_(std::move(directory)) {}

  TokenizerFile run() {
    const json root = parse("tokenizer.json");
    if (!root.is_object()) fail("is not a JSON object");
    choose_model(root);
    read_vocabulary(root);
    // Before the added tokens, which no merge may name.
    if (file_.model != TokenModel::unigram) read_merges(root.at("model"));
    read_added(root);
    read_normalizer(member(root, "normalizer"));
    read_pre_tokenizer(member(root, "pre_tokenizer"));
    read_post_processor(member(root, "post_processor"));
    read_decoder(member(root, "decoder"));
    read_config();
    return std::move(file_);
  }

 private:
  [[noreturn]] void fail(const std::string& what, ErrorKind kind = ErrorKind::bad_input) const {
    throw Error(kind, fmt::format("{}: {}", path_, what));
  }
  [[noreturn]] void refuse(const std::string& part, const std::string& type) const {
    fail(
        fmt::format("{} \"{}\" is not supported (kinora reads byte-level BPE, as Qwen2 and Llama 3 "
                    "use it, and SentencePiece's BPE and Unigram)",
                    part, type),
        ErrorKind::unsupported);
  }

  json parse(const std::string& name) {
    path_ = join_path(directory_, name);
    if (!files_.is_file(path_)) {
      throw Error(ErrorKind::not_found,
                  fmt::format("{}: no such file; the model's directory needs it", path_));
    }
    const std::string content = files_.read(path_, kMaxFileBytes);
    if (json_nests_too_deeply(content)) fail("is nested too deeply; download the model again");
    json root = json::parse(content, nullptr, /*allow_exceptions=*/false);
    if (root.is_discarded()) fail("is not valid JSON (a truncated download?)");
    return root;
  }

  // The member, or null where there is none.
  static const json& member(const json& object, const char* key) {
    static const json null;
    if (!object.is_object()) return null;
    const auto found = object.find(key);
    return found == object.end() ? null : *found;
  }

  bool flag(const json& object, const char* key, bool otherwise) const {
    const json& value = member(object, key);
    if (value.is_null()) return otherwise;
    if (!value.is_boolean()) fail(fmt::format("{} is not true or false", key));
    return value.get<bool>();
  }

  std::string type_of(const json& object, const char* part) const {
    const json& type = member(object, "type");
    if (!type.is_string()) fail(fmt::format("the {} has no type", part));
    return type.get<std::string>();
  }

  int32_t checked_id(const json& value, const std::string& token) const {
    if (!value.is_number_integer() || value.get<double>() < 0 ||
        value.get<double>() >= static_cast<double>(kMaxId)) {
      fail(fmt::format("the id of token {} is out of range: {}", shown(token), value.dump()));
    }
    return value.get<int32_t>();
  }

  // Whether the token is written in the byte-level alphabet, so that merging may reach it.
  bool put_token(int32_t id, const std::string& token) {
    const auto place = static_cast<size_t>(id);
    if (place >= file_.tokens.size()) file_.tokens.resize(place + 1);
    TokenizerFile::Token& entry = file_.tokens[place];
    if (entry.present) {
      fail(fmt::format("two tokens have the id {}; one is {}", id, shown(token)));
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
    if (!model.is_object()) fail("has no model");
    const json& type = member(model, "type");
    if (type == "Unigram") {
      file_.model = TokenModel::unigram;
    } else if (!type.is_null() && type != "BPE") {
      refuse("the model type", type.is_string() ? type.get<std::string>() : type.dump());
    } else if (!has_step(member(root, "pre_tokenizer"), "ByteLevel")) {
      file_.model = TokenModel::character_pairs;
    }
  }

  void read_vocabulary(const json& root) {
    const json& model = member(root, "model");
    if (file_.model == TokenModel::unigram) return read_scores(model);
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const json& value = member(model, key);
      if (!value.is_null() && value != "") refuse(std::string("the model's ") + key, value.dump());
    }
    const json& dropout = member(model, "dropout");
    if (!dropout.is_null() && dropout != 0.0) refuse("the model's dropout", dropout.dump());

    const json& vocabulary = member(model, "vocab");
    if (!vocabulary.is_object()) fail("has no model.vocab");
    if (vocabulary.empty()) fail("model.vocab is empty");
    file_.tokens.reserve(vocabulary.size());
    file_.ids.reserve(vocabulary.size());
    file_.ignore_merges = flag(model, "ignore_merges", false);
    file_.byte_tokens.fill(-1);
    for (const auto& [token, value] : vocabulary.items()) {
      if (token.size() > kMaxTokenBytes) {
        fail(fmt::format("a token has {} bytes; more than {} is no token", token.size(),
                         kMaxTokenBytes));
      }
      const int32_t id = checked_id(value, token);
      const bool in_bytes = put_token(id, token);
      if (file_.model == TokenModel::character_pairs) file_.vocabulary.emplace(token, id);
      if (!in_bytes) continue;
      const std::string& bytes = file_.tokens[static_cast<size_t>(id)].bytes;
      if (bytes.size() == 1) file_.byte_tokens[static_cast<unsigned char>(bytes[0])] = id;
      if (file_.ignore_merges) file_.whole_words.emplace(bytes, id);
    }
    if (flag(model, "byte_fallback", false)) find_byte_tokens();
    const json& unknown = member(model, "unk_token");
    if (unknown.is_null()) return;
    if (!unknown.is_string()) fail("model.unk_token is not a string");
    const auto found = file_.ids.find(unknown.get<std::string>());
    if (found == file_.ids.end()) fail("model.unk_token is not in model.vocab");
    file_.unknown = found->second;
    file_.fuse_unknown = flag(model, "fuse_unk", false);
  }

  // The tokens <0x00> to <0xFF>, which stand for characters that have none of their own.
  void find_byte_tokens() {
    if (file_.model == TokenModel::byte_pairs) refuse("the model's option", "byte_fallback");
    for (size_t byte = 0; byte < 256; ++byte) {
      const auto found = file_.vocabulary.find(fmt::format("<0x{:02X}>", byte));
      file_.byte_tokens[byte] = found == file_.vocabulary.end() ? -1 : found->second;
    }
  }

  // A list of [piece, score].
  void read_scores(const json& model) {
    const json& pieces = member(model, "vocab");
    if (!pieces.is_array()) fail("has no model.vocab");
    if (pieces.empty()) fail("model.vocab is empty");
    if (static_cast<int64_t>(pieces.size()) > kMaxId) fail("model.vocab is too long");
    file_.tokens.reserve(pieces.size());
    file_.byte_tokens.fill(-1);
    for (const json& piece : pieces) {
      const auto id = static_cast<int32_t>(file_.scores.size());
      const bool valid =
          piece.is_array() && piece.size() == 2 && piece[0].is_string() && piece[1].is_number();
      if (!valid) fail(fmt::format("entry {} of model.vocab is not [\"piece\", score]", id));
      const auto& text = piece[0].get_ref<const std::string&>();
      if (text.size() > kMaxTokenBytes) {
        fail(fmt::format("a token has {} bytes; more than {} is no token", text.size(),
                         kMaxTokenBytes));
      }
      put_token(id, text);
      file_.vocabulary.insert_or_assign(text, id);
      file_.scores.push_back(piece[1].get<double>());
      if (!std::isfinite(file_.scores.back()))
        fail(fmt::format("the score of {} is no number", id));
    }
    if (flag(model, "byte_fallback", false)) find_byte_tokens();
    const json& unknown = member(model, "unk_id");
    if (unknown.is_null()) return;
    file_.unknown = checked_id(unknown, "unk_id");
    if (static_cast<size_t>(file_.unknown) >= file_.scores.size()) {
      fail("model.unk_id is not in model.vocab");
    }
  }

  void read_added(const json& root) {
    const json& added = member(root, "added_tokens");
    if (!added.is_null() && !added.is_array()) fail("added_tokens is not a list");
    std::unordered_set<std::string> contents;
    for (const json& entry : added) {
      const json& content = member(entry, "content");
      if (!content.is_string()) fail("an added token has no content");
      AddedToken token;
      token.content = content.get<std::string>();
      if (token.content.empty()) continue;  // never matches anything
      if (token.content.size() > kMaxTokenBytes) {
        fail(fmt::format("an added token has {} bytes; at most {} are allowed",
                         token.content.size(), kMaxTokenBytes));
      }
      if (!contents.insert(token.content).second) {
        fail(fmt::format("the added token {} is listed twice", shown(token.content)));
      }
      token.id = checked_id(member(entry, "id"), token.content);
      token.special = flag(entry, "special", false);
      token.normalized = flag(entry, "normalized", !token.special);
      token.single_word = flag(entry, "single_word", false);
      token.strip_left = flag(entry, "lstrip", false);
      token.strip_right = flag(entry, "rstrip", false);
      const auto known = file_.ids.find(token.content);
      if (known == file_.ids.end()) {
        put_token(token.id, token.content);
      } else if (known->second != token.id) {
        fail(fmt::format("the added token {} has the id {}, but {} in model.vocab",
                         shown(token.content), token.id, known->second));
      }
      file_.tokens[static_cast<size_t>(token.id)].special = token.special;
      file_.added.push_back(std::move(token));
    }
  }

  int32_t merge_part(const std::string& part, size_t number) const {
    const auto found = file_.ids.find(part);
    if (found == file_.ids.end()) {
      fail(fmt::format("merge {} names the token {}, which model.vocab does not have", number,
                       shown(part)));
    }
    return found->second;
  }

  void read_merges(const json& model) {
    const json& merges = member(model, "merges");
    if (!merges.is_array()) fail("has no model.merges");
    if (merges.empty() && file_.ids.size() > 256 && !file_.ignore_merges) {
      fail("model.merges is empty, though model.vocab has more than single bytes");
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
          fail(fmt::format("merge {} is not two tokens with a space between: {}", number,
                           shown(text)));
        }
        left = text.substr(0, space);
        right = text.substr(space + 1);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
                 merge[1].is_string()) {
        left = merge[0].get<std::string>();
        right = merge[1].get<std::string>();
      } else {
        fail(fmt::format("merge {} is neither \"left right\" nor [\"left\", \"right\"]", number));
      }
      file_.merges.push_back(
          {merge_part(left, number), merge_part(right, number), merge_part(left + right, number)});
    }
  }

  void read_normalizer(const json& normalizer) {
    if (normalizer.is_null()) return;
    const std::string type = type_of(normalizer, "normalizer");
    if (type == "NFC") {
      file_.text_steps.push_back({TextStep::Kind::nfc, "", ""});
    } else if (type == "Sequence") {
      for (const json& part : member(normalizer, "normalizers")) read_normalizer(part);
    } else if (type == "Prepend" && file_.model != TokenModel::byte_pairs) {
      file_.text_steps.push_back(
          {TextStep::Kind::prepend, "", text_of(normalizer, "prepend", "the normalizer Prepend")});
    } else if (type == "Replace" && file_.model != TokenModel::byte_pairs) {
      const json& pattern = member(member(normalizer, "pattern"), "String");
      if (!pattern.is_string() || pattern == "") {
        refuse("the normalizer's pattern", member(normalizer, "pattern").dump());
      }
      file_.text_steps.push_back({TextStep::Kind::replace, pattern.get<std::string>(),
                                  text_of(normalizer, "content", "the normalizer Replace")});
    } else {
      refuse("the normalizer", type);
    }
  }

  std::string text_of(const json& object, const char* key, const char* part) const {
    const json& value = member(object, key);
    if (!value.is_string()) fail(fmt::format("{} has no {}", part, key));
    if (value.get_ref<const std::string&>().size() > kMaxTokenBytes) {
      fail(fmt::format("the {} of {} is too long", key, part));
    }
    return value.get<std::string>();
  }

  void read_pre_tokenizer(const json& pre_tokenizer) {
    if (file_.model != TokenModel::byte_pairs) return read_marks(pre_tokenizer);
    read_step(pre_tokenizer);
    if (!byte_level_) refuse("the pre-tokenizer", "without ByteLevel");
  }

  // What SentencePiece's models have: nothing, Metaspace, or a split at spaces that the normalizer
  // has replaced by then (Gemma).
  void read_marks(const json& step) {
    if (step.is_null()) return;
    const std::string type = type_of(step, "pre-tokenizer");
    if (type == "Sequence") {
      for (const json& part : member(step, "pretokenizers")) read_marks(part);
    } else if (type == "Metaspace") {
      if (!file_.space_marks.mark.empty()) refuse("a second pre-tokenizer", type);
      SpaceMarks& marks = file_.space_marks;
      marks.mark = text_of(step, "replacement", "the pre-tokenizer Metaspace");
      if (marks.mark.empty()) fail("the pre-tokenizer Metaspace has an empty replacement");
      const json& scheme = member(step, "prepend_scheme");
      const bool prepends = flag(step, "add_prefix_space", true);  // older files say it this way
      if (scheme == "always" || (scheme.is_null() && prepends)) {
        marks.prepend = SpaceMarks::Prepend::always;
      } else if (scheme == "never" || scheme.is_null()) {
        marks.prepend = SpaceMarks::Prepend::never;
      } else if (scheme == "first") {
        marks.prepend = SpaceMarks::Prepend::first;
      } else {
        refuse("the prepend scheme", scheme.dump());
      }
      marks.split = flag(step, "split", true);
    } else if (type == "Split" && member(member(step, "pattern"), "String") == " " &&
               replaces_spaces()) {
      return;  // there is nothing left to split at
    } else {
      refuse("the pre-tokenizer", type);
    }
  }

  bool replaces_spaces() const {
    return std::ranges::any_of(file_.text_steps, [](const TextStep& step) {
      return step.kind == TextStep::Kind::replace && step.from == " " &&
             step.to.find(' ') == std::string::npos;
    });
  }

  void read_step(const json& step) {
    if (step.is_null()) return;
    const std::string type = type_of(step, "pre-tokenizer");
    if (byte_level_) refuse("a pre-tokenizer after ByteLevel", type);
    if (type == "Sequence") {
      for (const json& part : member(step, "pretokenizers")) read_step(part);
    } else if (type == "Split") {
      const json& expression = member(member(step, "pattern"), "Regex");
      if (!expression.is_string()) refuse("the Split pattern", member(step, "pattern").dump());
      const json& behavior = member(step, "behavior");
      if (behavior != "Isolated") refuse("the Split behavior", behavior.dump());
      if (flag(step, "invert", false)) refuse("the Split option", "invert");
      file_.steps.push_back({expression.get<std::string>(), false});
    } else if (type == "Digits") {
      file_.steps.push_back({flag(step, "individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)"});
    } else if (type == "ByteLevel") {
      byte_level_ = true;
      const bool prefix = flag(step, "add_prefix_space", true);
      const bool split = flag(step, "use_regex", true);
      if (prefix || split) {
        file_.steps.push_back({split ? std::string(kGpt2Expression) : "", prefix});
      }
    } else {
      refuse("the pre-tokenizer", type);
    }
  }

  void read_post_processor(const json& processor) {
    if (processor.is_null()) return;
    const std::string type = type_of(processor, "post-processor");
    if (type == "Sequence") {
      for (const json& part : member(processor, "processors")) read_post_processor(part);
    } else if (type == "TemplateProcessing") {
      read_template(processor);
    } else if (type != "ByteLevel") {  // ByteLevel there only moves offsets
      refuse("the post-processor", type);
    }
  }

  void read_template(const json& processor) {
    std::vector<int32_t> before, after;
    bool seen_text = false;
    const json& items = member(processor, "single");
    if (!items.is_array()) fail("the template of the post-processor has no list \"single\"");
    for (const json& item : items) {
      if (const json& text = member(item, "Sequence"); !text.is_null()) {
        if (seen_text) fail("the template of the post-processor repeats the text");
        seen_text = true;
        continue;
      }
      const json& name = member(member(item, "SpecialToken"), "id");
      if (!name.is_string()) fail("the template of the post-processor has an unknown item");
      const json& token =
          member(member(processor, "special_tokens"), name.get_ref<const std::string&>().c_str());
      const json& ids = member(token, "ids");
      if (!ids.is_array()) {
        fail(fmt::format("the template of the post-processor does not explain {}",
                         shown(name.get<std::string>())));
      }
      for (const json& id : ids) {
        (seen_text ? after : before).push_back(checked_id(id, name.get<std::string>()));
      }
    }
    if (!seen_text) fail("the template of the post-processor leaves the text out");
    file_.prefix.insert(file_.prefix.begin(), before.begin(), before.end());
    file_.suffix.insert(file_.suffix.end(), after.begin(), after.end());
  }

  // Sequence of Replace, ByteFallback, Fuse and Strip, or Metaspace.
  void read_piece_decoder(const json& decoder) {
    const std::string type = decoder.is_null() ? "null" : type_of(decoder, "decoder");
    if (type == "Sequence") {
      const json& parts = member(decoder, "decoders");
      if (!parts.is_array()) fail("the decoder has no list of parts");
      for (const json& part : parts) read_piece_decoder(part);
    } else if (type == "Replace") {
      const json& pattern = member(member(decoder, "pattern"), "String");
      if (!pattern.is_string() || pattern == "") {
        refuse("the decoder's pattern", member(decoder, "pattern").dump());
      }
      replace_in_tokens(pattern.get<std::string>(),
                        text_of(decoder, "content", "the decoder Replace"));
    } else if (type == "ByteFallback") {
      for (int byte = 0; byte < 256; ++byte) {
        const int32_t id = file_.byte_tokens[static_cast<size_t>(byte)];
        if (id >= 0) file_.tokens[static_cast<size_t>(id)].bytes = static_cast<char>(byte);
      }
    } else if (type == "Strip") {
      const bool usual = member(decoder, "content") == " " && member(decoder, "start") == 1 &&
                         member(decoder, "stop") == 0;
      if (!usual) refuse("the decoder", decoder.dump());
      file_.strip_space = true;
    } else if (type == "Metaspace") {
      replace_in_tokens(text_of(decoder, "replacement", "the decoder Metaspace"), " ");
      const json& scheme = member(decoder, "prepend_scheme");
      file_.strip_space =
          scheme.is_null() ? flag(decoder, "add_prefix_space", true) : scheme != "never";
    } else if (type != "Fuse") {
      refuse("the decoder", type);
    }
  }

  void replace_in_tokens(const std::string& from, const std::string& to) {
    if (from.empty()) fail("the decoder replaces an empty text");
    for (TokenizerFile::Token& token : file_.tokens) token.bytes = replaced(token.bytes, from, to);
  }

  void read_decoder(const json& decoder) {
    if (file_.model != TokenModel::byte_pairs) return read_piece_decoder(decoder);
    if (decoder.is_null()) refuse("the decoder", "null");
    const std::string type = type_of(decoder, "decoder");
    if (type == "Sequence") {
      const json& parts = member(decoder, "decoders");
      if (!parts.is_array() || parts.size() != 1) refuse("the decoder", decoder.dump());
      read_decoder(parts[0]);
    } else if (type != "ByteLevel") {
      refuse("the decoder", type);
    }
  }

  // Which tokens begin, end and pad, if the directory says so.
  void read_config() {
    if (!files_.is_file(join_path(directory_, "tokenizer_config.json"))) return;
    const json root = parse("tokenizer_config.json");
    const auto token = [&](const char* key) -> std::optional<std::string> {
      const json& value = member(root, key);
      const json& content = value.is_object() ? member(value, "content") : value;
      if (content.is_null()) return std::nullopt;
      if (!content.is_string()) fail(fmt::format("{} is not a string", key));
      return content.get<std::string>();
    };
    file_.begin_token = token("bos_token");
    file_.end_token = token("eos_token");
    file_.pad_token = token("pad_token");
  }

  const FileSystem& files_;
  std::string directory_;
  std::string path_;
  TokenizerFile file_;
  bool byte_level_ = false;
};

}  // namespace

TokenizerFile read_tokenizer_file(const FileSystem& files, const std::string& directory) {
  return Reader(files, directory).run();
}

}  // namespace kinora::tokenizer

// What happens to text on its way to tokens and back, from tokenizer.json: normalizer,
// pre-tokenizer, post-processor and decoder.
#include <fmt/format.h>

#include <algorithm>

#include "text/tokenizer_parts.h"
#include "text/tokenizer_pieces.h"
#include "text/tokenizer_split_known.h"

namespace kinora::tokenizer {
namespace {

using nlohmann::json;

class StepsReader {
 public:
  StepsReader(const JsonFile& in, TokenizerFile& file) : in_(in), file_(file) {}

  void run() {
    const json& root = in_.root();
    read_normalizer(member(root, "normalizer"));
    read_pre_tokenizer(member(root, "pre_tokenizer"));
    read_post_processor(member(root, "post_processor"));
    read_decoder(member(root, "decoder"));
  }

 private:
  void read_normalizer(const json& normalizer) {
    if (normalizer.is_null()) return;
    const std::string type = in_.type_of(normalizer, "normalizer");
    if (type == "NFC") {
      file_.text_steps.push_back({TextStep::Kind::nfc, "", ""});
    } else if (type == "Sequence") {
      for (const json& part : member(normalizer, "normalizers")) read_normalizer(part);
    } else if (type == "Prepend" && file_.model != TokenModel::byte_pairs) {
      file_.text_steps.push_back({TextStep::Kind::prepend, "",
                                  in_.text_of(normalizer, "prepend", "the normalizer Prepend")});
    } else if (type == "Replace" && file_.model != TokenModel::byte_pairs) {
      const json& pattern = member(member(normalizer, "pattern"), "String");
      if (!pattern.is_string() || pattern == "") {
        in_.refuse("the normalizer's pattern", member(normalizer, "pattern").dump());
      }
      file_.text_steps.push_back({TextStep::Kind::replace, pattern.get<std::string>(),
                                  in_.text_of(normalizer, "content", "the normalizer Replace")});
    } else {
      in_.refuse("the normalizer", type);
    }
  }

  void read_pre_tokenizer(const json& pre_tokenizer) {
    if (file_.model != TokenModel::byte_pairs) return read_marks(pre_tokenizer);
    read_step(pre_tokenizer);
    if (!byte_level_) in_.refuse("the pre-tokenizer", "without ByteLevel");
  }

  // What SentencePiece's models have: nothing, Metaspace, or a split at spaces that the normalizer
  // has replaced by then (Gemma).
  void read_marks(const json& step) {
    if (step.is_null()) return;
    const std::string type = in_.type_of(step, "pre-tokenizer");
    if (type == "Sequence") {
      for (const json& part : member(step, "pretokenizers")) read_marks(part);
    } else if (type == "Metaspace") {
      if (!file_.space_marks.mark.empty()) in_.refuse("a second pre-tokenizer", type);
      SpaceMarks& marks = file_.space_marks;
      marks.mark = in_.text_of(step, "replacement", "the pre-tokenizer Metaspace");
      if (marks.mark.empty()) in_.fail("the pre-tokenizer Metaspace has an empty replacement");
      const json& scheme = member(step, "prepend_scheme");
      const bool prepends =
          in_.flag(step, "add_prefix_space", true);  // older files say it this way
      if (scheme == "always" || (scheme.is_null() && prepends)) {
        marks.prepend = SpaceMarks::Prepend::always;
      } else if (scheme == "never" || scheme.is_null()) {
        marks.prepend = SpaceMarks::Prepend::never;
      } else if (scheme == "first") {
        marks.prepend = SpaceMarks::Prepend::first;
      } else {
        in_.refuse("the prepend scheme", scheme.dump());
      }
      marks.split = in_.flag(step, "split", true);
    } else if (type == "Split" && member(member(step, "pattern"), "String") == " " &&
               replaces_spaces()) {
      return;  // there is nothing left to split at
    } else {
      in_.refuse("the pre-tokenizer", type);
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
    const std::string type = in_.type_of(step, "pre-tokenizer");
    if (byte_level_) in_.refuse("a pre-tokenizer after ByteLevel", type);
    if (type == "Sequence") {
      for (const json& part : member(step, "pretokenizers")) read_step(part);
    } else if (type == "Split") {
      const json& expression = member(member(step, "pattern"), "Regex");
      if (!expression.is_string()) in_.refuse("the Split pattern", member(step, "pattern").dump());
      const json& behavior = member(step, "behavior");
      if (behavior != "Isolated") in_.refuse("the Split behavior", behavior.dump());
      if (in_.flag(step, "invert", false)) in_.refuse("the Split option", "invert");
      file_.steps.push_back({expression.get<std::string>(), false});
    } else if (type == "Digits") {
      file_.steps.push_back(
          {in_.flag(step, "individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)"});
    } else if (type == "ByteLevel") {
      byte_level_ = true;
      const bool prefix = in_.flag(step, "add_prefix_space", true);
      const bool split = in_.flag(step, "use_regex", true);
      if (prefix || split) {
        file_.steps.push_back({split ? std::string(kGpt2Expression) : "", prefix});
      }
    } else {
      in_.refuse("the pre-tokenizer", type);
    }
  }

  void read_post_processor(const json& processor) {
    if (processor.is_null()) return;
    const std::string type = in_.type_of(processor, "post-processor");
    if (type == "Sequence") {
      for (const json& part : member(processor, "processors")) read_post_processor(part);
    } else if (type == "TemplateProcessing") {
      read_template(processor);
    } else if (type != "ByteLevel") {  // ByteLevel there only moves offsets
      in_.refuse("the post-processor", type);
    }
  }

  void read_template(const json& processor) {
    std::vector<int32_t> before, after;
    bool seen_text = false;
    const json& items = member(processor, "single");
    if (!items.is_array()) in_.fail("the template of the post-processor has no list \"single\"");
    for (const json& item : items) {
      if (const json& text = member(item, "Sequence"); !text.is_null()) {
        if (seen_text) in_.fail("the template of the post-processor repeats the text");
        seen_text = true;
        continue;
      }
      const json& name = member(member(item, "SpecialToken"), "id");
      if (!name.is_string()) in_.fail("the template of the post-processor has an unknown item");
      const json& token =
          member(member(processor, "special_tokens"), name.get_ref<const std::string&>().c_str());
      const json& ids = member(token, "ids");
      if (!ids.is_array()) {
        in_.fail(fmt::format("the template of the post-processor does not explain {}",
                             shown(name.get<std::string>())));
      }
      for (const json& id : ids) {
        (seen_text ? after : before).push_back(in_.checked_id(id, name.get<std::string>()));
      }
    }
    if (!seen_text) in_.fail("the template of the post-processor leaves the text out");
    file_.prefix.insert(file_.prefix.begin(), before.begin(), before.end());
    file_.suffix.insert(file_.suffix.end(), after.begin(), after.end());
  }

  // Sequence of Replace, ByteFallback, Fuse and Strip, or Metaspace.
  void read_piece_decoder(const json& decoder) {
    const std::string type = decoder.is_null() ? "null" : in_.type_of(decoder, "decoder");
    if (type == "Sequence") {
      const json& parts = member(decoder, "decoders");
      if (!parts.is_array()) in_.fail("the decoder has no list of parts");
      for (const json& part : parts) read_piece_decoder(part);
    } else if (type == "Replace") {
      const json& pattern = member(member(decoder, "pattern"), "String");
      if (!pattern.is_string() || pattern == "") {
        in_.refuse("the decoder's pattern", member(decoder, "pattern").dump());
      }
      replace_in_tokens(pattern.get<std::string>(),
                        in_.text_of(decoder, "content", "the decoder Replace"));
    } else if (type == "ByteFallback") {
      for (int byte = 0; byte < 256; ++byte) {
        const int32_t id = file_.byte_tokens[static_cast<size_t>(byte)];
        if (id >= 0) file_.tokens[static_cast<size_t>(id)].bytes = static_cast<char>(byte);
      }
    } else if (type == "Strip") {
      const bool usual = member(decoder, "content") == " " && member(decoder, "start") == 1 &&
                         member(decoder, "stop") == 0;
      if (!usual) in_.refuse("the decoder", decoder.dump());
      file_.strip_space = true;
    } else if (type == "Metaspace") {
      replace_in_tokens(in_.text_of(decoder, "replacement", "the decoder Metaspace"), " ");
      const json& scheme = member(decoder, "prepend_scheme");
      file_.strip_space =
          scheme.is_null() ? in_.flag(decoder, "add_prefix_space", true) : scheme != "never";
    } else if (type != "Fuse") {
      in_.refuse("the decoder", type);
    }
  }

  void replace_in_tokens(const std::string& from, const std::string& to) {
    if (from.empty()) in_.fail("the decoder replaces an empty text");
    for (TokenizerFile::Token& token : file_.tokens) token.bytes = replaced(token.bytes, from, to);
  }

  void read_decoder(const json& decoder) {
    if (file_.model != TokenModel::byte_pairs) return read_piece_decoder(decoder);
    if (decoder.is_null()) in_.refuse("the decoder", "null");
    const std::string type = in_.type_of(decoder, "decoder");
    if (type == "Sequence") {
      const json& parts = member(decoder, "decoders");
      if (!parts.is_array() || parts.size() != 1) in_.refuse("the decoder", decoder.dump());
      read_decoder(parts[0]);
    } else if (type != "ByteLevel") {
      in_.refuse("the decoder", type);
    }
  }

  const JsonFile& in_;
  TokenizerFile& file_;
  bool byte_level_ = false;
};

}  // namespace

void read_steps(const JsonFile& in, TokenizerFile& file) { StepsReader(in, file).run(); }

}  // namespace kinora::tokenizer

#include "text/text_stream.h"

#include "text/tokenizer_utf8.h"

namespace kinora {

std::string TextStream::push(int32_t id) {
  std::string text;
  if (skip_special_ && tokenizer_->is_special(id)) return text;
  waiting_ += tokenizer_->bytes_of(id);
  waiting_.erase(0, tokenizer::append_replacing_broken(waiting_, /*last=*/false, text));
  // SentencePiece puts a space before a text, and decoding leaves it out again.
  if (!begun_ && text.starts_with(' ') && !tokenizer_->decode({&id, 1}).starts_with(' ')) {
    text.erase(0, 1);
  }
  begun_ = begun_ || !tokenizer_->bytes_of(id).empty();
  return text;
}

std::string TextStream::finish() {
  std::string text;
  tokenizer::append_replacing_broken(waiting_, /*last=*/true, text);
  waiting_.clear();
  begun_ = false;
  return text;
}

}  // namespace kinora

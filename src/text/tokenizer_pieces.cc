#include "text/tokenizer_pieces.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "text/tokenizer_normalizer.h"
#include "text/tokenizer_utf8.h"

namespace kinora::tokenizer {
namespace {

constexpr double kUnknownPenalty = 10;  // below the worst piece

// Whether every byte of `text` has a token.
bool have_all(const std::array<int32_t, 256>& byte_tokens, std::string_view text) {
  return std::ranges::all_of(
      text, [&](char c) { return byte_tokens[static_cast<unsigned char>(c)] >= 0; });
}

}  // namespace

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  out.reserve(text.size());
  for (size_t begin = 0;;) {
    const size_t found = text.find(from, begin);
    out += text.substr(begin, found - begin);
    if (found == std::string_view::npos) return out;
    out += to;
    begin = found + from.size();
  }
}

std::string_view normalize(std::string_view text, const std::vector<TextStep>& steps,
                           std::string& scratch) {
  std::string working;
  for (const TextStep& step : steps) {
    switch (step.kind) {
      case TextStep::Kind::nfc: {
        const std::string_view normal = to_nfc(text, working);
        if (normal.data() == text.data()) break;  // it was already
        scratch.swap(working);
        text = scratch;
        break;
      }
      case TextStep::Kind::prepend:
        if (text.empty()) break;
        scratch = step.to + std::string(text);
        text = scratch;
        break;
      case TextStep::Kind::replace:
        scratch = replaced(text, step.from, step.to);
        text = scratch;
        break;
    }
  }
  return text;
}

CharacterPairs::CharacterPairs(TokenizerFile& file)
    : vocabulary_(std::move(file.vocabulary)),
      byte_tokens_(file.byte_tokens),
      merges_(
          [] {
            std::array<int32_t, 256> none;
            none.fill(-1);
            return none;
          }(),
          file.merges),
      unknown_(file.unknown),
      fuse_unknown_(file.fuse_unknown),
      ignore_merges_(file.ignore_merges) {}

void CharacterPairs::encode(std::string_view word, BytePair::Scratch& scratch,
                            std::vector<int32_t>& out) const {
  if (ignore_merges_) {
    const auto whole = vocabulary_.find(std::string(word));
    if (whole != vocabulary_.end()) {
      out.push_back(whole->second);
      return;
    }
  }
  std::vector<int32_t> ids;
  ids.reserve(word.size());
  bool after_unknown = false;
  for (size_t position = 0; position < word.size();) {
    const size_t begin = position;
    next_character(word, position);
    const std::string_view character = word.substr(begin, position - begin);
    const auto known = vocabulary_.find(std::string(character));
    if (known != vocabulary_.end()) {
      ids.push_back(known->second);
      after_unknown = false;
    } else if (have_all(byte_tokens_, character)) {
      for (const char c : character) ids.push_back(byte_tokens_[static_cast<unsigned char>(c)]);
      after_unknown = false;
    } else if (unknown_ >= 0) {
      if (!(after_unknown && fuse_unknown_)) ids.push_back(unknown_);
      after_unknown = true;
    }
  }
  merges_.encode_ids(ids, scratch, out);
}

Unigram::Unigram(TokenizerFile& file)
    : vocabulary_(std::move(file.vocabulary)),
      byte_tokens_(file.byte_tokens),
      scores_(std::move(file.scores)),
      nodes_(1),
      unknown_(file.unknown) {
  for (const auto& [piece, token] : vocabulary_) {
    if (!piece.empty()) add(piece, token);
  }
  unknown_score_ = *std::min_element(scores_.begin(), scores_.end()) - kUnknownPenalty;
}

void Unigram::add(std::string_view piece, int32_t token) {
  size_t node = 0;
  for (const char c : piece) {
    const auto byte = static_cast<unsigned char>(c);
    auto& children = nodes_[node].children;
    const auto place =
        std::lower_bound(children.begin(), children.end(), byte,
                         [](const auto& child, unsigned char b) { return child.first < b; });
    if (place != children.end() && place->first == byte) {
      node = static_cast<size_t>(place->second);
      continue;
    }
    const auto fresh = static_cast<int32_t>(nodes_.size());
    children.insert(place, {byte, fresh});
    nodes_.emplace_back();
    node = static_cast<size_t>(fresh);
  }
  nodes_[node].token = token;
}

void Unigram::encode(std::string_view word, std::vector<int32_t>& out) const {
  struct Best {
    double score = 0;
    size_t begin = std::string_view::npos;  // of the last piece of the best way to here
    int32_t token = -1;
  };
  std::vector<Best> best(word.size() + 1);
  const auto offer = [&](size_t begin, size_t end, int32_t token, double score) {
    Best& target = best[end];
    const double total = best[begin].score + score;
    if (target.begin != std::string_view::npos && !(total > target.score)) return;
    target = {total, begin, token};
  };
  for (size_t begin = 0; begin < word.size();) {
    size_t next = begin;
    next_character(word, next);
    bool has_single = false;
    size_t node = 0;
    for (size_t end = begin; end < word.size();) {
      const auto& children = nodes_[node].children;
      const auto byte = static_cast<unsigned char>(word[end]);
      const auto place =
          std::lower_bound(children.begin(), children.end(), byte,
                           [](const auto& child, unsigned char b) { return child.first < b; });
      if (place == children.end() || place->first != byte) break;
      node = static_cast<size_t>(place->second);
      ++end;
      const int32_t token = nodes_[node].token;
      if (token < 0) continue;
      offer(begin, end, token, scores_[static_cast<size_t>(token)]);
      has_single = has_single || end == next;
    }
    if (!has_single) offer(begin, next, unknown_, unknown_score_);
    begin = next;
  }
  // Backwards; unknown stretches that touch are one.
  std::vector<std::pair<size_t, size_t>> pieces;
  std::vector<bool> unknown;
  for (size_t end = word.size(); end > 0; end = best[end].begin) {
    const bool is_unknown = best[end].token == unknown_;
    if (is_unknown && !unknown.empty() && unknown.back()) {
      pieces.back().first = best[end].begin;
    } else {
      pieces.emplace_back(best[end].begin, end);
      unknown.push_back(is_unknown);
    }
  }
  for (size_t i = pieces.size(); i-- > 0;) {
    const std::string_view piece = word.substr(pieces[i].first, pieces[i].second - pieces[i].first);
    const auto known = vocabulary_.find(std::string(piece));
    if (known != vocabulary_.end()) {
      out.push_back(known->second);
    } else {
      encode_unknown(piece, out);
    }
  }
}

void Unigram::encode_unknown(std::string_view stretch, std::vector<int32_t>& out) const {
  if (have_all(byte_tokens_, stretch)) {
    for (const char c : stretch) out.push_back(byte_tokens_[static_cast<unsigned char>(c)]);
  } else if (unknown_ >= 0) {
    out.push_back(unknown_);
  } else {
    throw Error(
        ErrorKind::unsupported,
        "the tokenizer has no token for a character of this text, and none for unknown ones");
  }
}

}  // namespace kinora::tokenizer

#include "text/tokenizer_added.h"

#include <algorithm>
#include <cstring>

#include "text/tokenizer_characters.h"

namespace kinora::tokenizer {

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  nodes_.emplace_back();
  for (size_t i = 0; i < tokens_.size(); ++i) {
    size_t node = 0;
    for (const char c : tokens_[i].content) {
      const auto byte = static_cast<unsigned char>(c);
      auto& children = nodes_[node].children;
      const auto place = std::lower_bound(children.begin(), children.end(), std::pair{byte, -1});
      if (place != children.end() && place->first == byte) {
        node = static_cast<size_t>(place->second);
        continue;
      }
      const auto created = static_cast<int32_t>(nodes_.size());
      children.insert(place, {byte, created});
      nodes_.emplace_back();
      node = static_cast<size_t>(created);
    }
    nodes_[node].token = static_cast<int32_t>(i);
  }
  for (const auto& [byte, child] : nodes_[0].children) begins_[byte] = true;
  if (nodes_[0].children.size() == 1) only_beginning_ = nodes_[0].children[0].first;
}

const AddedToken* AddedTokenFinder::find(std::string_view text, size_t& position) const {
  if (tokens_.empty()) return nullptr;
  while (position < text.size()) {
    if (only_beginning_ >= 0) {
      const void* found =
          std::memchr(text.data() + position, only_beginning_, text.size() - position);
      if (!found) return nullptr;
      position = static_cast<size_t>(static_cast<const char*>(found) - text.data());
    } else if (!begins_[static_cast<unsigned char>(text[position])]) {
      ++position;
      continue;
    }
    if (const AddedToken* token = longest_at(text, position)) return token;
    ++position;
  }
  return nullptr;
}

const AddedToken* AddedTokenFinder::longest_at(std::string_view text, size_t position) const {
  const AddedToken* longest = nullptr;
  size_t node = 0;
  while (position < text.size()) {
    const auto byte = static_cast<unsigned char>(text[position++]);
    const auto& children = nodes_[node].children;
    const auto place = std::lower_bound(children.begin(), children.end(), std::pair{byte, -1});
    if (place == children.end() || place->first != byte) break;
    node = static_cast<size_t>(place->second);
    if (nodes_[node].token >= 0) longest = &tokens_[static_cast<size_t>(nodes_[node].token)];
  }
  return longest;
}

bool AddedTokenFinder::touches_word(std::string_view text, size_t begin, size_t end) {
  if (begin > 0) {
    size_t before = previous_character(text, begin);
    if (is_word_character(next_character(text, before))) return true;
  }
  return end < text.size() && is_word_character(next_character(text, end));
}

size_t AddedTokenFinder::skip_spaces(std::string_view text, size_t position) {
  const Characters& characters = Characters::table();
  while (position < text.size()) {
    size_t next = position;
    if (!(characters.flags(next_character(text, next)) & kSpace)) break;
    position = next;
  }
  return position;
}

size_t AddedTokenFinder::skip_spaces_back(std::string_view text, size_t position, size_t limit) {
  const Characters& characters = Characters::table();
  while (position > limit) {
    const size_t before = previous_character(text, position);
    size_t after = before;
    if (!(characters.flags(next_character(text, after)) & kSpace)) break;
    position = before;
  }
  // A token before this one may have swallowed the same spaces.
  return std::max(position, limit);
}

}  // namespace kinora::tokenizer

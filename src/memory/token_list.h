// The tokens of a session, in pieces that forks share: a fork of an hour of video costs a few dozen
// pointers. A piece that another list has too is copied before it is written.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "memory/token_info.h"

namespace kinora {

class TokenList {
 public:
  TokenList() = default;
  explicit TokenList(std::span<const TokenInfo> tokens) { append(tokens); }
  TokenList(TokenList&&) = default;
  TokenList& operator=(TokenList&&) = default;

  // The same tokens again; from now on both lists grow and change on their own.
  TokenList share() {
    shared_ = pieces_.size();
    TokenList other;
    other.pieces_ = pieces_;
    other.size_ = size_;
    other.shared_ = shared_;
    return other;
  }

  size_t size() const { return size_; }
  const TokenInfo& operator[](size_t place) const {
    return (*pieces_[place / piece_size])[place % piece_size];
  }

  void append(std::span<const TokenInfo> tokens) {
    while (!tokens.empty()) {
      if (size_ == pieces_.size() * piece_size) pieces_.push_back(std::make_shared<Piece>());
      const size_t at = size_ % piece_size, count = std::min(tokens.size(), piece_size - at);
      std::copy_n(tokens.begin(), count, own(size_ / piece_size).begin() + at);
      tokens = tokens.subspan(count);
      size_ += count;
    }
  }
  void replace(size_t place, const TokenInfo& token) {
    own(place / piece_size)[place % piece_size] = token;
  }
  // Forgets all but the first `count`.
  void truncate(size_t count) {
    size_ = std::min(size_, count);
    pieces_.resize((size_ + piece_size - 1) / piece_size);
    shared_ = std::min(shared_, pieces_.size());
  }

 private:
  static constexpr size_t piece_size = 4096;
  using Piece = std::array<TokenInfo, piece_size>;

  Piece& own(size_t number) {
    if (number >= shared_) return *pieces_[number];
    // Earlier pieces stay shared; later ones are this list's own as soon as they are copied too.
    for (size_t i = number; i < shared_; ++i) pieces_[i] = std::make_shared<Piece>(*pieces_[i]);
    shared_ = number;
    return *pieces_[number];
  }

  std::vector<std::shared_ptr<Piece>> pieces_;
  size_t size_ = 0;
  size_t shared_ = 0;  // pieces that other lists may have too
};

}  // namespace kinora

// Byte-pair encoding of one word: it starts as its bytes, and the neighbouring pair that was learnt
// first is merged until no neighbours are left that were ever merged. The tokenizer calls it for
// every word it splits off.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/byte_pair_cache.h"

namespace kinora::tokenizer {

class BytePair {
 public:
  struct Merge {
    int32_t left, right, result;
  };

  // Working space of one caller at a time: nothing is allocated per word once it has grown.
  class Scratch {
   private:
    friend class BytePair;
    struct Symbol {
      int32_t id;
      uint32_t rank;  // of the pair with the next symbol
      uint32_t previous, next;
    };
    std::vector<int32_t> ids;
    std::vector<uint32_t> ranks;
    std::vector<Symbol> symbols;
    std::vector<uint64_t> heap;
    WordCache<26, 8, 14> short_words;
    WordCache<90, 23, 11> long_words;
  };

  // `byte_tokens[b]` is the token of byte b, or -1 for a byte that has none. `merges` are in the
  // order in which they were learnt; of equal pairs the last counts.
  BytePair(const std::array<int32_t, 256>& byte_tokens, std::span<const Merge> merges);

  // Words that become one token whatever the merges say (Llama 3's ignore_merges).
  void set_whole_words(std::unordered_map<std::string, int32_t> words);

  // What stands for a byte without a token; of several in a row one if `fuse`. Without it such
  // bytes are passed over, and their neighbours merge.
  void set_unknown(int32_t token, bool fuse);

  // Appends the tokens of `word` (not empty) to `out`.
  void encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const;
  // Appends what merging leaves of `ids`: a word that was not made of bytes.
  void encode_ids(std::span<const int32_t> ids, Scratch& scratch, std::vector<int32_t>& out) const;

 private:
  static constexpr uint32_t kNoRank = 0xffffffffu;
  struct Slot {
    uint64_t pair = ~uint64_t{0};
    uint32_t rank = kNoRank;
  };

  static uint64_t pair_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  // Most neighbours were never merged; a small table of bits, which stays in the cache, says so
  // for nearly all of them.
  uint32_t rank_of(int32_t left, int32_t right) const {
    const uint64_t pair = pair_of(left, right);
    const uint64_t hash = pair * 0x9e3779b97f4a7c15u;
    if (!(maybe_[hash >> maybe_shift_] >> ((hash >> (maybe_shift_ - 6)) & 63) & 1)) return kNoRank;
    for (size_t i = hash >> shift_;; i = (i + 1) & mask_) {
      if (slots_[i].pair == pair) return slots_[i].rank;
      if (slots_[i].rank == kNoRank) return kNoRank;
    }
  }
  // The same for two bytes that stand side by side in a word.
  uint32_t rank_of_bytes(char left, char right) const {
    return byte_ranks_[static_cast<size_t>(static_cast<unsigned char>(left)) << 8 |
                       static_cast<unsigned char>(right)];
  }
  // For words with bytes that have no token.
  void encode_incomplete(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const;
  void encode_known(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const;
  // Both expect the bytes' tokens in scratch.ids and leave the word's tokens there. Without a word
  // the tokens may be any.
  void merge_short(std::string_view word, Scratch& scratch) const;
  void merge_long(std::string_view word, Scratch& scratch) const;

  std::array<int32_t, 256> byte_tokens_;
  std::vector<uint32_t> byte_ranks_;  // [256, 256]
  std::vector<uint64_t> maybe_;       // bit h is set where a pair with the hash h was merged
  int maybe_shift_ = 0;
  std::vector<Slot> slots_;  // open addressing, at most two thirds full
  int shift_ = 0;
  size_t mask_ = 0;
  std::vector<int32_t> results_;  // by rank
  bool complete_ = true;          // every byte of UTF-8 has a token
  int32_t unknown_ = -1;
  bool fuse_unknown_ = false;
  std::unordered_map<std::string, int32_t> whole_words_;
};

}  // namespace kinora::tokenizer

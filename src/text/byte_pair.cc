#include "text/byte_pair.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace kinora::tokenizer {
namespace {

// Up to here moving a few symbols is cheaper than keeping a heap.
constexpr size_t kShortWord = 40;

}  // namespace

BytePair::BytePair(const std::array<int32_t, 256>& byte_tokens, std::span<const Merge> merges)
    : byte_tokens_(byte_tokens) {
  const size_t size = std::bit_ceil(std::max<size_t>(merges.size() * 3 / 2, 16));
  slots_.resize(size);
  mask_ = size - 1;
  shift_ = 64 - std::countr_zero(size);
  maybe_.resize(size / 8);  // eight bits a slot
  maybe_shift_ = 64 - std::countr_zero(maybe_.size());
  results_.reserve(merges.size());
  for (const Merge& merge : merges) {
    const uint64_t pair = pair_of(merge.left, merge.right);
    const uint64_t hash = pair * 0x9e3779b97f4a7c15u;
    maybe_[hash >> maybe_shift_] |= uint64_t{1} << ((hash >> (maybe_shift_ - 6)) & 63);
    size_t i = hash >> shift_;
    while (slots_[i].rank != kNoRank && slots_[i].pair != pair) i = (i + 1) & mask_;
    slots_[i] = {pair, static_cast<uint32_t>(results_.size())};
    results_.push_back(merge.result);
  }
  for (int byte = 0; byte < 256; ++byte) {
    const bool occurs = byte < 0xc0 || (byte > 0xc1 && byte < 0xf5);
    complete_ = complete_ && (!occurs || byte_tokens[static_cast<size_t>(byte)] >= 0);
  }
  byte_ranks_.resize(size_t{256} * 256);
  for (size_t i = 0; i < byte_ranks_.size(); ++i) {
    byte_ranks_[i] = rank_of(byte_tokens[i >> 8], byte_tokens[i & 255]);
  }
}

void BytePair::set_unknown(int32_t token, bool fuse) {
  unknown_ = token;
  fuse_unknown_ = fuse;
}

void BytePair::set_whole_words(std::unordered_map<std::string, int32_t> words) {
  whole_words_ = std::move(words);
}

void BytePair::encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const {
  if (!complete_) return encode_incomplete(word, scratch, out);
  encode_known(word, scratch, out);
}

void BytePair::encode_incomplete(std::string_view word, Scratch& scratch,
                                 std::vector<int32_t>& out) const {
  const auto is_known = [&](char c) { return byte_tokens_[static_cast<unsigned char>(c)] >= 0; };
  if (std::ranges::all_of(word, is_known)) return encode_known(word, scratch, out);
  std::string known;
  bool after_unknown = false;
  for (const char c : word) {
    if (is_known(c)) {
      known += c;
      after_unknown = false;
      continue;
    }
    if (unknown_ < 0) continue;
    if (!known.empty()) encode_known(known, scratch, out);
    known.clear();
    if (!(after_unknown && fuse_unknown_)) out.push_back(unknown_);
    after_unknown = true;
  }
  if (!known.empty()) encode_known(known, scratch, out);
}

void BytePair::encode_known(std::string_view word, Scratch& scratch,
                            std::vector<int32_t>& out) const {
  if (word.size() == 1 && whole_words_.empty()) {
    out.push_back(byte_tokens_[static_cast<unsigned char>(word[0])]);
    return;
  }
  const uint64_t hash = word_hash(word);
  const bool is_short = word.size() <= decltype(scratch.short_words)::kMaxBytes;
  const std::span<const int32_t> known =
      is_short ? scratch.short_words.find(word, hash) : scratch.long_words.find(word, hash);
  if (!known.empty()) {
    out.insert(out.end(), known.begin(), known.end());
    return;
  }

  std::vector<int32_t>& ids = scratch.ids;
  ids.clear();
  if (!whole_words_.empty()) {
    // Rare: only words that the cache does not hold come here.
    const auto found = whole_words_.find(std::string(word));
    if (found != whole_words_.end()) ids.push_back(found->second);
  }
  if (ids.empty()) {
    for (const char c : word) ids.push_back(byte_tokens_[static_cast<unsigned char>(c)]);
    if (ids.size() <= kShortWord) {
      merge_short(word, scratch);
    } else {
      merge_long(word, scratch);
    }
  }
  out.insert(out.end(), ids.begin(), ids.end());
  if (is_short) {
    scratch.short_words.insert(word, hash, ids);
  } else {
    scratch.long_words.insert(word, hash, ids);
  }
}

void BytePair::encode_ids(std::span<const int32_t> ids, Scratch& scratch,
                          std::vector<int32_t>& out) const {
  if (ids.empty()) return;
  scratch.ids.assign(ids.begin(), ids.end());
  if (ids.size() <= kShortWord) {
    merge_short({}, scratch);
  } else {
    merge_long({}, scratch);
  }
  out.insert(out.end(), scratch.ids.begin(), scratch.ids.end());
}

void BytePair::merge_short(std::string_view word, Scratch& scratch) const {
  std::vector<int32_t>& ids = scratch.ids;
  std::vector<uint32_t>& ranks = scratch.ranks;  // of (ids[i], ids[i + 1]); the last is kNoRank
  ranks.resize(ids.size());
  size_t count = ids.size();
  for (size_t i = 0; i + 1 < count; ++i) {
    ranks[i] = word.empty() ? rank_of(ids[i], ids[i + 1]) : rank_of_bytes(word[i], word[i + 1]);
  }
  ranks[count - 1] = kNoRank;
  for (;;) {
    size_t best = 0;
    uint32_t rank = ranks[0];
    for (size_t i = 1; i < count; ++i) {
      if (ranks[i] < rank) {
        rank = ranks[i];
        best = i;
      }
    }
    if (rank == kNoRank) break;
    ids[best] = results_[rank];
    --count;
    for (size_t i = best + 1; i < count; ++i) {
      ids[i] = ids[i + 1];
      ranks[i] = ranks[i + 1];
    }
    ranks[best] = best + 1 < count ? rank_of(ids[best], ids[best + 1]) : kNoRank;
    if (best > 0) ranks[best - 1] = rank_of(ids[best - 1], ids[best]);
  }
  ids.resize(count);
}

void BytePair::merge_long(std::string_view word, Scratch& scratch) const {
  constexpr uint32_t kNone = 0xffffffffu;
  std::vector<Scratch::Symbol>& symbols = scratch.symbols;
  std::vector<uint64_t>& heap = scratch.heap;  // rank << 32 | place: the earliest pair on top
  const auto later = std::greater<uint64_t>();
  symbols.clear();
  heap.clear();
  const size_t count = scratch.ids.size();
  for (size_t i = 0; i < count; ++i) {
    const bool is_last = i + 1 == count;
    const uint32_t rank = is_last        ? kNoRank
                          : word.empty() ? rank_of(scratch.ids[i], scratch.ids[i + 1])
                                         : rank_of_bytes(word[i], word[i + 1]);
    symbols.push_back({scratch.ids[i], rank, static_cast<uint32_t>(i) - 1,
                       is_last ? kNone : static_cast<uint32_t>(i + 1)});
    if (rank != kNoRank) heap.push_back(static_cast<uint64_t>(rank) << 32 | i);
  }
  std::make_heap(heap.begin(), heap.end(), later);

  const auto renew = [&](uint32_t place) {
    Scratch::Symbol& symbol = symbols[place];
    symbol.rank = symbol.next == kNone ? kNoRank : rank_of(symbol.id, symbols[symbol.next].id);
    if (symbol.rank == kNoRank) return;
    heap.push_back(static_cast<uint64_t>(symbol.rank) << 32 | place);
    std::push_heap(heap.begin(), heap.end(), later);
  };
  while (!heap.empty()) {
    const auto rank = static_cast<uint32_t>(heap.front() >> 32);
    const auto place = static_cast<uint32_t>(heap.front());
    std::pop_heap(heap.begin(), heap.end(), later);
    heap.pop_back();
    Scratch::Symbol& symbol = symbols[place];
    if (symbol.rank != rank) continue;  // one of the pair has since been merged with another
    Scratch::Symbol& merged = symbols[symbol.next];
    merged.rank = kNoRank;
    symbol.id = results_[rank];
    symbol.next = merged.next;
    if (symbol.next != kNone) symbols[symbol.next].previous = place;
    renew(place);
    if (symbol.previous != kNone) renew(symbol.previous);
  }
  scratch.ids.clear();
  for (uint32_t i = 0; i != kNone; i = symbols[i].next) scratch.ids.push_back(symbols[i].id);
}

}  // namespace kinora::tokenizer

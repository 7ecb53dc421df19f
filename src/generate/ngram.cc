#include "generate/ngram.h"

#include <algorithm>

#include "base/error.h"
#include "generate/policies.h"

namespace kinora {

NgramDrafter::NgramDrafter(const NgramOptions& options)
    : options_(options), length_(std::min<int64_t>(2, options.tokens)) {
  if (options.tokens < 1 || options.least < 1 || options.match < options.least) {
    throw Error(ErrorKind::usage, "n-gram drafts need at least one token and one to match");
  }
  indexes_.resize(static_cast<size_t>(options.match - options.least + 1));
}

uint64_t NgramDrafter::hash(std::span<const int32_t> tokens) {
  uint64_t value = 0x9e3779b97f4a7c15u;
  for (const int32_t token : tokens) {
    value ^= static_cast<uint32_t>(token);
    value *= 0xff51afd7ed558ccdu;
    value ^= value >> 32;
  }
  return value;
}

Draft NgramDrafter::propose(std::span<const int32_t> text, int64_t most, int64_t deepest) {
  // The text may have been cut since the last call: a question undone, an answer begun anew.
  const size_t same = std::min(known_.size(), text.size());
  if (known_.size() > text.size() || !std::equal(known_.begin(), known_.end(), text.begin())) {
    known_.clear();
    for (Index& index : indexes_) index.clear();
  } else {
    known_.resize(same);
  }
  Draft draft;
  const auto end = static_cast<int64_t>(text.size());
  const int64_t wanted = std::min({length_, most, deepest});
  for (int64_t match = options_.match; match >= options_.least && wanted > 0; --match) {
    // Ends of runs before the newest token; what follows an end is the guess.
    Index& index = indexes_[static_cast<size_t>(match - options_.least)];
    for (int64_t at = std::max(static_cast<int64_t>(known_.size()), match); at < end; ++at) {
      index[hash(text.subspan(static_cast<size_t>(at - match), static_cast<size_t>(match)))] = at;
    }
    if (end < match || !draft.ids.empty()) continue;
    const auto last = text.last(static_cast<size_t>(match));
    const auto found = index.find(hash(last));
    if (found == index.end()) continue;
    const int64_t at = found->second;
    if (!std::equal(last.begin(), last.end(), text.begin() + (at - match))) continue;
    // A run that reaches the end of the text goes on with itself.
    for (int64_t i = 0; i < wanted; ++i) {
      const int64_t from = at + i;
      draft.ids.push_back(from < end ? text[static_cast<size_t>(from)]
                                     : draft.ids[static_cast<size_t>(from - end)]);
      draft.parents.push_back(static_cast<int32_t>(i) - 1);
    }
  }
  if (wanted > 0) known_.assign(text.begin(), text.end());
  proposed_ = static_cast<int64_t>(draft.ids.size());
  return draft;
}

void NgramDrafter::learn(std::span<const int32_t> right, std::span<const Tensor>) {
  if (proposed_ == 0) return;
  const auto count = static_cast<int64_t>(right.size());
  if (count == proposed_) {
    length_ = std::min(options_.tokens, 2 * length_);
  } else if (2 * count < proposed_) {
    length_ = std::max<int64_t>(1, length_ / 2);
  }
}

DraftPolicy ngram_policy() {
  Settings<NgramOptions> settings;
  settings.count("tokens", &NgramOptions::tokens, {1, 63}, "the longest guess")
      .count("match", &NgramOptions::match, {1, 16},
             "tokens that must have stood there before; fewer are tried after that")
      .count("least", &NgramOptions::least, {1, 16}, "the fewest tokens that may match");
  DraftPolicy policy;
  policy.info = {"ngram", "what followed the last few tokens when they stood in the text before",
                 settings.info()};
  policy.make = [settings](std::span<const GivenSetting> given) {
    const NgramOptions options = settings.read(given);
    NgramDrafter{options};  // refuses settings that do not go together
    return [options](const OpenDraft&) { return std::make_unique<NgramDrafter>(options); };
  };
  return policy;
}

}  // namespace kinora

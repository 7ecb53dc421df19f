#include "generate/ngram.h"

#include <algorithm>

#include "base/error.h"
#include "generate/policies.h"

namespace kinora {

void HitRate::note(bool hit) {
  constexpr double fading = 0.95;
  hits_ = fading * hits_ + (hit ? 1 : 0);
  cases_ = fading * cases_ + 1;
}

NgramDrafter::NgramDrafter(const NgramOptions& options) : options_(options) {
  if (options.tokens < 1 || options.least < 1 || options.match < options.least) {
    throw Error(ErrorKind::usage, "n-gram drafts need at least one token and one to match");
  }
  indexes_.resize(static_cast<size_t>(options.match - options.least + 1));
  first_.resize(indexes_.size());
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

void NgramDrafter::start(const DraftTarget& target) {
  if (!options_.adapt || pace_) return;
  pace_.emplace(TreeShape{1 + options_.tokens, options_.tokens, 1}, true, target.context.device, 0);
}

std::vector<double> NgramDrafter::confidences(int64_t match, int64_t count) const {
  std::vector<double> out;
  double all = first_[static_cast<size_t>(match - options_.least)].at();
  for (int64_t i = 0; i < count; ++i) {
    out.push_back(all);
    all *= further_.at();
  }
  return out;
}

// Compares the guess with what came in its place.
void NgramDrafter::compare(std::span<const int32_t> text) {
  const auto came = text.subspan(known_.size());
  for (size_t i = 0; i < std::min(guess_.size(), came.size()); ++i) {
    const bool right = guess_[i] == came[i];
    (i == 0 ? first_[static_cast<size_t>(match_ - options_.least)] : further_).note(right);
    if (!right) break;
  }
}

// Takes in what the text has become since the last call.
void NgramDrafter::follow(std::span<const int32_t> text) {
  // It may have been cut: a question undone, an answer begun anew.
  if (known_.size() > text.size() || !std::equal(known_.begin(), known_.end(), text.begin())) {
    known_.clear();
    for (Index& index : indexes_) index.clear();
  } else {
    compare(text);
  }
  guess_.clear();
}

// Finds the longest run at the end of the text that stood there before, and what followed it.
void NgramDrafter::look_back(std::span<const int32_t> text) {
  const auto end = static_cast<int64_t>(text.size());
  for (int64_t match = options_.match; match >= options_.least; --match) {
    // Ends of runs before the newest token; what follows an end is the guess.
    Index& index = indexes_[static_cast<size_t>(match - options_.least)];
    for (int64_t at = std::max(static_cast<int64_t>(known_.size()), match); at < end; ++at) {
      index[hash(text.subspan(static_cast<size_t>(at - match), static_cast<size_t>(match)))] = at;
    }
    if (end < match || !guess_.empty()) continue;
    const auto last = text.last(static_cast<size_t>(match));
    const auto found = index.find(hash(last));
    if (found == index.end()) continue;
    const int64_t at = found->second;
    if (!std::equal(last.begin(), last.end(), text.begin() + (at - match))) continue;
    match_ = match;
    // A run that reaches the end of the text goes on with itself.
    for (int64_t from = at; from < at + options_.tokens; ++from) {
      guess_.push_back(from < end ? text[static_cast<size_t>(from)]
                                  : guess_[static_cast<size_t>(from - end)]);
    }
  }
  known_.insert(known_.end(), text.begin() + std::ssize(known_), text.end());
}

Draft NgramDrafter::propose(std::span<const int32_t> text, int64_t most, int64_t deepest) {
  follow(text);
  look_back(text);
  int64_t count = std::max<int64_t>(0, std::min({std::ssize(guess_), most, deepest}));
  if (pace_) {
    if (pace_->begin(count > 0)) {
      count = pace_->take(confidences(match_, count));
    } else {
      count = 0;
    }
    pace_->end();
  }
  Draft draft;
  draft.ids.assign(guess_.begin(), guess_.begin() + count);
  for (int64_t i = 0; i < count; ++i) draft.parents.push_back(static_cast<int32_t>(i) - 1);
  return draft;
}

void NgramDrafter::learn(const CheckedDraft& checked) {
  if (pace_) pace_->learn(std::ssize(checked.right), checked.usual);
}

DraftPolicy ngram_policy() {
  Settings<NgramOptions> settings;
  settings.count("tokens", &NgramOptions::tokens, {1, 63}, "the longest guess")
      .count("match", &NgramOptions::match, {1, 16},
             "tokens that must have stood there before; fewer are tried after that")
      .count("least", &NgramOptions::least, {1, 16}, "the fewest tokens that may match")
      .flag("adapt", &NgramOptions::adapt,
            "propose what is worth checking on this machine; 0: always the longest guess");
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

#include "generate/policies.h"

namespace kinora {

// Each is described in a file of its own.
DraftPolicy ngram_policy();

namespace {

DraftPolicy no_draft_policy() {
  DraftPolicy policy;
  policy.info = {"none", "the model makes one token at a time"};
  policy.make = [](std::span<const GivenSetting> given) {
    match_settings(given, {});
    return std::make_unique<NoDrafter>();
  };
  return policy;
}

}  // namespace

const std::vector<DraftPolicy>& draft_policies() {
  static const std::vector<DraftPolicy> policies = {
      no_draft_policy(),
      ngram_policy(),
  };
  return policies;
}

const PolicyPoint& draft_point() {
  static const PolicyPoint point{
      .name = "draft",
      .summary = "what proposes tokens that the model then verifies together",
      .form = "NAME[:key=value,…]",
      .initial = "none",
      .policies = infos_of(draft_policies()),
      .check = [](std::string_view text) {
        const PolicyText parts = split_policy(text);
        find_policy(parts.name, draft_policies()).make(parts.settings);
      }};
  return point;
}

std::unique_ptr<Drafter> make_drafter(std::string_view text) {
  return in_words("draft", text, [&] {
    const PolicyText parts = split_policy(text);
    return find_policy(parts.name, draft_policies()).make(parts.settings);
  });
}

}  // namespace kinora

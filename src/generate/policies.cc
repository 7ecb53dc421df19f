#include "generate/policies.h"

#include "base/log.h"
#include "generate/sparrow.h"

namespace kinora {

// Each is described in a file of its own.
DraftPolicy ngram_policy();
DraftPolicy pruned_policy();
DraftPolicy sparrow_policy();

namespace {

DraftPolicy no_draft_policy() {
  DraftPolicy policy;
  policy.info = {"none", "the model makes one token at a time"};
  policy.make = [](std::span<const GivenSetting> given) {
    match_settings(given, {});
    return [](const OpenDraft&) { return std::make_unique<NoDrafter>(); };
  };
  return policy;
}

// A draft that came with the model is a gift: if it is damaged, the answer comes without it.
DraftPolicy auto_policy() {
  DraftPolicy policy;
  policy.info = {
      "auto",
      "sparrow if the model came with a draft (draft/ in its directory), on a GPU not for "
      "small models in f32; else none"};
  policy.make = [](std::span<const GivenSetting> given) {
    match_settings(given, {});
    return [](const OpenDraft& open) -> std::unique_ptr<Drafter> {
      try {
        if (auto model = open ? open("") : nullptr; model && model->could_pay()) {
          return std::make_unique<SparrowDrafter>(std::move(model));
        }
      } catch (const Error& error) {
        log_warning(std::string(error.what()) + "; answering without it");
      }
      return std::make_unique<NoDrafter>();
    };
  };
  return policy;
}

DraftPolicy::Make read_draft(std::string_view text) {
  if (text.find('/') < text.find(':')) {  // a directory, whatever its name holds
    const GivenSetting from{"from", std::string(text)};
    return find_policy("sparrow", draft_policies()).make({&from, 1});
  }
  const PolicyText parts = split_policy(text);
  return find_policy(parts.name, draft_policies()).make(parts.settings);
}

}  // namespace

const std::vector<DraftPolicy>& draft_policies() {
  static const std::vector<DraftPolicy> policies = {
      no_draft_policy(), auto_policy(), ngram_policy(), sparrow_policy(), pruned_policy(),
  };
  return policies;
}

const PolicyPoint& draft_point() {
  static const PolicyPoint point{
      .name = "draft",
      .summary = "what proposes tokens that the model then verifies together",
      .form = "NAME[:key=value,…] or DIR",
      .initial = "auto",
      .policies = infos_of(draft_policies()),
      .check = [](std::string_view text) { read_draft(text); }};
  return point;
}

std::unique_ptr<Drafter> make_drafter(std::string_view text, const OpenDraft& open) {
  return in_words("draft", text, [&] { return read_draft(text)(open); });
}

}  // namespace kinora

// How the tokens of an answer are proposed, as people choose it. A new drafter is a header, a
// file that describes it, a test and a line of policies.cc.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/policy/policy.h"
#include "generate/draft_model.h"
#include "generate/drafter.h"

namespace kinora {

// Opens the draft in a directory, or without a name the one that came with the model; null if none
// did.
using OpenDraft = std::function<std::shared_ptr<const DraftModel>(const std::string& directory)>;

struct DraftPolicy {
  PolicyInfo info;
  // Reads the settings now, makes drafters later; only those with weights open any.
  using Make = std::function<std::unique_ptr<Drafter>(const OpenDraft& open)>;
  std::function<Make(std::span<const GivenSetting> given)> make;
};

const std::vector<DraftPolicy>& draft_policies();
const PolicyPoint& draft_point();

// By name, with settings after a colon; a path stands for the draft in that directory. Throws a
// usage error that lists the choices.
std::unique_ptr<Drafter> make_drafter(std::string_view text, const OpenDraft& open = nullptr);

}  // namespace kinora

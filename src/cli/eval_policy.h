// A way of answering as `kinora eval --policy` takes it: settings joined by semicolons. The
// attention policy needs no key: "momo:k=64;rows=bf16", "retain=key-norm:0.5",
// "quality=fast".
#pragma once

#include <string>

#include <kinora/engine.h>

#include "base/policy/settings.h"
#include "eval/run.h"

namespace kinora::cli {

// What a preset wants of the engine goes to `engine`. Throws a usage error with the choices.
EvalPolicy parse_eval_policy(const std::string& text, EngineOptions& engine);

// What there is to set, for help.
std::vector<SettingInfo> eval_policy_settings();

}  // namespace kinora::cli

#include "cli/policies.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "attention/policies/policy.h"
#include "cli/help/wrap.h"
#include "engine/tokens/tokens.h"
#include "generate/policies.h"
#include "memory/policies.h"
#include "memory/retention/retention.h"

namespace kinora::cli {
namespace {

// The flag that chooses at a point.
std::string flag_of(const PolicyPoint& point) {
  if (point.name == attention_point().name) return "--attention";
  if (point.name == tokens_point().name) return "--tokens";
  if (point.name == retention_point().name) return "--retain";
  if (point.name == memory_point().name) return "--memory";
  if (point.name == draft_point().name) return "--draft";
  return "";
}

// "k=64"; without a default only the key.
std::string assignment(const SettingInfo& setting) {
  return setting.needed ? setting.key : setting.key + "=" + setting.initial;
}

std::string described(const SettingInfo& setting) {
  return fmt::format("{} ({}{})", setting.meaning, setting.accepts,
                     setting.needed ? "; must be given" : "");
}

size_t widest_name(const PolicyPoint& point) {
  size_t widest = 0;
  for (const PolicyInfo& policy : point.policies) {
    widest = std::max(widest, width_of(policy.name));
  }
  return widest;
}

// A setting and the policies of a point that have it, all in the same way.
struct SharedSetting {
  SettingInfo setting;
  std::vector<std::string> policies;
};

std::vector<SharedSetting> settings_of(const PolicyPoint& point) {
  std::vector<SharedSetting> all;
  for (const PolicyInfo& policy : point.policies) {
    for (const SettingInfo& setting : policy.settings) {
      const auto same = [&](const SharedSetting& other) { return other.setting == setting; };
      auto found = std::find_if(all.begin(), all.end(), same);
      if (found == all.end()) found = all.insert(all.end(), {setting, {}});
      found->policies.push_back(policy.name);
    }
  }
  return all;
}

std::string point_text(const PolicyPoint& point) {
  const std::string flag = flag_of(point);
  std::string text = entry(0, point.name + ":", 0, point.summary);
  text += flag.empty() ? fmt::format("  one so far: {}\n\n", point.initial)
                       : fmt::format("  {} {}; without it {}\n\n", flag, point.form, point.initial);
  const size_t column = 4 + widest_name(point);
  const std::vector<SharedSetting> settings = settings_of(point);
  size_t settings_column = 0;
  for (const auto& [setting, policies] : settings) {
    settings_column = std::max(settings_column, 6 + width_of(assignment(setting)));
  }
  // What many have is explained once, at the end.
  const auto is_common = [&](const SettingInfo& setting) {
    return std::any_of(settings.begin(), settings.end(), [&](const SharedSetting& shared) {
      return shared.setting == setting && shared.policies.size() > 2;
    });
  };
  std::string common;
  for (const auto& [setting, policies] : settings) {
    if (!is_common(setting)) continue;
    common += entry(4, assignment(setting), settings_column, described(setting));
  }
  for (const PolicyInfo& policy : point.policies) {
    text += entry(2, policy.name, column, policy.summary);
    std::vector<std::string> keys;
    for (const SettingInfo& setting : policy.settings) {
      if (is_common(setting)) {
        keys.push_back(setting.key);
      } else {
        text += entry(4, assignment(setting), settings_column, described(setting));
      }
    }
    if (!keys.empty()) text += entry(4, fmt::format("also {}", fmt::join(keys, ", ")), 0, "");
  }
  for (const SettingInfo& modifier : point.modifiers) {
    text +=
        entry(2, "+" + assignment(modifier), column, "behind any of them: " + described(modifier));
  }
  if (!common.empty()) text += "  shared settings:\n" + common;
  return text;
}

// Upper case for the first letter of a sentence.
std::string sentence(std::string text) {
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 32);
  return text + ".";
}

std::string setting_row(const std::string& name, const SettingInfo& setting) {
  return fmt::format("| {} | {} | {} | {} | {} |\n", name, setting.key,
                     setting.needed ? "" : setting.initial, setting.accepts, setting.meaning);
}

std::string point_markdown(const PolicyPoint& point) {
  const std::string flag = flag_of(point);
  std::string text = fmt::format("\n## {}\n\n{} ", point.name, sentence(point.summary));
  text += flag.empty()
              ? "There is one so far.\n"
              : fmt::format("`{} {}`; without it `{}`.\n", flag, point.form, point.initial);
  text += "\n| policy | |\n|---|---|\n";
  bool settings = !point.modifiers.empty();
  for (const PolicyInfo& policy : point.policies) {
    text += fmt::format("| `{}` | {} |\n", policy.name, policy.summary);
    settings = settings || !policy.settings.empty();
  }
  if (!settings) return text;
  text += "\n| policy | setting | default | accepts | meaning |\n|---|---|---|---|---|\n";
  for (const auto& [setting, policies] : settings_of(point)) {
    text += setting_row(fmt::format("`{}`", fmt::join(policies, "`, `")), setting);
  }
  for (const SettingInfo& modifier : point.modifiers) {
    text += setting_row("any", SettingInfo{"+" + modifier.key, modifier.accepts, modifier.initial,
                                           modifier.meaning});
  }
  return text;
}

}  // namespace

std::vector<const PolicyPoint*> policy_points() {
  return {&tokens_point(), &attention_point(), &retention_point(), &memory_point(), &draft_point()};
}

std::string policy_names(const PolicyPoint& point) {
  return fmt::format("{}", fmt::join(point.names(), ", "));
}

void check_policy(std::string_view flag, const PolicyPoint& point, const std::string& text) {
  try {
    point.check(text);
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{} {}: {}", flag, in_quotes(text), error.what()),
                error.hint());
  }
}

std::string policy_list(const PolicyPoint& point) {
  std::string text;
  for (const PolicyInfo& policy : point.policies) {
    text += entry(2, policy.name, 4 + widest_name(point), policy.summary);
  }
  return text;
}

std::string policies_text() {
  std::string text = entry(0, "", 0,
                           "Every method is a policy at one point of the road. Settings follow its "
                           "name: momo:rank=mass,keys=2048. They are shown with their defaults.");
  for (const PolicyPoint* point : policy_points()) text += "\n" + point_text(*point);
  return text;
}

std::string policies_markdown() {
  std::string text =
      "# Policies\n\n"
      "Every method of kinora is a policy at one point of the road, and every point has a plain "
      "default, so that any method\ncan be switched off, compared and measured. A choice is a "
      "name, with settings if need be: `momo:rank=mass,keys=2048`,\n`key-norm:0.5`. The presets "
      "(`--quality`) choose for you; `kinora eval --policy` compares choices on questions "
      "with\nknown answers ([eval.md](eval.md)); [methods/](methods/) says how they work.\n\n"
      "This page is what `kinora help policies --markdown` prints. Sizes of patterns are for "
      "25,000 tokens and more; below that\nsinks, windows and counts shrink in proportion to the "
      "length of the conversation when the prompt will have been read, or to the\nrows in memory "
      "where no end is known (a stream); of `momo`, `mean-pool` and `oracle` only `keys` does.\n";
  for (const PolicyPoint* point : policy_points()) text += point_markdown(*point);
  return text;
}

}  // namespace kinora::cli

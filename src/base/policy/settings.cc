#include "base/policy/settings.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.h"
#include "base/policy/names.h"

namespace kinora {
namespace {

[[noreturn]] void refuse(const std::string& problem) { throw Error(ErrorKind::usage, problem); }

}  // namespace

std::vector<GivenSetting> split_settings(std::string_view text, char separator) {
  std::vector<GivenSetting> given;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    const size_t mark = part.find_first_of(":=+");
    const bool keyed = mark != std::string_view::npos && part[mark] == '=';
    if (part.empty() || (keyed && mark == 0)) {
      refuse(in_quotes(part) + " is not a setting; write key=value");
    }
    given.push_back(
        keyed ? GivenSetting{std::string(part.substr(0, mark)), std::string(part.substr(mark + 1))}
              : GivenSetting{"", std::string(part)});
    begin = end + 1;
  }
  return given;
}

std::vector<size_t> match_settings(std::span<const GivenSetting> given,
                                   std::span<const SettingInfo> known) {
  std::vector<size_t> places;
  for (const GivenSetting& setting : given) {
    const auto found = std::find_if(known.begin(), known.end(), [&](const SettingInfo& info) {
      return setting.key.empty() ? info.bare : info.key == setting.key;
    });
    if (found == known.end()) {
      std::vector<std::string> keys;
      for (const SettingInfo& info : known) keys.push_back(info.key);
      if (keys.empty()) {
        refuse("it has no settings, and " +
               in_quotes(setting.key.empty() ? setting.value : setting.key) + " was given");
      }
      if (setting.key.empty()) {
        refuse(in_quotes(setting.value) +
               " is not a setting; write key=value, where the keys are " + list_names(keys));
      }
      refuse("no setting is called " + in_quotes(setting.key) + "; " +
             suggest_name(setting.key, keys));
    }
    const auto place = static_cast<size_t>(found - known.begin());
    if (std::find(places.begin(), places.end(), place) != places.end()) {
      refuse(found->key + " is given twice");
    }
    places.push_back(place);
  }
  for (size_t i = 0; i < known.size(); ++i) {
    if (known[i].needed && std::find(places.begin(), places.end(), i) == places.end()) {
      refuse(known[i].key + " is missing; it must be " + known[i].accepts);
    }
  }
  return places;
}

void refuse_value(const SettingInfo& setting, std::string_view value) {
  refuse(setting.key + " is " + in_quotes(value) + ", but must be " + setting.accepts);
}

std::string CountRange::text() const {
  if (high == most) return std::to_string(low) + " or more";
  return std::to_string(low) + " to " + std::to_string(high);
}

std::optional<int64_t> CountRange::read(std::string_view text) const {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [after, error] = std::from_chars(text.data(), end, value);
  const bool whole = error == std::errc() && after == end && text.front() != '-';
  if (!whole || value < low || value > high) return std::nullopt;
  return value;
}

std::optional<double> read_share(std::string_view text) {
  double share = 0;
  const char* end = text.data() + text.size();
  const auto [after, error] = std::from_chars(text.data(), end, share, std::chars_format::fixed);
  if (error != std::errc() || after != end || !(share > 0) || share > 1) return std::nullopt;
  return share;
}

std::string share_text(double share) {
  std::array<char, 32> digits{};
  const auto written = std::to_chars(digits.data(), digits.data() + digits.size(), share);
  return {digits.data(), written.ptr};
}

}  // namespace kinora

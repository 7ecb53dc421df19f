// Settings that people write as key=value behind a policy's name. Each is bound to a field of the
// struct that the policy reads, so that what is parsed, the default that is used and the default
// that help shows cannot differ. Used by every policy (policy.h).
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kinora {

// A setting as help and documentation show it.
struct SettingInfo {
  std::string key;
  std::string accepts;  // ends "… must be": "1 or more", "mean or mass"
  std::string initial;  // the default, as a person would write it
  std::string meaning;  // one line
  bool needed = false;  // there is no default: it must be given
  bool bare = false;    // its value may stand without the key

  bool operator==(const SettingInfo&) const = default;
};

// A setting as it was written; without a key where only a value was.
struct GivenSetting {
  std::string key;
  std::string value;
};

// "k=64,rank=mass" taken apart at the separator. A part is key=value when its first ':', '=' or '+'
// is '='; otherwise it is a value alone. Throws a usage error: nothing between two separators.
std::vector<GivenSetting> split_settings(std::string_view text, char separator);

// For each given setting, which one of `known` it sets. Throws a usage error: an unknown key (with
// the nearest), a key twice, a value alone that none takes, one that must be given and is not.
std::vector<size_t> match_settings(std::span<const GivenSetting> given,
                                   std::span<const SettingInfo> known);

// Throws the usage error of a value that a setting does not accept.
[[noreturn]] void refuse_value(const SettingInfo& setting, std::string_view value);

struct CountRange {
  static constexpr int64_t most = int64_t{1} << 30;
  int64_t low = 0;
  int64_t high = most;

  std::string text() const;                                  // "1 or more", "8 to 1024"
  std::optional<int64_t> read(std::string_view text) const;  // digits only, within the range
};

// Shares: above 0, at most 1, written without an exponent.
std::optional<double> read_share(std::string_view text);
std::string share_text(double share);  // the shortest that reads back as the same

// The settings of one struct, in the order in which help lists them. A field is a pointer to a
// member, or a function from the struct to a reference: [](auto& o) -> auto& { return o.a.b; }.
template <typename Options>
class Settings {
 public:
  using Set = std::function<bool(Options&, std::string_view)>;  // false: not a value of this one
  using Show = std::function<std::string(const Options&)>;

  explicit Settings(Options initial = Options()) : initial_(std::move(initial)) {}

  // A whole number.
  template <typename Field>
  Settings& count(std::string_view key, Field field, CountRange range, std::string_view meaning) {
    return add(key, range.text(), meaning, set_count(field, range), show_count(field));
  }

  // A whole number, or a word for a value outside the range.
  template <typename Field>
  Settings& count_or(std::string_view key, Field field, CountRange range,
                     std::pair<std::string_view, int64_t> word, std::string_view meaning) {
    const std::string name(word.first);
    return add(
        key, range.text() + ", or " + name, meaning,
        [field, name, word, set = set_count(field, range)](Options& options,
                                                           std::string_view text) {
          if (text != name) return set(options, text);
          assign(std::invoke(field, options), word.second);
          return true;
        },
        [field, name, word, show = show_count(field)](const Options& options) {
          return static_cast<int64_t>(std::invoke(field, options)) == word.second ? name
                                                                                  : show(options);
        });
  }

  // A double above 0 and at most 1.
  template <typename Field>
  Settings& share(std::string_view key, Field field, std::string_view meaning) {
    return add(
        key, "above 0 and at most 1", meaning,
        [field](Options& options, std::string_view text) {
          const auto value = read_share(text);
          if (value) std::invoke(field, options) = *value;
          return value.has_value();
        },
        [field](const Options& options) { return share_text(std::invoke(field, options)); });
  }

  // A bool, written 0 or 1.
  template <typename Field>
  Settings& flag(std::string_view key, Field field, std::string_view meaning) {
    return add(
        key, "0 or 1", meaning,
        [field](Options& options, std::string_view text) {
          if (text != "0" && text != "1") return false;
          std::invoke(field, options) = text == "1";
          return true;
        },
        [field](const Options& options) {
          return std::string(std::invoke(field, options) ? "1" : "0");
        });
  }

  // One of some words, each of which stands for a value of the field.
  template <typename Field, typename Value>
  Settings& choice(std::string_view key, Field field,
                   std::vector<std::pair<std::string, Value>> words, std::string_view meaning) {
    std::string accepts;
    for (size_t i = 0; i < words.size(); ++i) {
      if (i > 0) accepts += i + 1 < words.size() ? ", " : " or ";
      accepts += words[i].first;
    }
    return add(
        key, accepts, meaning,
        [field, words](Options& options, std::string_view text) {
          for (const auto& [word, value] : words) {
            if (word != text) continue;
            std::invoke(field, options) = value;
            return true;
          }
          return false;
        },
        [field, words](const Options& options) {
          for (const auto& [word, value] : words) {
            if (std::invoke(field, options) == value) return word;
          }
          return std::string();
        });
  }

  // Any text that is not empty. `accepts` says what is expected; `check`, if there is one, throws
  // an error that says what is wrong with it.
  template <typename Field>
  Settings& text(std::string_view key, Field field, std::string_view accepts,
                 std::string_view meaning, std::function<void(std::string_view)> check = nullptr) {
    return add(
        key, accepts, meaning,
        [field, check](Options& options, std::string_view text) {
          if (text.empty()) return false;
          if (check) check(text);
          std::invoke(field, options) = std::string(text);
          return true;
        },
        [field](const Options& options) { return std::string(std::invoke(field, options)); });
  }

  // Anything else.
  Settings& add(std::string_view key, std::string_view accepts, std::string_view meaning, Set set,
                Show show) {
    infos_.push_back(
        {std::string(key), std::string(accepts), show(initial_), std::string(meaning)});
    bindings_.push_back({std::move(set), std::move(show)});
    return *this;
  }

  // The setting added last has no default: it must be given.
  Settings& needed() {
    infos_.back().needed = true;
    infos_.back().initial.clear();
    return *this;
  }
  // The value of the setting added last may stand without its key.
  Settings& bare() {
    infos_.back().bare = true;
    return *this;
  }

  // The settings of a struct that this one holds.
  template <typename Part, typename Field>
  Settings& include(const Settings<Part>& part, Field field) {
    for (size_t i = 0; i < part.infos_.size(); ++i) {
      const SettingInfo& info = part.infos_[i];
      const auto& binding = part.bindings_[i];
      add(
          info.key, info.accepts, info.meaning,
          [field, set = binding.set](Options& options, std::string_view text) {
            return set(std::invoke(field, options), text);
          },
          [field, show = binding.show](const Options& options) {
            return show(std::invoke(field, options));
          });
      if (info.needed) needed();
      if (info.bare) bare();
    }
    return *this;
  }

  const std::vector<SettingInfo>& info() const { return infos_; }
  const Options& initial() const { return initial_; }

  // Applies what was given, in the given order, to the defaults or to `into`. Throws a usage error
  // that says what is wrong and lists the choices.
  Options read(std::span<const GivenSetting> given) const { return read(given, initial_); }
  Options read(std::span<const GivenSetting> given, Options into) const {
    const std::vector<size_t> places = match_settings(given, infos_);
    for (size_t i = 0; i < given.size(); ++i) {
      if (!bindings_[places[i]].set(into, given[i].value)) {
        refuse_value(infos_[places[i]], given[i].value);
      }
    }
    return into;
  }

 private:
  template <typename Other>
  friend class Settings;

  struct Binding {
    Set set;
    Show show;
  };

  template <std::integral T>
  static void assign(T& into, int64_t value) {
    into = static_cast<T>(value);
  }
  template <typename Field>
  static Set set_count(Field field, CountRange range) {
    return [field, range](Options& options, std::string_view text) {
      const auto value = range.read(text);
      if (value) assign(std::invoke(field, options), *value);
      return value.has_value();
    };
  }
  template <typename Field>
  static Show show_count(Field field) {
    return [field](const Options& options) { return std::to_string(std::invoke(field, options)); };
  }

  Options initial_;
  std::vector<SettingInfo> infos_;
  std::vector<Binding> bindings_;
};

}  // namespace kinora

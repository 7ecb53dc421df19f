#include "cli/notes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>

#include "cli/terminal/output.h"

namespace kinora::cli {

std::vector<std::string> frame_notes(const SessionOptions& session, const FrameChoice& choice,
                                     const ModelDescription& model,
                                     const std::vector<InputInfo>& inputs) {
  std::vector<std::string> notes;
  if (choice.way != FrameChoice::Way::model) return notes;
  const auto is_video = [](const InputInfo& input) { return input.times.size() > 1; };
  if (session.frame_share < 1 && std::any_of(inputs.begin(), inputs.end(), is_video)) {
    notes.push_back(
        fmt::format("this quality looks at {:g} % of the frames that the model would choose "
                    "(--fps or --frames chooses others)",
                    100 * session.frame_share));
  }
  if (session.snap_share > 0 && std::any_of(inputs.begin(), inputs.end(), is_video)) {
    notes.push_back(
        fmt::format("this quality takes frames up to {:g} % of their distance earlier or later "
                    "where they are cheaper to decode (--snap 0: the very frames)",
                    100 * session.snap_share));
  }
  if (model.default_fps <= 0) return notes;
  const double usual = 1 / (model.default_fps * session.frame_share);
  const double most = static_cast<double>(model.default_max_frames) * session.frame_share;
  for (const InputInfo& input : inputs) {
    if (!is_video(input)) continue;
    const double span = input.times.back() - input.times.front();
    const double apart = span / static_cast<double>(input.times.size() - 1);
    // The rules of families round, and the ends of short videos count: a limit was reached where
    // both the number and the distance say so.
    const bool many = static_cast<double>(input.times.size()) >= 0.95 * most;
    if (!many || apart < 1.2 * usual) continue;
    notes.push_back(fmt::format(
        "{}: one frame every {:.1f} s, because the model looks at {} at most (--start and --end "
        "choose a part, --fps a rate)",
        input.source, apart, model.default_max_frames));
  }
  return notes;
}

std::vector<std::string> sound_notes(const std::vector<InputInfo>& inputs,
                                     const std::vector<std::string>& subtitles) {
  std::vector<std::string> notes;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const InputInfo& input = inputs[i];
    std::vector<std::string> missing;
    if (input.sound) missing.emplace_back("its sound is not heard");
    if (!input.languages.empty() && i >= subtitles.size()) {
      missing.push_back(fmt::format("its subtitles ({}) are not read (--subtitles embedded)",
                                    fmt::join(input.languages, ", ")));
    }
    if (!missing.empty()) {
      notes.push_back(fmt::format("{}: {}", input.source, fmt::join(missing, ", ")));
    }
  }
  return notes;
}

std::string cut_note(const Answer& answer) {
  const char* why = answer.stop == "max-tokens"     ? "--max-tokens"
                    : answer.stop == "budget-full"  ? "the budget is used up"
                    : answer.stop == "context-full" ? "the model has no positions left"
                                                    : nullptr;
  if (why == nullptr) return "";
  return fmt::format("the answer was cut at {} token{} ({})", answer.ids.size(),
                     answer.ids.size() == 1 ? "" : "s", why);
}

std::string short_sample_note(int64_t tokens) {
  // The A-shape that every pattern is compared with takes 5,120 of them: half of this.
  constexpr int64_t least = 10'240;
  constexpr int64_t refused = 128;  // so few are an error anyway
  if (tokens >= least || tokens < refused) return "";
  return fmt::format(
      "the sample has {} tokens, too few to tell patterns apart; about 25,000 are enough (--fps, "
      "--frames or a longer --sample gives more)",
      tokens);
}

void Notes::add(const std::string& text) {
  if (text.empty() || unsaid({text}).empty()) return;
  said_.push_back(text);
  if (printed_) complain("note: " + text);
}

void Notes::add(const std::vector<std::string>& texts) {
  for (const std::string& text : texts) add(text);
}

std::vector<std::string> Notes::unsaid(const std::vector<std::string>& warnings) const {
  std::vector<std::string> left = warnings;
  std::erase_if(left, [&](const std::string& warning) {
    return std::find(said_.begin(), said_.end(), warning) != said_.end();
  });
  return left;
}

std::vector<std::string> Notes::with(const std::vector<std::string>& warnings) const {
  std::vector<std::string> all = said_;
  const std::vector<std::string> rest = unsaid(warnings);
  all.insert(all.end(), rest.begin(), rest.end());
  return all;
}

}  // namespace kinora::cli

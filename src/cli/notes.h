// What a person should know before they read an answer: that a model knows little, that frames were
// left out, that sound is not heard. Each is one short line, said once and before the answer;
// scripts find them in "warnings". Used by `ask`, `chat`, `eval` and `probe`.
#pragma once

#include <kinora/session.h>

#include <string>
#include <vector>

namespace kinora::cli {

// What a person who chose no frames should know about those that are looked at: a preset that
// leaves some out, and a video so long that the model looks more seldom than it would.
std::vector<std::string> frame_notes(const SessionOptions& session, const FrameChoice& choice,
                                     const ModelDescription& model,
                                     const std::vector<InputInfo>& inputs);
// What of these inputs is not given to the model: their sound, and subtitles inside them unless
// something was said about those. `subtitles` has one entry for each input that something was said
// about.
std::vector<std::string> sound_notes(const std::vector<InputInfo>& inputs,
                                     const std::vector<std::string>& subtitles);
// That the answer was cut; empty where it was not.
std::string cut_note(const Answer& answer);
// That a prompt is too short to choose patterns of attention by; empty where it is not.
std::string short_sample_note(int64_t tokens);

class Notes {
 public:
  // Prints them as they come, or keeps them for JSON only.
  explicit Notes(bool printed) : printed_(printed) {}

  // Nothing happens for an empty text or one that was said before.
  void add(const std::string& text);
  void add(const std::vector<std::string>& texts);

  // That this was said elsewhere.
  void remember(const std::string& text) { said_.push_back(text); }

  // Of these warnings, those that were not said yet.
  std::vector<std::string> unsaid(const std::vector<std::string>& warnings) const;
  // The notes, then what they leave of these warnings.
  std::vector<std::string> with(const std::vector<std::string>& warnings) const;

 private:
  const bool printed_;
  std::vector<std::string> said_;
};

}  // namespace kinora::cli

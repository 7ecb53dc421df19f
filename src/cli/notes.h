// What a person should know before they read an answer: that a model knows little, that frames were
// left out, that sound is not heard. Each is one short line, said once and before the answer;
// scripts find them in "warnings". Used by `ask` and `chat`.
#pragma once

#include <string>
#include <vector>

namespace kinora::cli {

class Notes {
 public:
  // Prints them as they come, or keeps them for JSON only.
  explicit Notes(bool printed) : printed_(printed) {}

  // Nothing happens for an empty text or one that was said before.
  void add(const std::string& text);

  // Of these warnings, those that were not said yet.
  std::vector<std::string> unsaid(const std::vector<std::string>& warnings) const;
  // The notes, then what they leave of these warnings.
  std::vector<std::string> with(const std::vector<std::string>& warnings) const;

 private:
  const bool printed_;
  std::vector<std::string> said_;
};

}  // namespace kinora::cli

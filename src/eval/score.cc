#include "eval/score.h"

#include <algorithm>
#include <cmath>

namespace kinora {
namespace {

bool is_word(unsigned char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c >= 0x80;
}

std::vector<std::string> sentences(const std::string& text) {
  std::vector<std::string> out;
  std::string current;
  const auto close = [&] {
    std::string sentence = normalised(current);
    if (!sentence.empty()) out.push_back(std::move(sentence));
    current.clear();
  };
  for (const char c : text) {
    if (c == '.' || c == ';' || c == '\n') {
      close();
    } else {
      current += c;
    }
  }
  close();
  return out;
}

// Whether words stand in a text one after the other, as whole words; no words stand nowhere.
bool holds(const std::string& text, const std::string& words) {
  return !words.empty() && (' ' + text + ' ').find(' ' + words + ' ') != std::string::npos;
}

}  // namespace

std::string eval_prompt(const EvalItem& item) {
  if (item.options.empty()) return item.question;
  std::string prompt = item.question + "\n";
  for (size_t i = 0; i < item.options.size(); ++i) {
    prompt += static_cast<char>('A' + i);
    prompt += ". " + item.options[i] + "\n";
  }
  return prompt + "Answer with the letter of the right option only.";
}

std::string normalised(std::string_view text) {
  std::string out;
  bool gap = false;
  for (const char raw : text) {
    const auto c = static_cast<unsigned char>(raw >= 'A' && raw <= 'Z' ? raw - 'A' + 'a' : raw);
    if (is_word(c)) {
      if (gap && !out.empty()) out += ' ';
      gap = false;
      out += static_cast<char>(c);
    } else if (c != '\'') {
      gap = true;
    }
  }
  for (const std::string_view article : {"the ", "a ", "an "}) {
    if (out.starts_with(article)) return out.substr(article.size());
  }
  return out;
}

int chosen_option(const std::vector<std::string>& options, const std::string& answer) {
  // A capital letter that stands alone at the start: "B", "(B)", "B. text".
  const size_t first = answer.find_first_not_of(" \t\r\n(*\"'");
  if (first != std::string::npos) {
    const int letter = answer[first] - 'A';
    const bool alone = first + 1 >= answer.size() ||
                       !is_word(static_cast<unsigned char>(answer[first + 1] | 0x20));
    if (letter >= 0 && letter < static_cast<int>(options.size()) && alone) return letter;
  }
  const std::string said = normalised(answer);
  for (size_t i = 0; i < options.size(); ++i) {
    if (normalised(options[i]) == said) return static_cast<int>(i);
  }
  return -1;
}

double event_f1(const std::vector<std::string>& events, const std::string& text) {
  std::vector<std::string> wanted;
  for (const std::string& event : events) wanted.push_back(normalised(event));
  const std::vector<std::string> said = sentences(text);
  if (wanted.empty() || said.empty()) return wanted.empty() && said.empty() ? 1 : 0;
  std::vector<std::string> open = wanted;
  double hits = 0;
  for (const std::string& sentence : said) {
    const auto found = std::find(open.begin(), open.end(), sentence);
    if (found == open.end()) continue;
    open.erase(found);
    ++hits;
  }
  return 2 * hits / static_cast<double>(wanted.size() + said.size());
}

double score_answer(const EvalItem& item, const std::string& answer) {
  if (!item.options.empty()) {
    const int chosen = chosen_option(item.options, answer);
    return chosen >= 0 && item.options[static_cast<size_t>(chosen)] == item.answers.front() ? 1 : 0;
  }
  if (!item.events.empty()) return event_f1(item.events, answer);
  const std::string said = normalised(answer);
  return std::any_of(item.answers.begin(), item.answers.end(),
                     [&](const std::string& right) {
                       const std::string words = normalised(right);
                       return item.contains ? holds(said, words) : words == said;
                     })
             ? 1
             : 0;
}

ConfidenceInterval wilson_interval(double successes, int64_t tries) {
  if (tries <= 0) return {};
  constexpr double z = 1.959964;
  const auto n = static_cast<double>(tries);
  const double share = successes / n;
  const double centre = share + z * z / (2 * n);
  const double spread = z * std::sqrt(share * (1 - share) / n + z * z / (4 * n * n));
  const double scale = 1 + z * z / n;
  return {std::max(0.0, (centre - spread) / scale), std::min(1.0, (centre + spread) / scale)};
}

double paired_probability(int64_t only_first, int64_t only_second) {
  const int64_t total = only_first + only_second;
  if (total == 0) return 1;
  // Twice the tail of a fair binomial; the terms by logarithms, since total may be large.
  const int64_t fewer = std::min(only_first, only_second);
  double tail = 0;
  for (int64_t k = 0; k <= fewer; ++k) {
    const auto n = static_cast<double>(total), i = static_cast<double>(k);
    tail += std::exp(std::lgamma(n + 1) - std::lgamma(i + 1) - std::lgamma(n - i + 1) -
                     n * std::log(2.0));
  }
  return std::min(1.0, 2 * tail);
}

}  // namespace kinora

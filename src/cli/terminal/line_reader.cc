#include "cli/terminal/line_reader.h"

#ifdef KINORA_HAS_LIBEDIT
#include <histedit.h>
#endif
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <utility>

namespace kinora::cli {

#ifdef KINORA_HAS_LIBEDIT

namespace {

// A terminal that was asked to puts these around what is pasted, so that its line ends are not
// taken for the Enter key.
constexpr const char* mark_pastes = "\033[?2004h";
constexpr const char* no_marks = "\033[?2004l";
constexpr std::wstring_view paste_end = L"\033[201~";
// Stands for a line end inside what is being edited.
constexpr wchar_t line_end = L'\u21b5';
constexpr std::string_view line_end_text = "\u21b5";
constexpr size_t most_pasted = size_t{1} << 16;  // characters

}  // namespace

struct LineReader::Editor {
  Editor(std::string prompt_text, std::string file_path, Complete complete_with)
      : prompt(std::move(prompt_text)),
        file(std::move(file_path)),
        complete(std::move(complete_with)) {
    std::setlocale(LC_CTYPE, "");
    history = ::history_init();
    HistEvent event;
    ::history(history, &event, H_SETSIZE, 1000);
    ::history(history, &event, H_SETUNIQUE, 1);
    if (!file.empty()) ::history(history, &event, H_LOAD, file.c_str());
    line = ::el_init("kinora", stdin, stdout, stderr);
    ::el_set(line, EL_CLIENTDATA, this);
    ::el_set(line, EL_PROMPT, &show_prompt);
    ::el_set(line, EL_EDITOR, "emacs");
    ::el_set(line, EL_HIST, ::history, history);
    ::el_set(line, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    ::el_set(line, EL_ADDFN, "kinora-paste", "take what is pasted as one line", &take_paste);
    ::el_set(line, EL_BIND, "\\e[200~", "kinora-paste", nullptr);
    std::fputs(mark_pastes, stdout);
    std::fflush(stdout);
    if (!complete) return;
    ::el_set(line, EL_ADDFN, "kinora-complete", "complete a command or a file", &complete_line);
    ::el_set(line, EL_BIND, "^I", "kinora-complete", nullptr);
  }
  ~Editor() {
    std::fputs(no_marks, stdout);
    std::fflush(stdout);
    if (!file.empty()) {
      std::error_code ignored;
      std::filesystem::create_directories(std::filesystem::path(file).parent_path(), ignored);
      HistEvent event;
      ::history(history, &event, H_SAVE, file.c_str());
    }
    ::el_end(line);
    ::history_end(history);
  }
  Editor(const Editor&) = delete;
  Editor& operator=(const Editor&) = delete;

  // Nothing at the end of the input; an empty line where it was interrupted.
  std::optional<std::string> read() {
    int count = 0;
    errno = 0;
    const char* text = ::el_gets(line, &count);
    const int error = errno;
    if (text == nullptr || count <= 0) {
      std::fputs("\n", stdout);  // whatever comes next begins at the margin
      if (error != EINTR) return std::nullopt;
      ::el_reset(line);
      return "";
    }
    std::string typed(text, static_cast<size_t>(count));
    HistEvent event;
    if (typed.find_first_not_of(" \t\r\n") != std::string::npos) {
      ::history(history, &event, H_ENTER, typed.c_str());
    }
    for (size_t at = typed.find(line_end_text); at != std::string::npos;
         at = typed.find(line_end_text, at + 1)) {
      typed.replace(at, line_end_text.size(), "\n");
    }
    return typed;
  }

  // Up to the mark at its end; what Enter would be is shown as a sign and becomes a line end later.
  static unsigned char take_paste(EditLine* line, int) {
    std::wstring pasted;
    wchar_t next = 0;
    while (pasted.size() < most_pasted && ::el_wgetc(line, &next) == 1) {
      pasted += next;
      if (!std::wstring_view(pasted).ends_with(paste_end)) continue;
      pasted.resize(pasted.size() - paste_end.size());
      break;
    }
    while (!pasted.empty() && (pasted.back() == L'\n' || pasted.back() == L'\r')) pasted.pop_back();
    std::wstring shown;
    for (size_t i = 0; i < pasted.size(); ++i) {
      const bool ends = pasted[i] == L'\n' || pasted[i] == L'\r';
      if (pasted[i] == L'\r' && i + 1 < pasted.size() && pasted[i + 1] == L'\n') continue;
      shown += ends ? line_end : pasted[i] == L'\t' ? L' ' : pasted[i];
    }
    if (shown.empty() || ::el_winsertstr(line, shown.c_str()) != 0) return CC_ERROR;
    return CC_REFRESH;
  }

  static unsigned char complete_line(EditLine* line, int) {
    Editor* self = nullptr;
    ::el_get(line, EL_CLIENTDATA, &self);
    const LineInfo* info = ::el_line(line);
    const std::string typed(info->buffer, static_cast<size_t>(info->cursor - info->buffer));
    const Completions found = self->complete(typed);
    if (found.words.empty()) return CC_ERROR;
    const std::string common = common_beginning(found.words);
    std::string more = common.substr(std::min(common.size(), typed.size() - found.from));
    if (found.words.size() == 1 && !common.ends_with('/')) more += ' ';
    if (!more.empty()) return ::el_insertstr(line, more.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
    std::string list = "\n";
    for (const std::string& word : found.words) list += word + "  ";
    std::fputs((list + "\n").c_str(), stdout);
    std::fflush(stdout);
    return CC_REDISPLAY;
  }

  static char* show_prompt(EditLine* line) {
    Editor* self = nullptr;
    ::el_get(line, EL_CLIENTDATA, &self);
    return self->prompt.data();
  }

  std::string prompt;
  const std::string file;
  const Complete complete;
  History* history = nullptr;
  EditLine* line = nullptr;
};

#else

// Built without libedit: a prompt and plain lines.
struct LineReader::Editor {
  Editor(std::string prompt_text, const std::string&, const Complete&)
      : prompt(std::move(prompt_text)) {}

  std::optional<std::string> read() {
    std::fputs(prompt.c_str(), stdout);
    std::fflush(stdout);
    std::string text;
    if (std::getline(std::cin, text)) return text;
    std::fputs("\n", stdout);
    return std::nullopt;
  }

  const std::string prompt;
};

#endif

std::string common_beginning(const std::vector<std::string>& words) {
  if (words.empty()) return "";
  size_t same = words.front().size();
  for (const std::string& word : words) {
    const auto differs =
        std::mismatch(words.front().begin(), words.front().end(), word.begin(), word.end());
    same = std::min(same, static_cast<size_t>(differs.first - words.front().begin()));
  }
  // A character of several bytes is there as a whole or not at all.
  while (same > 0 && same < words.front().size() && (words.front()[same] & 0xc0) == 0x80) --same;
  return words.front().substr(0, same);
}

LineReader::LineReader(std::string prompt, const std::string& history_file, Complete complete) {
  if (::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1) {
    editor_ = std::make_unique<Editor>(std::move(prompt), history_file, std::move(complete));
  }
}

LineReader::~LineReader() = default;

bool LineReader::on_terminal() const { return editor_ != nullptr; }

std::optional<std::string> LineReader::next_of_pipe() {
  while (true) {
    const size_t end = read_.find('\n');
    if (end != std::string::npos) {
      std::string line = read_.substr(0, end);
      read_.erase(0, end + 1);
      return line;
    }
    std::array<char, 4096> piece;
    const ssize_t got = ::read(STDIN_FILENO, piece.data(), piece.size());
    if (got > 0) {
      read_.append(piece.data(), static_cast<size_t>(got));
      continue;
    }
    interrupted_ = got < 0 && errno == EINTR;
    if (interrupted_ || read_.empty()) return std::nullopt;
    return std::exchange(read_, {});  // a last line without an end
  }
}

std::optional<std::string> LineReader::next() {
  std::optional<std::string> text = editor_ ? editor_->read() : next_of_pipe();
  while (text && !text->empty() && (text->back() == '\n' || text->back() == '\r')) text->pop_back();
  return text;
}

std::string history_place() {
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && *state != '\0') return std::string(state) + "/kinora/history";
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home != '\0') return std::string(home) + "/.local/state/kinora/history";
  return "";
}

}  // namespace kinora::cli

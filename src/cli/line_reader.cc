#include "cli/line_reader.h"

#ifdef KINORA_HAS_LIBEDIT
#include <histedit.h>
#endif
#include <unistd.h>

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

struct LineReader::Editor {
  Editor(std::string prompt_text, std::string file_path)
      : prompt(std::move(prompt_text)), file(std::move(file_path)) {
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
  }
  ~Editor() {
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
    if (text == nullptr || count <= 0) {
      if (errno != EINTR) return std::nullopt;
      ::el_reset(line);
      std::fputs("\n", stdout);
      return "";
    }
    std::string typed(text, static_cast<size_t>(count));
    HistEvent event;
    if (typed.find_first_not_of(" \t\r\n") != std::string::npos) {
      ::history(history, &event, H_ENTER, typed.c_str());
    }
    return typed;
  }

  static char* show_prompt(EditLine* line) {
    Editor* self = nullptr;
    ::el_get(line, EL_CLIENTDATA, &self);
    return self->prompt.data();
  }

  std::string prompt;
  const std::string file;
  History* history = nullptr;
  EditLine* line = nullptr;
};

#else

// Built without libedit: a prompt and plain lines.
struct LineReader::Editor {
  Editor(std::string prompt_text, const std::string&) : prompt(std::move(prompt_text)) {}

  std::optional<std::string> read() {
    std::fputs(prompt.c_str(), stdout);
    std::fflush(stdout);
    std::string text;
    if (!std::getline(std::cin, text)) return std::nullopt;
    return text;
  }

  const std::string prompt;
};

#endif

LineReader::LineReader(std::string prompt, const std::string& history_file) {
  if (::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1) {
    editor_ = std::make_unique<Editor>(std::move(prompt), history_file);
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

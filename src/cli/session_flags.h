// Flags of every command that answers questions about inputs (`ask`, `chat`): the model, which
// frames, the answer, policies, budgets, the machine.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include <kinora/session.h>

namespace kinora::cli {

struct SessionFlags {
  EngineOptions engine;
  SessionOptions session;
  InputOptions input;
  AnswerOptions answer;
  std::vector<std::string> subtitles;  // of the first video, the second …
  std::string trace;
  std::string timeline;
  bool quiet = false;
  bool verbose = false;

  void add_to(CLI::App& command);
  // After parsing: the bundled model where none is named, the preset where no policy is, sizes in
  // bytes. Throws usage errors.
  void resolve();
  // Adds the inputs with their subtitles; `demo` is the bundled clip.
  std::vector<InputInfo> add_inputs(Session& session,
                                    const std::vector<std::string>& sources) const;

 private:
  std::string quality_ = "exact";
  std::string memory_budget_;
  std::string attention_;
  std::string retain_;
  bool native_bf16_ = false;
  bool sequential_ = false;
};

// "6GiB", "512 MiB", "1.5G", "100000" in bytes. Throws a usage error that shows the text.
int64_t parse_size(const std::string& text);

}  // namespace kinora::cli

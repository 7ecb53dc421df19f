// Flags of every command that answers questions about inputs (`ask`, `chat`), or only reads them to
// look at attention (`tune`, `inspect`): the model, which frames, the answer, policies, budgets,
// the machine.
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
  std::vector<std::string> subtitles;  // of the first video, the second …: a file, embedded, none
  std::string trace;
  std::string timeline;
  bool quiet = false;
  bool verbose = false;

  void add_to(CLI::App& command);
  // Only what concerns reading a prompt; with or without what memory makes of it.
  void add_reading_to(CLI::App& command, bool choose_memory);
  // What shapes a saved memory: all but the answer.
  void add_indexing_to(CLI::App& command);
  // Before `resolve`, where the first of these may be a saved memory: its model, unless one is
  // named. Throws a usage error for what was chosen when it was made and cannot be chosen now.
  void follow_memory(const std::vector<std::string>& sources);
  // What a server decides for everybody: the model, policies, budgets, the machine.
  void add_serving_to(CLI::App& command);
  // After parsing: the bundled model where none is named, the preset where no policy is, sizes in
  // bytes. Throws usage errors.
  void resolve();
  // A session with these options, from a saved memory if the first source is one; that source is
  // then taken off the list.
  Session start(const Engine& engine, const SessionOptions& options,
                std::vector<std::string>& sources) const;
  // Adds the inputs with their subtitles; `demo` is the bundled clip.
  std::vector<InputInfo> add_inputs(Session& session,
                                    const std::vector<std::string>& sources) const;

 private:
  void add_model(CLI::App& command);
  void add_input(CLI::App& command);
  void add_draft(CLI::App& command);
  void add_wording(CLI::App& command);
  void add_attention(CLI::App& command);
  void add_memory(CLI::App& command);
  void add_budgets(CLI::App& command);
  void add_machine(CLI::App& command);

  std::string quality_ = "exact";
  const CLI::Option* snap_ = nullptr;  // given, also as 0, it goes before what a preset says
  std::string memory_budget_;
  std::string attention_;
  std::string retain_;
  std::string tokens_;
  std::string rows_;
  bool native_bf16_ = false;
  bool sequential_ = false;
};

// "6GiB", "512 MiB", "1.5G", or bytes from a mebibyte on. Throws a usage error that shows the text.
int64_t parse_size(const std::string& text);

}  // namespace kinora::cli

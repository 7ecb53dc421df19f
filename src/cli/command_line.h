// The program's command line: every command adds itself with its options and examples, and the one
// that was chosen leaves its action here. Commands live in one file each (command_NAME.cc).
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <string_view>

#include "cli/terminal/interrupt.h"

namespace kinora::cli {

struct CommandLine {
  CLI::App app;
  std::function<int()> action;  // returns the exit code; errors are thrown
  Interrupts interrupts;        // Ctrl-C
};

// The whole program, ready to parse: every command, since help, completions and the man page are
// made from it. Where the first word of the command line names a command that needs no other, only
// that one is added: the options of all take longer to set up than most commands to begin.
void add_commands(CommandLine& line, std::string_view word = "");

void add_ask(CommandLine& line);
void add_bench(CommandLine& line);
void add_bench_attention(CommandLine& line, CLI::App& bench);  // part of it
void add_bench_overlap(CommandLine& line, CLI::App& bench);    // this too
void add_bench_stream(CommandLine& line, CLI::App& bench);     // this too
void add_bench_draft(CommandLine& line, CLI::App& bench);      // and this
void add_calibrate(CommandLine& line);
void add_chat(CommandLine& line);
void add_completion(CommandLine& line);
void add_eval(CommandLine& line);
void add_index(CommandLine& line);
void add_info(CommandLine& line);
void add_frames(CommandLine& line);
void add_help(CommandLine& line);
void add_inspect(CommandLine& line);
void add_library(CommandLine& line);  // where there is SQLite
void add_models(CommandLine& line);
void add_probe(CommandLine& line);
void add_pull(CommandLine& line);  // where there is libcurl
void add_quantize(CommandLine& line);
void add_serve(CommandLine& line);  // where there is Boost
void add_tokenize(CommandLine& line);
void add_tune(CommandLine& line);
void add_watch(CommandLine& line);
void add_version(CommandLine& line);

std::string version_line();  // "kinora 0.1.0"

}  // namespace kinora::cli

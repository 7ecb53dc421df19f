// The program's command line: every command adds itself with its options and examples, and the one
// that was chosen leaves its action here. Commands live in one file each (command_NAME.cc).
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "cli/interrupt.h"

namespace kinora::cli {

struct CommandLine {
  CLI::App app;
  std::function<int()> action;  // returns the exit code; errors are thrown
  Interrupts interrupts;        // Ctrl-C
};

void add_ask(CommandLine& line);
void add_bench(CommandLine& line);
void add_bench_overlap(CommandLine& line, CLI::App& bench);
void add_bench_draft(CommandLine& line, CLI::App& bench);  // part of it
void add_calibrate(CommandLine& line);
void add_chat(CommandLine& line);
void add_eval(CommandLine& line);
void add_info(CommandLine& line);
void add_frames(CommandLine& line);
void add_help(CommandLine& line);
void add_inspect(CommandLine& line);
void add_probe(CommandLine& line);
void add_tokenize(CommandLine& line);
void add_tune(CommandLine& line);

}  // namespace kinora::cli

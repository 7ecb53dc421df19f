// Completion for shells and the man page, made from the definitions of the commands. Used by
// `kinora completion` and `kinora help --man`; the build installs what they print.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace kinora::cli {

std::string bash_completion(const CLI::App& app);
std::string zsh_completion(const CLI::App& app);
std::string fish_completion(const CLI::App& app);

// In roff, for man(1).
std::string man_page(const CLI::App& app, const std::string& version);

}  // namespace kinora::cli

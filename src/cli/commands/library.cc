#ifdef KINORA_HAS_CATALOGUE

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "catalogue/catalogue.h"
#include "cli/command_line.h"
#include "cli/terminal/output.h"
#include "cli/terminal/terminal.h"

namespace kinora::cli {
namespace {

struct LibraryFlags {
  std::string search;
  std::string forget;
  bool remove = false;
  bool json = false;
};

void print_json(const std::vector<CatalogueEntry>& entries) {
  nlohmann::json out = nlohmann::json::array();
  for (const CatalogueEntry& entry : entries) {
    out.push_back({{"name", entry.name},
                   {"path", entry.path},
                   {"sources", entry.sources},
                   {"key", entry.key},
                   {"model", entry.model},
                   {"policies", entry.policies},
                   {"frames", entry.frames},
                   {"tokens", entry.tokens},
                   {"bytes", entry.bytes},
                   {"written", entry.written},
                   {"missing", entry.missing}});
  }
  fmt::print("{}\n", out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

void print_table(const std::vector<CatalogueEntry>& entries) {
  size_t name = 4, model = 5, policies = 8;
  for (const CatalogueEntry& entry : entries) {
    name = std::max(name, entry.name.size());
    model = std::max(model, entry.model.size());
    policies = std::max(policies, entry.policies.size());
  }
  fmt::print("{:<{}}  {:<16}  {:>8}  {:>7}  {:<{}}  {:<{}}  {}\n", "name", name, "when", "size",
             "frames", "model", model, "policies", policies, "file");
  for (const CatalogueEntry& entry : entries) {
    fmt::print("{:<{}}  {:%Y-%m-%d %H:%M}  {:>8}  {:>7}  {:<{}}  {:<{}}  {}{}\n", entry.name, name,
               fmt::localtime(static_cast<std::time_t>(entry.written)), human_bytes(entry.bytes),
               entry.frames, entry.model, model, entry.policies, policies, entry.path,
               entry.missing ? " (missing)" : "");
  }
}

int forget(Catalogue& catalogue, const LibraryFlags& flags) {
  const auto entry = catalogue.find(flags.forget);
  if (!entry) {
    throw Error(ErrorKind::not_found,
                flags.forget + " is not in the library; 'kinora library' lists what is");
  }
  // The file first: an entry without a file is shown as missing, a file without one is lost.
  if (flags.remove && !entry->missing) {
    std::error_code failed;
    std::filesystem::remove(entry->path, failed);
    if (failed) {
      throw Error(ErrorKind::bad_input,
                  fmt::format("cannot remove {}: {}", entry->path, failed.message()));
    }
  }
  catalogue.forget(entry->path);
  fmt::print("{} {}\n", flags.remove ? "removed" : "forgot", entry->path);
  return 0;
}

int library(const LibraryFlags& flags) {
  const std::string place = default_catalogue();
  if (place.empty()) {
    throw Error(ErrorKind::usage, "there is no data folder: set HOME or XDG_DATA_HOME");
  }
  Catalogue catalogue(place);
  if (!flags.forget.empty()) return forget(catalogue, flags);
  const std::vector<CatalogueEntry> entries = catalogue.list(flags.search);
  if (flags.json) {
    print_json(entries);
  } else if (!entries.empty()) {
    print_table(entries);
  } else if (flags.search.empty()) {
    remark("nothing has been indexed yet: kinora index VIDEO\n");
  } else {
    remark("nothing in the library is named like '{}'\n", flags.search);
  }
  return 0;
}

}  // namespace

void add_library(CommandLine& line) {
  auto flags = std::make_shared<LibraryFlags>();
  CLI::App* command =
      line.app.add_subcommand("library", "List the saved memories on this machine, search, forget");
  command->add_option("search", flags->search, "Only those whose name or video contains this text")
      ->type_name("TEXT");
  CLI::Option* forget =
      command->add_option("--forget", flags->forget, "Take this one out of the list")
          ->type_name("NAME");
  command->add_flag("--remove", flags->remove, "With --forget: remove the file, too")
      ->needs(forget);
  command->add_flag("--json", flags->json, "Print JSON");
  command->footer(
      "Examples:\n"
      "  kinora library\n"
      "  kinora library talk --json\n"
      "  kinora library --forget talk --remove\n\n"
      "The list is $XDG_DATA_HOME/kinora/library.db, else below ~/.local/share.");
  command->callback([flags, &line] { line.action = [flags] { return library(*flags); }; });
}

}  // namespace kinora::cli

#endif

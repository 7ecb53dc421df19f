#ifdef KINORA_HAS_SERVER

#include <fmt/format.h>
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "base/device.h"
#include "base/error.h"
#include "cli/bundled.h"
#include "cli/checks.h"
#include "cli/command_line.h"
#include "cli/library_entry.h"
#include "cli/model_name.h"
#include "cli/session_flags.h"
#include "cli/terminal/output.h"
#include "cli/terminal/terminal.h"
#include "server/service.h"

namespace kinora::cli {
namespace {

// $XDG_DATA_HOME/kinora/server, else ~/.local/share/kinora/server; empty without a home.
std::string default_data() {
  if (const char* data = std::getenv("XDG_DATA_HOME"); data != nullptr && *data == '/') {
    return std::string(data) + "/kinora/server";
  }
  const char* home = std::getenv("HOME");
  return home != nullptr && *home == '/' ? std::string(home) + "/.local/share/kinora/server" : "";
}

struct ServeFlags {
  SessionFlags flags;
  server::ServiceOptions service;
  std::string key_file;
  std::string max_body, max_upload;
  std::string data = default_data();
  double drain_seconds = 30;
};

// One key a line; empty lines and lines that begin with # do not count.
std::vector<std::string> read_keys(const std::string& path) {
  std::vector<std::string> keys;
  if (const char* key = std::getenv("KINORA_API_KEY"); key != nullptr && *key != 0) {
    keys.emplace_back(key);
  }
  if (path.empty()) return keys;
  std::ifstream file(path);
  if (!file) throw Error(ErrorKind::not_found, path + ": the file of keys cannot be read");
  for (std::string line; std::getline(file, line);) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (!line.empty() && line[0] != '#') keys.push_back(line);
  }
  if (keys.empty()) throw Error(ErrorKind::usage, path + ": there is no key in it");
  return keys;
}

int64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  for (int64_t kibibytes = 0; file >> name >> kibibytes; file.ignore(64, '\n')) {
    if (name == "MemAvailable:") return kibibytes << 10;
  }
  return int64_t{4} << 30;
}

// For keys and values: what the budget leaves beside the weights; without one, half of what is
// free.
int64_t row_bytes(const SessionFlags& flags, const Engine& engine) {
  const int64_t weights = engine.describe().weight_bytes;
  if (flags.session.memory_budget > 0) {
    if (flags.session.memory_budget > weights) return flags.session.memory_budget - weights;
    throw Error(
        ErrorKind::resource,
        fmt::format("the weights alone take {}: raise the memory budget", human_bytes(weights)));
  }
  const Device device = EngineAccess::state(engine)->context.device;
  if (device.is_cpu()) return available_memory() / 2;
  const auto devices = cuda_devices();
  return std::max<int64_t>(
      1 << 20, (devices.at(static_cast<size_t>(device.index)).total_bytes - weights) / 2);
}

// A folder that is gone with the program.
class ScratchFolder {
 public:
  explicit ScratchFolder(const std::string& wanted) {
    const char* system = std::getenv("TMPDIR");
    const std::string parent = !wanted.empty()                     ? wanted
                               : system != nullptr && *system != 0 ? system
                                                                   : "/var/tmp";
    std::string pattern = parent + "/kinora-serve-XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) {
      throw Error(ErrorKind::resource, parent + ": no folder can be made there");
    }
    path_ = pattern;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

int serve(ServeFlags& serve_flags, const CancelToken& cancel) {
  SessionFlags& flags = serve_flags.flags;
  server::ServiceOptions& options = serve_flags.service;
  flags.resolve();
  options.keys = read_keys(serve_flags.key_file);
  const bool loopback = options.http.address.starts_with("127.") || options.http.address == "::1";
  if (!loopback && options.keys.empty()) {
    throw Error(ErrorKind::usage,
                fmt::format("--host {} lets other machines in: give --keys FILE or "
                            "$KINORA_API_KEY, or stay on 127.0.0.1",
                            options.http.address));
  }
  if (!serve_flags.max_body.empty()) options.max_body_bytes = parse_size(serve_flags.max_body);
  if (!serve_flags.max_upload.empty()) {
    options.max_upload_bytes = parse_size(serve_flags.max_upload);
  }
  if (!serve_flags.data.empty()) {
    options.library = serve_flags.data + "/videos";
    options.memories = serve_flags.data + "/memories";
    options.on_saved = [](const MemoryFile& file) { enter_in_library(file); };
    std::error_code error;
    std::filesystem::create_directories(options.library, error);
    if (error) {
      throw Error(ErrorKind::resource, fmt::format("{}: this folder cannot be made: {}",
                                                   options.library, error.message()));
    }
    // On the same disk, so that an upload need not be copied.
    if (options.http.spool_directory.empty()) options.http.spool_directory = serve_flags.data;
  }
  const ScratchFolder scratch(options.http.spool_directory);
  options.http.spool_directory = options.media.directory = scratch.path();
  if (options.model.empty()) options.model = model_title(flags.engine.model);
  TerminalProgress progress(flags.quiet);
  progress.update("loading", 0, 0);
  const Engine engine(flags.engine);
  progress.clear();
  options.max_row_bytes = row_bytes(flags, engine);
  flags.session.memory_budget = 0;  // the server keeps it for all sessions together
  if (!flags.quiet) {
    options.log = [](const std::string& line) { remark("{}\n", line); };
  }
  ::signal(SIGPIPE, SIG_IGN);  // those who hang up are an everyday matter here
  server::Service service(engine, flags.session, options);
  // The first line, for people and for programs that started it.
  const bool number = options.http.address.find(':') != std::string::npos;
  fmt::print("kinora serves {} on http://{}{}{}:{}/ ({} for keys and values)\n", options.model,
             number ? "[" : "", options.http.address, number ? "]" : "", service.port(),
             human_bytes(options.max_row_bytes));
  std::fflush(stdout);
  while (!cancel.cancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  service.drain(serve_flags.drain_seconds);
  return 0;
}

}  // namespace

void add_serve(CommandLine& line) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* command =
      line.app.add_subcommand("serve", "Answer over HTTP, as OpenAI's API does, and with a page");
  server::ServiceOptions& service = flags->service;
  service.http.port = 8080;
  service.http.spool_directory.clear();
  // Steps of many answers are batched, which pays more than guesses of each by itself.
  flags->flags.session.draft = "none";
  const char* network = "The network";
  const auto option = [command](const char* group, const char* name, auto& value,
                                const std::string& text) {
    return command->add_option(name, value, text)->group(group);
  };
  option(network, "--host", service.http.address, "Address to listen on")->capture_default_str();
  option(network, "--port", service.http.port, "Port; 0 is any free one")
      ->capture_default_str()
      ->check(whole(0, 65535));
  option(network, "--keys", flags->key_file,
         "A file of API keys, one a line, one of which requests must bring; also $KINORA_API_KEY")
      ->type_name("FILE");
  option(network, "--name", service.hosts,
         "A name that this server goes by besides localhost (may be repeated)")
      ->expected(1)
      ->take_all();
  option(network, "--served-name", service.model, "What clients call the model");
  const char* limits = "Limits";
  option(limits, "--media-root", service.media.roots,
         "A folder whose files requests may name (may be repeated); none: no local files")
      ->type_name("DIR")
      ->expected(1)
      ->take_all();
  command
      ->add_flag("--fetch", service.fetch,
                 "Fetch videos from http(s) addresses that requests name, outside of this network")
      ->group(limits);
  option(limits, "--fetch-from", service.fetching.allowed,
         "A private address that may be fetched from, too (may be repeated)")
      ->type_name("ADDRESS:PORT")
      ->expected(1)
      ->take_all();
  option(limits, "--stream-from", service.stream_from,
         "An address that may be watched as a stream, written as clients will (may be repeated)")
      ->type_name("ADDRESS")
      ->expected(1)
      ->take_all();
  option(limits, "--max-streams", service.max_streams, "Streams that are watched at a time")
      ->capture_default_str()
      ->check(whole(1, 1024));
  option(limits, "--data", flags->data,
         "Folder where uploaded videos and saved memories stay; default: in the user's data folder")
      ->type_name("DIR");
  option(limits, "--scratch", service.http.spool_directory, "Folder for temporary files")
      ->type_name("DIR");
  option(limits, "--max-body", flags->max_body, "Largest request (256MiB)")->type_name("SIZE");
  option(limits, "--max-upload", flags->max_upload, "Largest uploaded video (8GiB)")
      ->type_name("SIZE");
  option(limits, "--max-tokens", service.max_tokens, "Longest answer, in tokens")
      ->capture_default_str()
      ->check(whole(1));
  option(limits, "--max-running", service.max_running, "Requests that are worked on at a time")
      ->capture_default_str()
      ->check(whole(1, 1024));
  option(limits, "--max-waiting", service.max_waiting, "Requests that may wait for that")
      ->capture_default_str()
      ->check(whole(1));
  option(limits, "--timeout", service.request_seconds, "Seconds that one request may take")
      ->capture_default_str();
  option(limits, "--drain", flags->drain_seconds,
         "Seconds that requests under way get when the server is told to end")
      ->capture_default_str();
  flags->flags.add_serving_to(*command);
  command->footer(
      "Examples:\n"
      "  kinora serve\n"
      "  kinora serve -m Qwen/Qwen2.5-VL-3B-Instruct --media-root ~/videos\n"
      "  KINORA_API_KEY=… kinora serve --host 0.0.0.0 --memory-budget 24GiB\n\n"
      "Ctrl-C or SIGTERM ends it once requests under way are answered; a second one at once.\n"
      "docs/server.md shows requests with curl and with OpenAI's Python client.");
  command->callback([flags, &line] {
    line.action = [flags, &line] { return serve(*flags, line.interrupts.token()); };
  });
}

}  // namespace kinora::cli

#endif

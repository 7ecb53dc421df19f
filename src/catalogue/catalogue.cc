#include "catalogue/catalogue.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/file.h"

namespace kinora {
namespace {

constexpr int patience_ms = 10000;  // for another program that writes
constexpr int version = 1;          // of the tables

constexpr const char* make_tables =
    "CREATE TABLE IF NOT EXISTS memories ("
    "  path TEXT PRIMARY KEY, name TEXT NOT NULL, key TEXT NOT NULL, sources TEXT NOT NULL,"
    "  model TEXT NOT NULL, model_key TEXT NOT NULL, policies TEXT NOT NULL,"
    "  frames INTEGER NOT NULL, tokens INTEGER NOT NULL, bytes INTEGER NOT NULL,"
    "  written INTEGER NOT NULL) STRICT;"
    "CREATE INDEX IF NOT EXISTS memories_by_key ON memories (key);";
constexpr const char* columns =
    "path, name, key, sources, model, model_key, policies, frames, tokens, bytes, written";

std::string absolute(const std::string& path) {
  std::error_code ignored;
  const auto full = std::filesystem::weakly_canonical(path, ignored);
  return full.empty() ? path : full.string();
}

}  // namespace

class Catalogue::Statement {
 public:
  Statement(const Catalogue& catalogue, const std::string& text) : catalogue_(catalogue) {
    if (sqlite3_prepare_v2(catalogue.database_.get(), text.c_str(), -1, &handle_, nullptr) !=
        SQLITE_OK) {
      catalogue.fail("read");
    }
  }
  ~Statement() { sqlite3_finalize(handle_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  void bind(const std::string& text) {
    const auto size = static_cast<int>(text.size());
    if (sqlite3_bind_text(handle_, ++bound_, text.data(), size, SQLITE_TRANSIENT) != SQLITE_OK) {
      catalogue_.fail("write");
    }
  }
  void bind(int64_t number) {
    if (sqlite3_bind_int64(handle_, ++bound_, number) != SQLITE_OK) catalogue_.fail("write");
  }
  // Whether there is a row.
  bool step(const char* doing) {
    const int result = sqlite3_step(handle_);
    if (result != SQLITE_ROW && result != SQLITE_DONE) catalogue_.fail(doing);
    return result == SQLITE_ROW;
  }
  std::string text(int column) const {
    const auto* bytes = sqlite3_column_text(handle_, column);
    if (bytes == nullptr) return "";
    return {reinterpret_cast<const char*>(bytes),
            static_cast<size_t>(sqlite3_column_bytes(handle_, column))};
  }
  int64_t number(int column) const { return sqlite3_column_int64(handle_, column); }

 private:
  const Catalogue& catalogue_;
  sqlite3_stmt* handle_ = nullptr;
  int bound_ = 0;
};

void Catalogue::Close::operator()(sqlite3* database) const { sqlite3_close(database); }

void Catalogue::fail(const char* doing) const {
  const int code = sqlite3_errcode(database_.get());
  const bool scarce = code == SQLITE_FULL || code == SQLITE_BUSY || code == SQLITE_IOERR ||
                      code == SQLITE_NOMEM || code == SQLITE_CANTOPEN || code == SQLITE_READONLY;
  throw Error(scarce ? ErrorKind::resource : ErrorKind::bad_input,
              fmt::format("cannot {} the list of saved memories {}: {}{}", doing, path_,
                          sqlite3_errmsg(database_.get()),
                          scarce ? "" : "; move the file away to begin a new list"));
}

Catalogue::Catalogue(const std::string& path) : path_(path) {
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  sqlite3* opened = nullptr;
  const int result =
      sqlite3_open_v2(path.c_str(), &opened,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX, nullptr);
  database_.reset(opened);
  if (result != SQLITE_OK) fail("open");
  sqlite3_busy_timeout(opened, patience_ms);
  int64_t found = 0;
  {
    Statement ask(*this, "PRAGMA user_version");
    if (ask.step("open")) found = ask.number(0);
  }
  if (found > version) {
    throw Error(ErrorKind::unsupported,
                path + " was made by a newer kinora; use that one, or move the file away");
  }
  if (found == version) return;
  const std::string make =
      fmt::format("BEGIN IMMEDIATE; {} PRAGMA user_version = {}; COMMIT", make_tables, version);
  if (sqlite3_exec(opened, make.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK) fail("open");
  read_while_others_write();
}

// SQLite's own timeout does not cover this switch, and several programs may open a new list at
// once. If none of them can make it, the list works without.
void Catalogue::read_while_others_write() {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(patience_ms);
  while (std::chrono::steady_clock::now() < end) {
    const int result =
        sqlite3_exec(database_.get(), "PRAGMA journal_mode = WAL", nullptr, nullptr, nullptr);
    if (result == SQLITE_OK) return;
    if (result != SQLITE_BUSY) fail("open");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

Catalogue::~Catalogue() = default;

void Catalogue::put(const CatalogueEntry& entry) {
  Statement add(*this, fmt::format("INSERT OR REPLACE INTO memories ({}) VALUES "
                                   "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                                   columns));
  for (const std::string& text : {entry.path, entry.name, entry.key, entry.sources, entry.model,
                                  entry.model_key, entry.policies}) {
    add.bind(text);
  }
  for (const int64_t number : {entry.frames, entry.tokens, entry.bytes, entry.written}) {
    add.bind(number);
  }
  add.step("write");
}

std::vector<CatalogueEntry> Catalogue::select(const std::string& condition,
                                              const std::vector<std::string>& values) const {
  Statement find(*this, fmt::format("SELECT {} FROM memories WHERE {} ORDER BY written DESC, path",
                                    columns, condition));
  for (const std::string& value : values) find.bind(value);
  std::vector<CatalogueEntry> entries;
  while (find.step("read")) {
    CatalogueEntry entry;
    entry.path = find.text(0);
    entry.name = find.text(1);
    entry.key = find.text(2);
    entry.sources = find.text(3);
    entry.model = find.text(4);
    entry.model_key = find.text(5);
    entry.policies = find.text(6);
    entry.frames = find.number(7);
    entry.tokens = find.number(8);
    entry.bytes = find.number(9);
    entry.written = find.number(10);
    entry.missing = !real_files().is_file(entry.path);
    entries.push_back(std::move(entry));
  }
  return entries;
}

std::vector<CatalogueEntry> Catalogue::list(std::string_view search) const {
  // instr and lower take the text as it is: nothing in it is a wildcard.
  const std::string text(search);
  return select("instr(lower(name), lower(?)) OR instr(lower(sources), lower(?))", {text, text});
}

std::optional<CatalogueEntry> Catalogue::find_key(std::string_view key) const {
  if (key.empty()) return std::nullopt;
  for (CatalogueEntry& entry : select("key = ?", {std::string(key)})) {
    if (!entry.missing) return std::move(entry);
  }
  return std::nullopt;
}

std::optional<CatalogueEntry> Catalogue::find(const std::string& name_or_path) const {
  auto entries = select("path = ?", {absolute(name_or_path)});
  if (entries.empty()) entries = select("name = ?", {name_or_path});
  if (entries.empty()) return std::nullopt;
  if (entries.size() > 1) {
    throw Error(ErrorKind::usage, fmt::format("{} may be {} or {}; give one of these paths",
                                              name_or_path, entries[0].path, entries[1].path));
  }
  return std::move(entries.front());
}

bool Catalogue::forget(const std::string& path) {
  Statement remove(*this, "DELETE FROM memories WHERE path = ?");
  remove.bind(path);
  remove.step("write");
  return sqlite3_changes(database_.get()) > 0;
}

CatalogueEntry entry_of(const MemoryFile& file) {
  CatalogueEntry entry;
  entry.path = absolute(file.path);
  entry.name = std::filesystem::path(file.path).stem().string();
  entry.key = file.key;
  for (const MemoryFileInput& input : file.inputs) {
    entry.sources += (entry.sources.empty() ? "" : "\n") + input.source;
    entry.frames += input.frames;
  }
  entry.model = file.model;
  entry.model_key = file.model_key;
  entry.policies = file.memory;
  if (file.token_choice != "all") entry.policies += ", tokens " + file.token_choice;
  if (file.retain != "all") entry.policies += ", " + file.retain;
  if (file.attention != "dense") entry.policies += ", " + file.attention;
  entry.policies += ", " + file.row_type + " rows";
  entry.tokens = file.tokens;
  entry.bytes = file.bytes;
  entry.written = file.written;
  return entry;
}

std::string default_catalogue() {
  if (const char* data = std::getenv("XDG_DATA_HOME"); data != nullptr && *data != '\0') {
    return join_path(data, "kinora/library.db");
  }
  const char* home = std::getenv("HOME");
  return home == nullptr || *home == '\0' ? "" : join_path(home, ".local/share/kinora/library.db");
}

}  // namespace kinora

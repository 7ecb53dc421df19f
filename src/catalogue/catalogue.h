// The saved memories that kinora knows on this machine: one SQLite database in the user's data
// folder, shared by every program that indexes videos or answers about them, at the same time if
// need be. It only points at files; what a file holds the file itself says. Used by `kinora index`,
// `kinora library` and the server.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <kinora/memory_file.h>

struct sqlite3;

namespace kinora {

struct CatalogueEntry {
  std::string path;     // absolute
  std::string name;     // the file's name without its ending
  std::string key;      // MemoryFile::key; may be empty
  std::string sources;  // what it was made of, one per line
  std::string model;
  std::string model_key;
  std::string policies;  // "mosaic, key-norm:0.5, bf16 rows"
  int64_t frames = 0;
  int64_t tokens = 0;
  int64_t bytes = 0;
  int64_t written = 0;   // seconds since 1970
  bool missing = false;  // there is no such file any more
};

// What the catalogue will say of a file.
CatalogueEntry entry_of(const MemoryFile& file);

// Thread-safe. Throws an error of kind resource or bad_input that names the database.
class Catalogue {
 public:
  // Opens the database, or makes it with the folders above it.
  explicit Catalogue(const std::string& path);
  ~Catalogue();
  Catalogue(const Catalogue&) = delete;
  Catalogue& operator=(const Catalogue&) = delete;

  // Adds an entry, in place of what was known of the same path.
  void put(const CatalogueEntry& entry);
  // Newest first: all, or those whose name or source contains the text in any case of letters.
  std::vector<CatalogueEntry> list(std::string_view search = "") const;
  // The newest file of this key that is there.
  std::optional<CatalogueEntry> find_key(std::string_view key) const;
  // By path, or by a name that only one has. Throws a usage error where several have it.
  std::optional<CatalogueEntry> find(const std::string& name_or_path) const;
  // Takes it out of the list; the file stays. False if it was not there.
  bool forget(const std::string& path);

 private:
  struct Close {
    void operator()(sqlite3* database) const;
  };
  class Statement;
  std::vector<CatalogueEntry> select(const std::string& condition,
                                     const std::vector<std::string>& values) const;
  [[noreturn]] void fail(const char* doing) const;
  void read_while_others_write();

  std::string path_;
  std::unique_ptr<sqlite3, Close> database_;
};

// $XDG_DATA_HOME/kinora/library.db, else below ~/.local/share; empty without either.
std::string default_catalogue();

}  // namespace kinora

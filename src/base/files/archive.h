// Files of named sections that are written once and read in pieces: saved memories. Every byte is
// covered by a checksum (XXH3, 64 bits), page by page, so that a section of many gigabytes can be
// read where it is needed and nothing damaged is ever used. docs/memory-files.md has the layout.
//
// A writer fills a file beside the target and puts it in its place when all of it is on the disk: a
// crash at any moment leaves what was there before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kinora {

struct ArchiveSection {
  std::string name;
  int64_t offset = 0;  // in the file
  int64_t bytes = 0;
  int64_t page = 0;     // bytes that one checksum covers
  uint64_t checks = 0;  // checksum of these checksums

  int64_t pages() const { return bytes / page + (bytes % page != 0 ? 1 : 0); }
};

class ArchiveWriter {
 public:
  // `progress` is told the bytes written so far; what it throws ends the writing. Throws a resource
  // error if another process is writing the same file.
  explicit ArchiveWriter(std::string path, std::function<void(int64_t bytes)> progress = nullptr);
  ~ArchiveWriter();  // leaves nothing behind unless it was committed
  ArchiveWriter(const ArchiveWriter&) = delete;
  ArchiveWriter& operator=(const ArchiveWriter&) = delete;

  // A section in pieces: begin, append …, end.
  void begin(std::string_view name, int64_t page = int64_t{1} << 16);
  void append(const void* bytes, size_t count);
  void end();
  // A whole section.
  void add(std::string_view name, std::string_view bytes);

  // Makes it durable and puts it in the place of what was there. Nothing can be added afterwards.
  void commit();
  int64_t bytes() const { return offset_; }  // written so far

 private:
  void write(const void* bytes, size_t count);
  void close_page();
  void pad(int64_t multiple);
  void open_beside();
  void give_up();

  std::string path_;
  std::string beside_;
  std::function<void(int64_t)> progress_;
  int file_ = -1;
  int64_t offset_ = 0;
  std::vector<ArchiveSection> sections_;
  bool within_ = false;           // a section that has not ended
  std::string page_;              // of it, not yet written
  std::vector<uint64_t> checks_;  // of its pages
};

// Thread-safe.
class Archive {
 public:
  // Reads the table of sections. Throws bad_input for a file of another kind, one that was cut off
  // or damaged, and unsupported for a newer version.
  static std::shared_ptr<const Archive> open(const std::string& path);
  // Whether a file begins as one of these does.
  static bool is_one(const std::string& path);
  ~Archive();
  Archive(const Archive&) = delete;
  Archive& operator=(const Archive&) = delete;

  const std::string& path() const { return path_; }
  int64_t bytes() const { return bytes_; }
  const std::vector<ArchiveSection>& sections() const { return sections_; }
  bool has(std::string_view name) const;
  // Throws bad_input if there is none.
  const ArchiveSection& section(std::string_view name) const;
  // All of a small section, checked.
  std::string read(std::string_view name) const;

  // Checksums of a section's pages, themselves checked.
  std::vector<uint64_t> checks(const ArchiveSection& section) const;
  // Pages [first, first + count) of it, checked. `out` has room for them.
  void read_pages(const ArchiveSection& section, std::span<const uint64_t> checks, int64_t first,
                  int64_t count, std::byte* out) const;
  // These pages will be read soon: the disk may begin.
  void announce(const ArchiveSection& section, int64_t first, int64_t count) const;
  [[noreturn]] void refuse(const std::string& why) const;  // bad_input, with the file's name

 private:
  explicit Archive(std::string path) : path_(std::move(path)) {}
  void read_table();
  void read_at(int64_t offset, void* out, size_t count) const;

  std::string path_;
  int file_ = -1;
  int64_t bytes_ = 0;
  std::vector<ArchiveSection> sections_;
};

}  // namespace kinora

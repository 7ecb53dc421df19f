#include "base/files/archive.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/files/byte_stream.h"
#include "base/files/content_key.h"
#include "base/files/errno_kind.h"

namespace kinora {
namespace {

constexpr std::string_view magic = "\x89KINORA\n";
constexpr uint32_t version = 2;
constexpr int64_t header_bytes = 64;
constexpr int64_t alignment = 4096;  // of sections
constexpr int64_t largest_page = int64_t{1} << 24;
constexpr int64_t largest_table = int64_t{1} << 28;

struct Header {
  int64_t table = 0;  // offset
  int64_t table_bytes = 0;
  uint64_t table_check = 0;
  int64_t file_bytes = 0;
};

// The last eight bytes are the checksum of those before.
std::string pack(const Header& header) {
  ByteWriter out;
  out.put(version);
  out.put(uint32_t{0});
  out.put(header.table);
  out.put(header.table_bytes);
  out.put(header.table_check);
  out.put(header.file_bytes);
  out.put(uint64_t{0});
  std::string bytes = std::string(magic) + out.bytes();
  const uint64_t check = content_checksum(bytes);
  bytes.append(reinterpret_cast<const char*>(&check), sizeof check);
  return bytes;
}

std::string_view view_of(const void* bytes, size_t count) {
  return {static_cast<const char*>(bytes), count};
}

[[noreturn]] void fail_on(const std::string& path, const char* doing, int code) {
  const bool full = code == ENOSPC || code == EDQUOT || code == EFBIG;
  throw Error(kind_of_errno(code), std::string("cannot ") + doing + " " + path + ": " +
                                       std::strerror(code) +
                                       (full ? "; what was there before is as it was" : ""));
}

}  // namespace

ArchiveWriter::ArchiveWriter(std::string path, std::function<void(int64_t)> progress)
    : path_(std::move(path)), beside_(path_ + ".part"), progress_(std::move(progress)) {
  struct ::stat known {};
  if (::stat(path_.c_str(), &known) == 0 && !S_ISREG(known.st_mode)) {
    throw Error(ErrorKind::bad_input, path_ + " is not a file: give the name of one to write");
  }
  open_beside();
  try {
    write(std::string(header_bytes, '\0').data(), header_bytes);
  } catch (...) {
    give_up();
    throw;
  }
}

// Not opened exclusively: it is the lock that says whether another process writes, and it goes with
// that process, so that what a crash left is used again. What else somebody left in its place, a
// link, a pipe or a second name of another file, is not written to.
void ArchiveWriter::open_beside() {
  for (;;) {
    file_ = ::open(beside_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (file_ < 0) fail_on(path_, "write", errno);
    struct ::stat mine {
    }, there{};
    const bool locked = ::flock(file_, LOCK_EX | LOCK_NB) == 0;
    // Meanwhile another process may have put the file in its place.
    const bool same = ::fstat(file_, &mine) == 0 && ::stat(beside_.c_str(), &there) == 0 &&
                      mine.st_ino == there.st_ino && mine.st_dev == there.st_dev;
    const bool own = S_ISREG(mine.st_mode) && mine.st_nlink == 1;
    if (locked && same && own) {
      if (::ftruncate(file_, 0) == 0) return;
      const int code = errno;
      ::close(std::exchange(file_, -1));
      fail_on(path_, "write", code);
    }
    ::close(std::exchange(file_, -1));
    if (!locked) throw Error(ErrorKind::resource, path_ + " is being written by another process");
    if (same) {
      throw Error(ErrorKind::bad_input,
                  beside_ + " stands where " + path_ + " is to be written; remove it");
    }
  }
}

void ArchiveWriter::give_up() {
  if (file_ < 0) return;
  ::unlink(beside_.c_str());
  ::close(std::exchange(file_, -1));
}

ArchiveWriter::~ArchiveWriter() { give_up(); }

void ArchiveWriter::write(const void* bytes, size_t count) {
  const auto* from = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t done = ::write(file_, from, count);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail_on(path_, "write", errno);
    from += done;
    count -= static_cast<size_t>(done);
    offset_ += done;
  }
}

void ArchiveWriter::pad(int64_t multiple) {
  const int64_t over = offset_ % multiple;
  if (over == 0) return;
  const std::string zeros(static_cast<size_t>(multiple - over), '\0');
  write(zeros.data(), zeros.size());
}

void ArchiveWriter::begin(std::string_view name, int64_t page) {
  if (within_ || file_ < 0 || page <= 0 || page > largest_page) {
    throw Error(ErrorKind::internal, "sections are written one after another");
  }
  pad(alignment);
  sections_.push_back({std::string(name), offset_, 0, page, 0});
  within_ = true;
  checks_.clear();
}

void ArchiveWriter::close_page() {
  checks_.push_back(content_checksum(page_));
  write(page_.data(), page_.size());
  page_.clear();
  if (progress_) progress_(offset_);
}

void ArchiveWriter::append(const void* bytes, size_t count) {
  const auto page = static_cast<size_t>(sections_.back().page);
  sections_.back().bytes += static_cast<int64_t>(count);
  std::string_view left = view_of(bytes, count);
  while (!left.empty()) {
    const size_t taken = std::min(left.size(), page - page_.size());
    page_.append(left.substr(0, taken));
    left.remove_prefix(taken);
    if (page_.size() == page) close_page();
  }
}

void ArchiveWriter::end() {
  if (!within_) throw Error(ErrorKind::internal, "there is no section to end");
  if (!page_.empty()) close_page();
  pad(sizeof(uint64_t));
  const std::string_view checks = view_of(checks_.data(), checks_.size() * sizeof(uint64_t));
  sections_.back().checks = content_checksum(checks);
  write(checks.data(), checks.size());
  within_ = false;
}

void ArchiveWriter::add(std::string_view name, std::string_view bytes) {
  begin(name);
  append(bytes.data(), bytes.size());
  end();
}

void ArchiveWriter::commit() {
  if (within_ || file_ < 0) throw Error(ErrorKind::internal, "a section has not ended");
  ByteWriter table;
  table.put(static_cast<uint32_t>(sections_.size()));
  for (const ArchiveSection& section : sections_) {
    table.put(std::string_view(section.name));
    table.put(section.offset);
    table.put(section.bytes);
    table.put(section.page);
    table.put(section.checks);
  }
  pad(sizeof(uint64_t));
  Header header{offset_, static_cast<int64_t>(table.bytes().size()),
                content_checksum(table.bytes()), 0};
  write(table.bytes().data(), table.bytes().size());
  header.file_bytes = offset_;
  if (::lseek(file_, 0, SEEK_SET) < 0) fail_on(path_, "write", errno);
  const std::string first = pack(header);
  write(first.data(), first.size());
  offset_ = header.file_bytes;
  if (::fsync(file_) != 0) fail_on(path_, "write", errno);
  if (::rename(beside_.c_str(), path_.c_str()) != 0) fail_on(path_, "write", errno);
  ::close(std::exchange(file_, -1));
  // The new name must survive a crash as well; some file systems know no such request.
  const std::string folder = std::filesystem::path(path_).parent_path().string();
  const int directory = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_CLOEXEC);
  if (directory < 0) return;
  ::fsync(directory);
  ::close(directory);
}

bool Archive::is_one(const std::string& path) {
  struct ::stat known {};
  if (::stat(path.c_str(), &known) != 0 || !S_ISREG(known.st_mode)) return false;
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  char first[8] = {};
  const ssize_t got = ::pread(file, first, magic.size(), 0);
  ::close(file);
  return got == static_cast<ssize_t>(magic.size()) && view_of(first, magic.size()) == magic;
}

std::shared_ptr<const Archive> Archive::open(const std::string& path) {
  std::shared_ptr<Archive> archive(new Archive(path));
  archive->read_table();
  return archive;
}

Archive::~Archive() {
  if (file_ >= 0) ::close(file_);
}

void Archive::refuse(const std::string& why) const {
  throw Error(ErrorKind::bad_input, path_ + " " + why);
}

void Archive::read_at(int64_t offset, void* out, size_t count) const {
  auto* to = static_cast<char*>(out);
  while (count > 0) {
    const ssize_t got = ::pread(file_, to, count, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_on(path_, "read", errno);
    if (got == 0) refuse("was cut off while it was in use");
    to += got;
    offset += got;
    count -= static_cast<size_t>(got);
  }
}

void Archive::read_table() {
  file_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (file_ < 0) fail_on(path_, "open", errno);
  struct ::stat known {};
  if (::fstat(file_, &known) != 0) fail_on(path_, "open", errno);
  if (!S_ISREG(known.st_mode)) refuse("is not a file");
  bytes_ = known.st_size;
  const std::string damaged = "is damaged: make it again";
  char first[header_bytes] = {};
  read_at(0, first, static_cast<size_t>(std::min(bytes_, header_bytes)));
  if (!view_of(first, header_bytes).starts_with(magic)) refuse("is not a saved memory");
  if (bytes_ < header_bytes) refuse("is cut off: make it again");
  uint32_t found = 0;
  std::memcpy(&found, first + magic.size(), sizeof found);
  uint64_t check = 0;
  std::memcpy(&check, first + header_bytes - sizeof check, sizeof check);
  if (check != content_checksum(view_of(first, header_bytes - sizeof check))) refuse(damaged);
  if (found != version) {
    throw Error(ErrorKind::unsupported, path_ + " is a saved memory of version " +
                                            std::to_string(found) + ", this kinora reads version " +
                                            std::to_string(version) +
                                            ": make it again, or use the kinora that wrote it");
  }
  ByteReader in(view_of(first, header_bytes).substr(magic.size() + 8), path_);
  Header header;
  header.table = in.get<int64_t>();
  header.table_bytes = in.get<int64_t>();
  header.table_check = in.get<uint64_t>();
  header.file_bytes = in.get<int64_t>();
  if (bytes_ != header.file_bytes) {
    refuse("has " + std::to_string(bytes_) + " of " + std::to_string(header.file_bytes) +
           " bytes: make it again");
  }
  if (header.table < header_bytes || header.table_bytes < 0 ||
      header.table_bytes > std::min(largest_table, bytes_ - header.table)) {
    refuse(damaged);
  }
  std::string table(static_cast<size_t>(header.table_bytes), '\0');
  read_at(header.table, table.data(), table.size());
  if (content_checksum(table) != header.table_check) refuse(damaged);
  ByteReader rows(table, path_);
  const auto count = rows.get<uint32_t>();
  for (uint32_t i = 0; i < count; ++i) {
    ArchiveSection section;
    section.name = rows.text();
    section.offset = rows.get<int64_t>();
    section.bytes = rows.get<int64_t>();
    section.page = rows.get<int64_t>();
    section.checks = rows.get<uint64_t>();
    const bool inside = section.offset >= header_bytes && section.bytes >= 0 &&
                        section.bytes <= header.table - section.offset && section.page > 0 &&
                        section.page <= largest_page &&
                        section.pages() <= (header.table - section.offset) / 8;
    if (!inside) refuse(damaged);
    sections_.push_back(std::move(section));
  }
  rows.end();
}

bool Archive::has(std::string_view name) const {
  return std::any_of(sections_.begin(), sections_.end(),
                     [&](const ArchiveSection& section) { return section.name == name; });
}

const ArchiveSection& Archive::section(std::string_view name) const {
  const auto found =
      std::find_if(sections_.begin(), sections_.end(),
                   [&](const ArchiveSection& section) { return section.name == name; });
  if (found == sections_.end()) refuse("lacks its part '" + std::string(name) + "': make it again");
  return *found;
}

std::vector<uint64_t> Archive::checks(const ArchiveSection& section) const {
  const int64_t begin = (section.offset + section.bytes + 7) / 8 * 8;
  std::vector<uint64_t> checks(static_cast<size_t>(section.pages()));
  const size_t bytes = checks.size() * sizeof(uint64_t);
  if (begin + static_cast<int64_t>(bytes) > bytes_) refuse("is damaged: make it again");
  read_at(begin, checks.data(), bytes);
  if (content_checksum(view_of(checks.data(), bytes)) != section.checks) {
    refuse("is damaged in '" + section.name + "': make it again");
  }
  return checks;
}

void Archive::announce(const ArchiveSection& section, int64_t first, int64_t count) const {
  ::posix_fadvise(file_, section.offset + first * section.page, count * section.page,
                  POSIX_FADV_WILLNEED);
}

void Archive::read_pages(const ArchiveSection& section, std::span<const uint64_t> checks,
                         int64_t first, int64_t count, std::byte* out) const {
  if (first < 0 || count < 0 || first + count > section.pages()) {
    throw Error(ErrorKind::internal, "there are no such pages in a section");
  }
  if (count == 0) return;
  const int64_t begin = first * section.page;
  const int64_t end = std::min(section.bytes, (first + count) * section.page);
  read_at(section.offset + begin, out, static_cast<size_t>(end - begin));
  for (int64_t i = first; i < first + count; ++i) {
    const int64_t at = i * section.page;
    const int64_t size = std::min(section.page, section.bytes - at);
    if (content_checksum(view_of(out + (at - begin), static_cast<size_t>(size))) !=
        checks[static_cast<size_t>(i)]) {
      refuse("is damaged in '" + section.name + "', near byte " +
             std::to_string(section.offset + at) + ": make it again");
    }
  }
}

std::string Archive::read(std::string_view name) const {
  const ArchiveSection& found = section(name);
  std::string bytes(static_cast<size_t>(found.bytes), '\0');
  read_pages(found, checks(found), 0, found.pages(), reinterpret_cast<std::byte*>(bytes.data()));
  return bytes;
}

}  // namespace kinora

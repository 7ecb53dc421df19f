#include "eval/token_folder.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace kinora {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view suffix = ".tokens";
constexpr uint64_t format_mark = 0x3230'4b4f'544e'4956u;  // VINTOK02; also tells byte orders apart

struct Header {
  uint64_t mark = format_mark;
  std::array<uint64_t, 2> key{};
  int64_t rows = 0;
  int64_t columns = 0;
  std::array<uint64_t, 2> checksum{};
};

struct StoredFile {
  fs::path path;
  int64_t bytes = 0;
  fs::file_time_type used;
};

std::vector<StoredFile> stored_files(const std::string& directory) {
  std::vector<StoredFile> files;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() != suffix) continue;
    StoredFile file{entry->path(), 0, {}};
    const auto size = entry->file_size(error);
    if (!error) file.used = entry->last_write_time(error);
    if (error) {  // another process was faster
      error.clear();
      continue;
    }
    file.bytes = static_cast<int64_t>(size);
    files.push_back(std::move(file));
  }
  return files;
}

}  // namespace

TokenFolder::TokenFolder(std::string directory, int64_t limit_bytes)
    : directory_(std::move(directory)), limit_bytes_(limit_bytes) {
  std::error_code error;
  fs::create_directories(directory_, error);
  if (!real_files().is_directory(directory_)) {
    throw Error(ErrorKind::not_found, directory_ + ": cannot keep visual tokens there (" +
                                          error.message() + "); give another folder, or none");
  }
  for (const StoredFile& file : stored_files(directory_)) bytes_ += file.bytes;
}

std::string TokenFolder::path(const ContentKey& key) const {
  return join_path(directory_, key.text() + std::string(suffix));
}

std::optional<Tensor> TokenFolder::find(const ContentKey& key) {
  const std::string name = path(key);
  try {
    if (!real_files().is_file(name)) return std::nullopt;
    const auto file = real_files().map(name);
    const auto bytes = file->bytes();
    Header header;
    if (bytes.size() < sizeof header) return std::nullopt;
    std::memcpy(&header, bytes.data(), sizeof header);
    const auto room = static_cast<int64_t>((bytes.size() - sizeof header) / sizeof(float));
    if (header.mark != format_mark || header.key != key.value() || header.rows < 1 ||
        header.columns < 1 || header.rows > room || header.columns > room ||
        header.rows * header.columns != room) {
      return std::nullopt;
    }
    ContentKey checksum;
    checksum.add(bytes.data() + sizeof header, bytes.size() - sizeof header);
    if (header.checksum != checksum.value()) return std::nullopt;
    Tensor tokens(DType::f32, {header.rows, header.columns});
    std::memcpy(tokens.view().raw(), bytes.data() + sizeof header, bytes.size() - sizeof header);
    std::error_code ignored;
    fs::last_write_time(name, fs::file_time_type::clock::now(), ignored);
    return tokens;
  } catch (const Error&) {  // it went away between the look and the reading
    return std::nullopt;
  }
}

void TokenFolder::store(const ContentKey& key, ConstTensorView tokens) {
  const auto count = static_cast<size_t>(tokens.bytes());
  const auto bytes = static_cast<int64_t>(count + sizeof(Header));
  if (tokens.dtype() != DType::f32 || tokens.rank() != 2 || !tokens.contiguous() || count == 0 ||
      bytes > limit_bytes_) {
    return;
  }
  Header header;
  header.key = key.value();
  header.rows = tokens.size(0);
  header.columns = tokens.size(1);
  ContentKey checksum;
  checksum.add(tokens.raw(), count);
  header.checksum = checksum.value();
  std::string content(sizeof header + count, '\0');
  std::memcpy(content.data(), &header, sizeof header);
  std::memcpy(content.data() + sizeof header, tokens.raw(), count);
  const std::lock_guard lock(mutex_);
  try {
    real_files().write(path(key), content);
    bytes_ += bytes;
  } catch (const Error&) {
    return;
  }
  if (bytes_ > limit_bytes_) make_room();
}

int64_t TokenFolder::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

// Down to nine tenths of the limit, so that not every store has to look through the folder.
void TokenFolder::make_room() {
  std::vector<StoredFile> files = stored_files(directory_);
  std::sort(files.begin(), files.end(),
            [](const StoredFile& a, const StoredFile& b) { return a.used < b.used; });
  bytes_ = 0;
  for (const StoredFile& file : files) bytes_ += file.bytes;
  for (const StoredFile& file : files) {
    if (bytes_ <= limit_bytes_ / 10 * 9) break;
    std::error_code ignored;
    fs::remove(file.path, ignored);
    bytes_ -= file.bytes;
  }
}

}  // namespace kinora

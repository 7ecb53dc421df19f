#include "memory/row_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/files/content_key.h"
#include "base/files/errno_kind.h"

namespace kinora {
namespace {

std::string directory() {
  const char* chosen = std::getenv("TMPDIR");
  return chosen != nullptr && *chosen != '\0' ? chosen : "/var/tmp";
}

[[noreturn]] void fail(const char* doing, int code) {
  throw Error(kind_of_errno(code), std::string("cannot ") + doing + " the file of old rows in " +
                                       directory() + ": " + std::strerror(code) +
                                       "; make room, or set TMPDIR");
}

std::string_view view_of(const std::byte* bytes) {
  return {reinterpret_cast<const char*>(bytes), static_cast<size_t>(RowFile::page)};
}

}  // namespace

RowFile::RowFile() {
  std::string pattern = directory() + "/kinora-rows-XXXXXX";
  file_ = ::mkostemp(pattern.data(), O_CLOEXEC);
  if (file_ < 0) fail("make", errno);
  ::unlink(pattern.c_str());
}

RowFile::~RowFile() { ::close(file_); }

std::vector<RowFile::Page> RowFile::write(std::span<const std::byte> bytes) {
  if (static_cast<int64_t>(bytes.size()) % page != 0) {
    throw Error(ErrorKind::internal, "old rows are written in whole pages");
  }
  int64_t offset = 0;
  {
    const std::lock_guard lock(mutex_);
    offset = end_;
    end_ += static_cast<int64_t>(bytes.size());
  }
  std::vector<Page> pages;
  for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(page)) {
    pages.push_back({offset + static_cast<int64_t>(at), content_checksum(view_of(&bytes[at]))});
  }
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t done =
        ::pwrite(file_, bytes.data() + at, bytes.size() - at, offset + static_cast<int64_t>(at));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail("write", errno);
    at += static_cast<size_t>(done);
  }
  return pages;
}

void RowFile::read(std::span<const Page> pages, int64_t first, int64_t count,
                   std::byte* out) const {
  const auto run_from = [&](int64_t begin) {  // the end of those that lie together
    int64_t end = begin + 1;
    while (end < first + count && pages[static_cast<size_t>(end)].offset ==
                                      pages[static_cast<size_t>(end - 1)].offset + page) {
      ++end;
    }
    return end;
  };
  for (int64_t at = first; at < first + count;) {
    const int64_t end = run_from(at);
    ::posix_fadvise(file_, pages[static_cast<size_t>(at)].offset, (end - at) * page,
                    POSIX_FADV_WILLNEED);
    at = end;
  }
  for (int64_t at = first; at < first + count;) {
    const int64_t end = run_from(at);
    std::byte* const to = out + (at - first) * page;
    const int64_t offset = pages[static_cast<size_t>(at)].offset;
    for (int64_t done = 0; done < (end - at) * page;) {
      const ssize_t got =
          ::pread(file_, to + done, static_cast<size_t>((end - at) * page - done), offset + done);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) fail("read", got < 0 ? errno : EIO);
      done += got;
    }
    for (int64_t i = at; i < end; ++i) {
      if (content_checksum(view_of(to + (i - at) * page)) != pages[static_cast<size_t>(i)].check) {
        throw Error(ErrorKind::resource,
                    "old rows came back from the disk damaged: ask again, or open the video anew");
      }
    }
    at = end;
  }
}

int64_t RowFile::bytes() const {
  const std::lock_guard lock(mutex_);
  return end_;
}

}  // namespace kinora

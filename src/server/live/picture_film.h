// Pictures that come one by one become a film: Matroska as it can be written without knowing its
// end, one cluster a picture, each at its own time. Pure. Used by push_feed.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kinora::server {

enum class PictureKind { jpeg, png };

struct PictureHead {
  PictureKind kind = PictureKind::jpeg;
  int64_t width = 0;
  int64_t height = 0;
};

// Of the bytes of a picture; none for anything else.
std::optional<PictureHead> picture_head(std::string_view bytes);

// What comes before the first picture.
std::string film_head(const PictureHead& picture);
// One picture at this many milliseconds.
std::string film_picture(std::string_view bytes, int64_t milliseconds);

}  // namespace kinora::server

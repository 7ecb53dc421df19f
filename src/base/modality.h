// What a token came from. Attention patterns, pruning and evidence all ask this of every row.
#pragma once

#include <cstdint>
#include <string_view>

namespace kinora {

enum class Modality : uint8_t { text, image, video, audio };

constexpr std::string_view modality_name(Modality modality) {
  switch (modality) {
    case Modality::text:
      return "text";
    case Modality::image:
      return "image";
    case Modality::video:
      return "video";
    case Modality::audio:
      return "audio";
  }
  return "?";
}

}  // namespace kinora

// The AV1 side of packet_inspector.h: reads sequence and frame headers far enough to know which
// reference slots a frame refreshes. A frame that refreshes none is disposable.
#pragma once

#include <memory>

#include "video/index/packet_inspector.h"

namespace kinora {

std::unique_ptr<PacketInspector> make_av1_inspector(std::span<const uint8_t> extradata);

}  // namespace kinora

// Memories as people choose them. A new one is a header, a file that describes it,
// a test and a line of policies.cc.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "base/policy/policy.h"
#include "memory/memory.h"
#include "memory/retention/retention.h"

namespace kinora {

// What every memory is made from.
struct MemoryOptions {
  RowLayout layout;
  Device device;
  Retention retention;  // what a group of frames leaves
};

struct MemoryPolicy {
  PolicyInfo info;
  std::function<std::unique_ptr<Memory>(std::span<const GivenSetting> given,
                                        const MemoryOptions& options)>
      make;
};

const std::vector<MemoryPolicy>& memory_policies();
const PolicyPoint& memory_point();

// By name, with settings after a colon. Throws a usage error that lists the choices.
std::unique_ptr<Memory> make_memory(std::string_view text, const MemoryOptions& options);

}  // namespace kinora

#include "memory/policies.h"

namespace kinora {

// Each is described in a file of its own.
MemoryPolicy flat_policy();

const std::vector<MemoryPolicy>& memory_policies() {
  static const std::vector<MemoryPolicy> policies = {
      flat_policy(),
  };
  return policies;
}

const PolicyPoint& memory_point() {
  static const PolicyPoint point{
      .name = "memory",
      .summary = "how rows are organised and which of them a question reads",
      .form = "NAME",
      .initial = "flat",
      .policies = infos_of(memory_policies()),
      .check = [](std::string_view text) { check_described(text, infos_of(memory_policies())); }};
  return point;
}

std::unique_ptr<Memory> make_memory(std::string_view text, const MemoryOptions& options) {
  return in_words("memory", text, [&] {
    const PolicyText parts = split_policy(text);
    return find_policy(parts.name, memory_policies()).make(parts.settings, options);
  });
}

}  // namespace kinora

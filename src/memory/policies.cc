#include "memory/policies.h"

namespace kinora {

// Each is described in a file of its own.
MemoryPolicy flat_policy();
MemoryPolicy sliding_policy();
MemoryPolicy uniform_policy();
MemoryPolicy frame_retrieval_policy();
MemoryPolicy compact_policy();
MemoryPolicy mosaic_policy();

const std::vector<MemoryPolicy>& memory_policies() {
  static const std::vector<MemoryPolicy> policies = {
      flat_policy(),
      sliding_policy(),
      uniform_policy(),
      frame_retrieval_policy(),
      compact_policy(),
      mosaic_policy(),
  };
  return policies;
}

namespace {

std::unique_ptr<Memory> make(std::string_view text, const MemoryOptions& options) {
  const PolicyText parts = split_policy(text);
  return find_policy(parts.name, memory_policies()).make(parts.settings, options);
}

}  // namespace

const PolicyPoint& memory_point() {
  static const PolicyPoint point{
      .name = "memory",
      .summary = "how rows are organised and which of them a question reads",
      .form = "NAME[:key=value,…]",
      .initial = "flat",
      .policies = infos_of(memory_policies()),
      // Settings are read when a memory is made; one for the smallest of models costs nothing.
      .check = [](std::string_view text) { make(text, {RowLayout{1, 1, 2}, {}, {}}); }};
  return point;
}

std::unique_ptr<Memory> make_memory(std::string_view text, const MemoryOptions& options) {
  return in_words("memory", text, [&] { return make(text, options); });
}

}  // namespace kinora

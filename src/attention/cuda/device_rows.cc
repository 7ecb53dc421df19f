#include "attention/cuda/device_rows.h"

#include <algorithm>

#include "base/error.h"

namespace kinora {
namespace {

DeviceRowSet on_device(const RowSet& set) {
  DeviceRowSet out{};
  out.keys = set.keys.raw();
  out.values = set.values.raw();
  if (set.listed()) out.list = set.list.data<int32_t>();
  if (set.weighted()) out.weights = set.weights.data<float>();
  out.serves = set.serves.empty() ? ~uint64_t{0} : 0;
  for (const int32_t query : set.serves) out.serves |= uint64_t{1} << query;
  out.count = set.count();
  return out;
}

// Fewer rows are not worth a second kernel.
constexpr int64_t least_shared_rows = 512;

bool share(const DeviceSequence& a, const DeviceSequence& b) {
  const void* rows = shareable_rows(a);
  return rows != nullptr && rows == shareable_rows(b) && a.sets[0].values == b.sets[0].values;
}

}  // namespace

const void* shareable_rows(const DeviceSequence& sequence) {
  const DeviceRowSet& set = sequence.sets[0];
  const bool plain = set.list == nullptr && set.weights == nullptr && set.serves == ~uint64_t{0};
  const bool there = sequence.tokens > 0 && sequence.own != 0;
  return there && plain && set.count >= least_shared_rows ? set.keys : nullptr;
}

std::vector<SharedRun> shared_runs(std::span<const std::vector<DeviceSequence>> layers) {
  std::vector<SharedRun> runs;
  if (layers.empty()) return runs;
  const size_t count = layers.front().size();
  for (size_t first = 0; first < count;) {
    size_t end = first + 1;
    const auto alike = [&](const std::vector<DeviceSequence>& layer) {
      return share(layer[first], layer[end]);
    };
    while (end < count && std::all_of(layers.begin(), layers.end(), alike)) ++end;
    if (end - first > 1) runs.push_back({first, end - first});
    first = end;
  }
  return runs;
}

SharedTables share_rows(std::span<const DeviceSequence> sequences, std::span<const SharedRun> runs,
                        int64_t row_bytes) {
  SharedTables tables{{sequences.begin(), sequences.end()}, {}};
  for (const SharedRun& run : runs) {
    const std::span<DeviceSequence> members = std::span(tables.rest).subspan(run.first, run.count);
    DeviceSequence group;
    group.sets[0] = members[0].sets[0];
    group.sets[0].mass = nullptr;
    group.first_token = members[0].first_token;
    group.own = no_own_rows;
    for (const DeviceSequence& member : members) {
      group.sets[0].count = std::min(group.sets[0].count, member.sets[0].count);
      group.tokens += member.tokens;
    }
    for (DeviceSequence& member : members) {
      DeviceRowSet& set = member.sets[0];
      set.keys = static_cast<const std::byte*>(set.keys) + group.sets[0].count * row_bytes;
      set.values = static_cast<const std::byte*>(set.values) + group.sets[0].count * row_bytes;
      set.count -= group.sets[0].count;
    }
    tables.groups.push_back(group);
  }
  return tables;
}

DeviceSequence device_sequence(std::span<const RowSet> sets, int32_t first_token, int32_t tokens) {
  if (sets.size() > size_t{most_row_sets}) {
    throw Error(ErrorKind::internal, "a memory gives at most four row sets");
  }
  DeviceSequence out;
  for (size_t i = 0; i < sets.size(); ++i) out.sets[i] = on_device(sets[i]);
  out.first_token = first_token;
  out.tokens = tokens;
  out.own = static_cast<int32_t>(sets.size()) - 1;
  return out;
}

void ask_mass(const Context& context, int layer, std::span<const RowSet> sets, RowMass& mass,
              DeviceSequence& sequence) {
  const MassTarget target = mass.target(layer);
  for (size_t i = 0; i < sets.size(); ++i) {
    if (sets[i].count() == 0) continue;
    DeviceRowSet& set = sequence.sets[i];
    set.mass_places = mass.places(context, layer, i, sets[i].ordinals);
    set.mass = target.first + (set.mass_places == nullptr ? sets[i].ordinals.front() : 0);
  }
  sequence.mass_heads = mass.find(layer)->heads;
  sequence.mass_token_stride = target.token_stride;
  sequence.mass_head_stride = target.head_stride;
}

std::vector<uint64_t> token_masks(int64_t count, std::span<const int32_t> parents) {
  std::vector<uint64_t> masks(static_cast<size_t>(count));
  for (size_t i = 0; i < masks.size(); ++i) {
    const int32_t parent = parents.empty() ? static_cast<int32_t>(i) - 1 : parents[i];
    masks[i] = uint64_t{1} << i;
    if (parent >= 0) masks[i] |= masks[static_cast<size_t>(parent)];
  }
  return masks;
}

}  // namespace kinora

#include "attention/cuda/device_rows.h"

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

}  // namespace

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

#include "model/decoder/step_rows.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

namespace kinora {
namespace {

// The rows of one sequence, layer by layer.
std::vector<DeviceSequence> gather(const Context& context, const Sequence& sequence, int layers) {
  Memory& memory = *sequence.memory;
  std::vector<DeviceSequence> rows;
  rows.reserve(static_cast<size_t>(layers));
  std::vector<RowSet> sets;
  for (int layer = 0; layer < layers; ++layer) {
    memory.append(layer);
    sets.clear();
    memory.read(context, layer, memory.queries(), sets);
    rows.push_back(device_sequence(sets, 0, static_cast<int32_t>(sequence.count())));
    if (sequence.mass == nullptr || sequence.mass->find(layer) == nullptr) continue;
    ask_mass(context, layer, sets, *sequence.mass, rows.back());
    rows.back().mass_from = static_cast<int32_t>(sequence.count() - sequence.mass_count());
  }
  return rows;
}

int64_t rows_of(const DeviceSequence& sequence) {
  int64_t rows = 0;
  for (const DeviceRowSet& set : sequence.sets) rows += set.count;
  return rows;
}

// What is not there has no tokens: all zeros.
void write(std::byte* to, std::span<const DeviceSequence> sequences, int64_t padded) {
  static_assert(std::is_trivially_copyable_v<DeviceSequence>);
  const size_t bytes = sequences.size_bytes();
  std::memcpy(to, sequences.data(), bytes);
  std::memset(to + bytes, 0, static_cast<size_t>(padded) * sizeof(DeviceSequence) - bytes);
}

}  // namespace

StepRows::StepRows(const Context& context, std::span<const DecoderSteps::Step> steps, int layers) {
  // The device waits for this: memories are asked side by side, which never share what they change.
  std::vector<std::vector<DeviceSequence>> gathered(steps.size());
  context.threads->parallel_for(
      static_cast<int64_t>(steps.size()), 1, [&](int64_t begin, int64_t end) {
        for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
          try {
            steps[i].sequence->cancel.check();
            gathered[i] = gather(context, *steps[i].sequence, layers);
          } catch (...) {
            steps[i].result->failure = std::current_exception();
            gathered[i].assign(static_cast<size_t>(layers), DeviceSequence());
          }
        }
      });
  std::vector<size_t> order(steps.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::less<>()(shareable_rows(gathered[a].front()), shareable_rows(gathered[b].front()));
  });

  first_tokens_.resize(steps.size());
  sequences_.reserve(steps.size());
  for (const size_t index : order) {
    steps_.push_back(steps[index]);
    first_tokens_[index] = tokens_;
    int64_t longest = 0;
    for (DeviceSequence& layer : gathered[index]) {
      layer.first_token = static_cast<int32_t>(tokens_);
      longest = std::max(longest, rows_of(layer));
    }
    sequences_.push_back(std::move(gathered[index]));
    all_rows_ += longest;
    tokens_ += steps[index].sequence->count();
    most_tokens_ = std::max(most_tokens_, steps[index].sequence->count());
  }
}

void StepRows::share(int64_t row_bytes) {
  const auto first_rows = [](const std::vector<DeviceSequence>& sequence) {
    return shareable_rows(sequence.front());
  };
  const bool some =
      std::adjacent_find(
          sequences_.begin(), sequences_.end(), [&](const auto& one, const auto& other) {
            return first_rows(one) != nullptr && first_rows(one) == first_rows(other);
          }) != sequences_.end();
  if (!some) return;
  std::vector<std::vector<DeviceSequence>> layers(sequences_.front().size());
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    layers[layer].reserve(sequences_.size());
    for (const auto& sequence : sequences_) layers[layer].push_back(sequence[layer]);
  }
  runs_ = shared_runs(layers);
  if (runs_.empty()) return;
  for (const std::vector<DeviceSequence>& layer : layers) {
    shared_.push_back(share_rows(layer, runs_, row_bytes));
  }
  for (const DeviceSequence& group : shared_.front().groups) {
    most_group_tokens_ = std::max<int64_t>(most_group_tokens_, group.tokens);
  }
}

void StepRows::write_whole(std::byte* to, int64_t sequences) const {
  const size_t absent =
      (static_cast<size_t>(sequences) - sequences_.size()) * sizeof(DeviceSequence);
  for (size_t layer = 0; layer < sequences_.front().size(); ++layer) {
    for (const auto& sequence : sequences_) {
      std::memcpy(to, &sequence[layer], sizeof(DeviceSequence));
      to += sizeof(DeviceSequence);
    }
    std::memset(to, 0, absent);
    to += absent;
  }
}

void StepRows::write_rest(std::byte* to, int64_t sequences) const {
  for (const SharedTables& layer : shared_) {
    write(to, layer.rest, sequences);
    to += static_cast<size_t>(sequences) * sizeof(DeviceSequence);
  }
}

void StepRows::write_groups(std::byte* to, int64_t groups) const {
  for (const SharedTables& layer : shared_) {
    write(to, layer.groups, groups);
    to += static_cast<size_t>(groups) * sizeof(DeviceSequence);
  }
}

}  // namespace kinora

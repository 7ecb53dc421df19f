// Finding out what an answer looked at: which heads are watched, and what their attention says.
#include <algorithm>

#include "engine/session_state.h"

namespace kinora {

std::optional<RowMass> SessionState::watch(const Looking& looking) const {
  if (inputs_.empty() || (!looking.evidence && looking.heads == nullptr)) return std::nullopt;
  const ModelInfo& info = model().info();
  std::vector<LayerHeads> layers = evidence_heads_;
  if (looking.heads != nullptr) {
    layers.clear();
    for (int layer = 0; layer < info.rows.layers; ++layer) layers.push_back({layer});
  }
  return RowMass(engine_->context.device, std::move(layers), info.heads, looking.heads != nullptr);
}

std::vector<UnitMass> SessionState::units_of(const VisualInput& input) const {
  std::vector<UnitMass> units;
  const auto samples = std::ssize(input.samples);
  const int64_t step = std::max<int64_t>(1, input.plan.frames_per_unit);
  const auto time = [&](int64_t sample) { return input.samples[static_cast<size_t>(sample)].time; };
  const double last = samples > 1 ? time(samples - 1) - time(samples - 2) : 0;  // it lasts as long
  for (int64_t first = 0; first < samples; first += step) {
    units.push_back(
        {time(first), first + step < samples ? time(first + step) : time(samples - 1) + last, 0});
  }
  return units;
}

void SessionState::look(const Looking& looking, const RowMass& mass, Answer& answer) const {
  const std::vector<float> values = mass.values(engine_->context);
  const auto for_rows = [&](size_t input, int64_t units, const auto& body) {
    for (const VisualRows& rows : visual_rows_) {
      if (rows.input != input) continue;
      for (int64_t row = 0; row < rows.count && rows.first + row < mass.rows(); ++row) {
        body(static_cast<size_t>(rows.unit_of(row, units)), static_cast<size_t>(rows.first + row));
      }
    }
  };
  if (looking.heads != nullptr) {
    HeadEvidence& heads = *looking.heads;
    heads.units = units_of(inputs_[0]);
    heads.longest = longest_span(std::ssize(heads.units), inputs_[0].plan.frames_per_unit);
    const size_t planes = values.size() / static_cast<size_t>(std::max<int64_t>(1, mass.rows()));
    heads.mass.assign(planes * heads.units.size(), 0);
    for (size_t plane = 0; plane < planes; ++plane) {
      const float* from = values.data() + plane * static_cast<size_t>(mass.rows());
      for_rows(0, std::ssize(heads.units), [&](size_t unit, size_t row) {
        heads.mass[plane * heads.units.size() + unit] += from[row];
      });
    }
    return;
  }
  std::vector<InputMass> inputs;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    InputMass input;
    // A picture has no time to point at.
    if (inputs_[i].plan.source.modality == Modality::video) {
      input.units = units_of(inputs_[i]);
      input.longest = longest_span(std::ssize(input.units), inputs_[i].plan.frames_per_unit);
      for_rows(i, std::ssize(input.units),
               [&](size_t unit, size_t row) { input.units[unit].mass += double{values[row]}; });
    }
    inputs.push_back(std::move(input));
  }
  answer.evidence = find_evidence(inputs);
}

}  // namespace kinora

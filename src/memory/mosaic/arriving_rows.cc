#include "memory/mosaic/arriving_rows.h"

#include <algorithm>
#include <utility>

namespace kinora {
namespace {

const float* floats(const PinnedBuffer& buffer) {
  return reinterpret_cast<const float*>(buffer.data());
}

}  // namespace

void ArrivingRows::start(const Context& context, int layer, const StoredRows& rows,
                         std::span<const int32_t> places, std::span<const int32_t> older) {
  Layer& target = layers_[static_cast<size_t>(layer)];
  int64_t held = 0;
  for (const Copy& copy : target.copies) held += static_cast<int64_t>(copy.fresh);
  while (!target.copies.empty() &&
         held - static_cast<int64_t>(target.copies.front().fresh) >= kept_) {
    held -= static_cast<int64_t>(target.copies.front().fresh);
    target.spare.push_back(std::move(target.copies.front()));
    target.copies.pop_front();
  }
  Copy copy;
  if (!target.spare.empty()) {
    copy = std::move(target.spare.back());
    target.spare.pop_back();
  }
  copy.fresh = places.size();
  copy.tokens.clear();
  std::vector<int32_t> all(places.begin(), places.end());
  all.insert(all.end(), older.begin(), older.end());
  for (const int32_t row : all) copy.tokens.push_back(rows.ordinal(row));

  const Tensor keys = rows.plain_keys_there(context, all), values = rows.values_there(context, all);
  const auto bytes = static_cast<size_t>(keys.bytes());
  target.width = bytes / sizeof(float) / std::max<size_t>(1, all.size());
  if (copy.keys.size() < bytes) {
    copy.keys = PinnedBuffer(bytes);
    copy.values = PinnedBuffer(bytes);
  }
  copy_async(context, copy.keys.data(), keys.view().raw(), bytes);
  copy_async(context, copy.values.data(), values.view().raw(), bytes);
  if (!target.copied) target.copied = std::make_unique<GpuEvent>(context.device);
  target.copied->record(context);
  target.copies.push_back(std::move(copy));
}

std::vector<MosaicRow> ArrivingRows::wait(int layer) {
  const Layer& from = layers_[static_cast<size_t>(layer)];
  from.copied->wait();
  const Copy& newest = from.copies.back();
  std::vector<MosaicRow> rows;
  for (size_t i = 0; i < newest.fresh; ++i) {
    rows.push_back({newest.tokens[i],
                    {floats(newest.keys) + i * from.width, from.width},
                    {floats(newest.values) + i * from.width, from.width}});
  }
  return rows;
}

FetchRows ArrivingRows::fetch(int layer) const {
  return [this, layer](std::span<const int32_t> tokens, std::vector<float>& keys,
                       std::vector<float>& values) {
    const Layer& from = layers_[static_cast<size_t>(layer)];
    keys.clear();
    values.clear();
    for (const int32_t token : tokens) {
      bool found = false;
      for (const Copy& copy : from.copies) {
        const auto fresh_end = copy.tokens.begin() + static_cast<int64_t>(copy.fresh);
        auto at = std::lower_bound(copy.tokens.begin(), fresh_end, token);
        if (at == fresh_end || *at != token) {
          if (&copy != &from.copies.back()) continue;
          at = std::find(fresh_end, copy.tokens.end(), token);
          if (at == copy.tokens.end()) continue;
        }
        const auto place = static_cast<size_t>(at - copy.tokens.begin()) * from.width;
        const auto append = [&](std::vector<float>& to, const PinnedBuffer& rows) {
          to.insert(to.end(), floats(rows) + place, floats(rows) + place + from.width);
        };
        append(keys, copy.keys);
        append(values, copy.values);
        found = true;
        break;
      }
      if (!found) return false;
    }
    return true;
  };
}

void ArrivingRows::forget(int64_t token) {
  for (Layer& layer : layers_) {
    while (!layer.copies.empty() && !layer.copies.back().tokens.empty() &&
           *std::max_element(layer.copies.back().tokens.begin(),
                             layer.copies.back().tokens.end()) >= token) {
      layer.spare.push_back(std::move(layer.copies.back()));
      layer.copies.pop_back();
    }
  }
}

}  // namespace kinora

#include "memory/mosaic/arriving_rows.h"

#include <algorithm>
#include <utility>

namespace kinora {
namespace {

const float* floats(const PinnedBuffer& buffer) {
  return reinterpret_cast<const float*>(buffer.data());
}

}  // namespace

void ArrivingRows::start(const Context& context, int layer, std::vector<int32_t> tokens,
                         size_t fresh, const Tensor& keys, const Tensor& values,
                         const Tensor& near) {
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
  copy.fresh = fresh;
  copy.tokens = std::move(tokens);
  target.width = static_cast<size_t>(keys.elements()) / std::max<size_t>(1, copy.tokens.size());
  const auto bring = [&](PinnedBuffer& to, const Tensor& from) {
    const auto bytes = static_cast<size_t>(from.bytes());
    // Groups bring older rows along now and then; pinned memory is slow to make.
    if (to.size() < bytes) to = PinnedBuffer(bytes + bytes / 2);
    copy_async(context, to.data(), from.view().raw(), bytes);
  };
  bring(copy.keys, keys);
  bring(copy.values, values);
  bring(copy.near, near);
  if (!target.copied) target.copied = std::make_unique<GpuEvent>(context.device);
  target.copied->record(context);
  target.copies.push_back(std::move(copy));
}

ArrivingRows::Arrived ArrivingRows::wait(int layer) const {
  const Layer& from = layers_[static_cast<size_t>(layer)];
  from.copied->wait();
  const Copy& newest = from.copies.back();
  Arrived arrived;
  for (size_t i = 0; i < newest.fresh; ++i) {
    arrived.rows.push_back({newest.tokens[i],
                            {floats(newest.keys) + i * from.width, from.width},
                            {floats(newest.values) + i * from.width, from.width}});
  }
  const auto* near = reinterpret_cast<const std::array<int32_t, 2>*>(newest.near.data());
  arrived.near = {near, newest.fresh};
  return arrived;
}

FetchRows ArrivingRows::fetch(int layer) const {
  return [this, layer](std::span<const int32_t> tokens, std::vector<float>& keys,
                       std::vector<float>& values) {
    const Layer& from = layers_[static_cast<size_t>(layer)];
    keys.clear();
    values.clear();
    keys.reserve(tokens.size() * from.width);
    values.reserve(tokens.size() * from.width);
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

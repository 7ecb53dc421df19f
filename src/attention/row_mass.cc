#include "attention/row_mass.h"

#include <algorithm>
#include <cstring>

#include "attention/cpu/mass_cpu.h"
#include "attention/cuda/mass_cuda.h"
#include "base/error.h"

namespace kinora {
namespace {

// Room for more rows than there are, so that an answer seldom makes it grow.
constexpr int64_t spare_rows = 1024;

int64_t with_spare(int64_t rows) { return rows + rows / 4 + spare_rows; }

}  // namespace

RowMass::RowMass(Device device, std::vector<LayerHeads> layers, int64_t heads, bool by_head)
    : device_(device), layers_(std::move(layers)), heads_(heads), by_head_(by_head) {
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (layers_[i].layer < (i == 0 ? 0 : layers_[i - 1].layer + 1)) {
      throw Error(ErrorKind::internal, "layers whose mass is wanted come in order");
    }
  }
}

const LayerHeads* RowMass::find(int layer) const {
  const auto found =
      std::lower_bound(layers_.begin(), layers_.end(), layer,
                       [](const LayerHeads& a, int wanted) { return a.layer < wanted; });
  return found != layers_.end() && found->layer == layer ? &*found : nullptr;
}

int64_t RowMass::planes() const { return by_head_ ? std::ssize(layers_) * heads_ : 1; }

void RowMass::grow(const Context& context, int64_t rows) {
  rows_ = std::max(rows_, rows);
  const int64_t before = total_.defined() ? total_.size(1) : 0;
  if (rows <= before) return;
  Tensor larger = Tensor::zeros(DType::f32, {planes(), with_spare(rows)}, device_);
  for (int64_t plane = 0; plane < planes() && before > 0; ++plane) {
    float* to = larger.data<float>() + plane * larger.size(1);
    const float* from = total_.data<float>() + plane * before;
    const auto bytes = static_cast<size_t>(before) * sizeof(float);
    if (device_.is_cpu()) {
      std::memcpy(to, from, bytes);
    } else {
      copy_async(context, to, from, bytes);
    }
  }
  if (before > 0) synchronize(context);  // before the old one goes
  total_ = std::move(larger);
}

void RowMass::begin(const Context& context, const QueryView& group) {
  const auto count = std::ssize(group.ordinals);
  grow(context, group.ordinals.back() + 1);
  group_begin_ = group.ordinals.front();
  tokens_ = group.parents.empty() ? 0 : count;
  if (tokens_ == 0) return;
  const int64_t plane_floats = planes() * total_.size(1);
  if (!waiting_.defined() || waiting_.size(0) < tokens_ || waiting_.size(1) != plane_floats) {
    waiting_ = Tensor(DType::f32, {tokens_, plane_floats}, device_);
  }
  const auto bytes = static_cast<size_t>(tokens_ * plane_floats) * sizeof(float);
  if (device_.is_cpu()) {
    std::memset(waiting_.data<float>(), 0, bytes);
  } else {
    clear_async(context, waiting_.view().raw(), bytes);
  }
}

MassTarget RowMass::target(int layer) const {
  const LayerHeads* asked = find(layer);
  if (asked == nullptr || !total_.defined()) {
    throw Error(ErrorKind::internal, "mass is added for layers asked for, after the group's begin");
  }
  const int64_t capacity = total_.size(1);
  MassTarget target;
  Tensor to = tokens_ > 0 ? waiting_ : total_;  // shares its memory
  target.first = reinterpret_cast<float*>(to.view().raw());
  target.token_stride = tokens_ > 0 ? planes() * capacity : 0;
  if (by_head_) {
    target.first += (asked - layers_.data()) * heads_ * capacity;
    target.head_stride = capacity;
  }
  return target;
}

const int32_t* RowMass::places(const Context& context, int layer, size_t set,
                               std::span<const int32_t> ordinals) {
  const auto count = std::ssize(ordinals);
  if (count == 0 || ordinals.back() - ordinals.front() == count - 1) return nullptr;
  Places& list = places_[{layer, set}];
  if (list.copied == nullptr) list.copied = std::make_unique<GpuEvent>(device_);
  auto* host = reinterpret_cast<int32_t*>(list.host.data());
  const int64_t common = std::min(list.known, count);
  const auto same = std::mismatch(ordinals.begin(), ordinals.begin() + common, host).first;
  const bool larger =
      count * static_cast<int64_t>(sizeof(int32_t)) > static_cast<int64_t>(list.host.size());
  if (larger || same - ordinals.begin() < common) {
    if (list.known > 0) list.copied->wait();  // what it reads is about to change
    list.known = same - ordinals.begin();
  }
  if (larger) {
    list.host = PinnedBuffer(static_cast<size_t>(with_spare(count)) * sizeof(int32_t));
    list.there = Tensor(DType::i32, {with_spare(count)}, device_);
    list.known = 0;
    host = reinterpret_cast<int32_t*>(list.host.data());
  }
  if (list.known < count) {
    std::copy(ordinals.begin() + list.known, ordinals.end(), host + list.known);
    auto* to = reinterpret_cast<int32_t*>(list.there.view().raw());
    copy_async(context, to + list.known, host + list.known,
               static_cast<size_t>(count - list.known) * sizeof(int32_t));
    list.copied->record(context);
    list.known = count;
  }
  return reinterpret_cast<const int32_t*>(ConstTensorView(list.there.view()).raw());
}

void RowMass::accept(const Context& context, std::span<const int32_t> tokens) {
  if (tokens_ == 0) throw Error(ErrorKind::internal, "there is no tree whose mass waits");
  const int64_t capacity = total_.size(1), stride = planes() * capacity;
  for (const int32_t token : tokens) {
    if (token < 0 || token >= tokens_) {
      throw Error(ErrorKind::internal, "a token of the tree is accepted");
    }
  }
  tokens_ = 0;
  rows_ = group_begin_ + std::ssize(tokens);
  if (!device_.is_cpu()) {
    cuda_attention::accept_mass(context, total_.view(), waiting_.view(), group_begin_, tokens);
    return;
  }
  for (int64_t plane = 0; plane < planes(); ++plane) {
    float* to = total_.data<float>() + plane * capacity;
    for (const int32_t token : tokens) {
      const float* from = waiting_.data<float>() + token * stride + plane * capacity;
      for (int64_t row = 0; row < group_begin_; ++row) to[row] += from[row];
      for (size_t i = 0; i < tokens.size(); ++i) {
        to[group_begin_ + static_cast<int64_t>(i)] += from[group_begin_ + tokens[i]];
      }
    }
  }
}

std::vector<float> RowMass::values(const Context& context) const {
  std::vector<float> out(static_cast<size_t>(planes() * rows_));
  if (rows_ == 0) return out;
  if (!device_.is_cpu()) synchronize(context);
  const Tensor host = total_.to(Device::cpu());
  for (int64_t plane = 0; plane < planes(); ++plane) {
    std::copy_n(host.data<float>() + plane * host.size(1), rows_, out.begin() + plane * rows_);
  }
  return out;
}

void add_mass(const Context& context, int layer, const QueryView& queries,
              std::span<const RowSet> sets, float scale, int64_t counted, RowMass& mass) {
  const LayerHeads* chosen = mass.find(layer);
  if (chosen == nullptr || counted < 0 || counted > queries.count() ||
      mass.device() != context.device) {
    throw Error(ErrorKind::internal, "mass of a layer or of queries that nobody asked for");
  }
  std::vector<RowSet> there;
  for (const RowSet& set : sets) {
    if (set.count() > 0) there.push_back(set);
  }
  if (there.empty() || counted == 0) return;
  if (context.device.is_cpu()) {
    attention_cpu::add_mass(context, queries, there, scale, counted, *chosen, mass.target(layer));
  } else {
    cuda_attention::add_mass(context, layer, queries, there, scale, counted, mass);
  }
}

}  // namespace kinora

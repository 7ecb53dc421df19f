#include "attention/observer.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "ops/elementwise.h"

namespace kinora {
namespace {

Tensor copy_to_host(ConstTensorView view) {
  if (!view.contiguous()) throw Error(ErrorKind::internal, "what is observed lies in one piece");
  Tensor copy(view.dtype(), view.shape());
  copy_bytes(copy.view().raw(), Device::cpu(), view.raw(), view.device(),
             static_cast<size_t>(copy.bytes()));
  return copy;
}

// Where a row of the joined set comes from.
struct Source {
  int32_t ordinal;
  int32_t set;
  int32_t row;    // of its keys and values
  int32_t entry;  // of what is known of its rows
};

}  // namespace

HostCall::HostCall(const AttentionCall& call) : queries_(call.queries) {
  const bool lossless = call.queries.parents.empty() &&
                        std::all_of(call.sets.begin(), call.sets.end(), [](const RowSet& set) {
                          return !set.weighted() && set.serves.empty();
                        });
  if (!lossless) {
    throw Error(ErrorKind::unsupported,
                "this memory gives rows weights, or some rows to some tokens only, which cannot be "
                "shown yet; use the memory flat");
  }
  const ConstTensorView& queries = call.queries.queries;
  if (!queries.device().is_cpu() || queries.dtype() != DType::f32) {
    query_data_ = copy_to_host(queries);
    if (queries.dtype() != DType::f32) {
      const ThreadPool single(1);
      Tensor wide(DType::f32, queries.shape());
      convert(Context(single), query_data_, wide);
      query_data_ = std::move(wide);
    }
    queries_.queries = query_data_;
  }
  if (call.sets.size() == 1 && !call.sets[0].listed()) {
    rows_ = call.sets[0];
    if (rows_.keys.device().is_cpu()) return;
    keys_ = copy_to_host(rows_.keys);
    values_ = copy_to_host(rows_.values);
    rows_.keys = keys_;
    rows_.values = values_;
    return;
  }
  join(call.sets);
}

void HostCall::join(std::span<const RowSet> sets) {
  std::vector<Source> order;
  std::vector<Tensor> copies;  // keys and values of each set, where they are not on the CPU
  std::vector<ConstTensorView> keys, values;
  for (size_t s = 0; s < sets.size(); ++s) {
    const RowSet& set = sets[s];
    std::vector<int32_t> list(static_cast<size_t>(set.count()));
    if (set.listed()) {
      copy_bytes(list.data(), Device::cpu(), set.list.raw(), set.list.device(),
                 list.size() * sizeof(int32_t));
    }
    for (size_t i = 0; i < list.size(); ++i) {
      const auto row = set.listed() ? list[i] : static_cast<int32_t>(i);
      order.push_back({set.ordinals[i], static_cast<int32_t>(s), row, static_cast<int32_t>(i)});
    }
    for (auto [from, to] : {std::pair{set.keys, &keys}, std::pair{set.values, &values}}) {
      if (!from.device().is_cpu()) {
        copies.push_back(copy_to_host(from));
        from = copies.back();
      }
      to->push_back(from);
    }
  }
  std::sort(order.begin(), order.end(),
            [](const Source& a, const Source& b) { return a.ordinal < b.ordinal; });
  const ConstTensorView& like = keys.front();
  const Shape shape{static_cast<int64_t>(order.size()), like.size(1), like.size(2)};
  keys_ = Tensor(like.dtype(), shape);
  values_ = Tensor(like.dtype(), shape);
  const auto bytes = static_cast<size_t>(like.size(1) * like.size(2) * dtype_size(like.dtype()));
  for (size_t i = 0; i < order.size(); ++i) {
    const auto [ordinal, set, row, entry] = order[i];
    const auto s = static_cast<size_t>(set);
    std::memcpy(keys_.view().raw() + i * bytes, keys[s][row].raw(), bytes);
    std::memcpy(values_.view().raw() + i * bytes, values[s][row].raw(), bytes);
    ordinals_.push_back(ordinal);
    modalities_.push_back(sets[s].modalities[static_cast<size_t>(entry)]);
  }
  rows_ = {keys_, values_, ordinals_, modalities_};
}

}  // namespace kinora

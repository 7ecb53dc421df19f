#include "attention/row_sets.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "attention/plan/plan.h"
#include "base/error.h"

namespace kinora {
namespace {

// (query, head) rows of a tile, as dense_plan has them.
constexpr int64_t tile_rows = 256;

bool plain(const RowSet& set) { return !set.weighted() && !set.listed() && set.serves.empty(); }

// A set without its list: the rows are copied to where they are read in order.
struct Gathered {
  Tensor keys, values;
  RowSet set;
};

Gathered gather(const RowSet& set) {
  Gathered out;
  out.set = set;
  if (!set.listed()) return out;
  std::vector<int32_t> list(static_cast<size_t>(set.count()));
  copy_bytes(list.data(), Device::cpu(), set.list.raw(), set.list.device(),
             list.size() * sizeof(int32_t));
  const int64_t width = set.keys.size(1) * set.keys.size(2);
  const auto copy = [&](ConstTensorView rows) {
    Tensor to(rows.dtype(), Shape{set.count(), rows.size(1), rows.size(2)}, rows.device());
    const size_t bytes = static_cast<size_t>(width * dtype_size(rows.dtype()));
    for (size_t i = 0; i < list.size(); ++i) {
      copy_bytes(to.view()[static_cast<int64_t>(i)].raw(), to.device(), rows[list[i]].raw(),
                 rows.device(), bytes);
    }
    return to;
  };
  out.keys = copy(set.keys);
  out.values = copy(set.values);
  out.set.keys = out.keys;
  out.set.values = out.values;
  out.set.list = {};
  return out;
}

// Tiles over these queries and whatever lists the builder holds.
void add_tiles(PlanBuilder& builder, const QueryView& queries, const RowSet& set, int pass) {
  const auto heads = static_cast<int>(queries.queries.size(1));
  const auto kv_heads = static_cast<int>(set.keys.size(1));
  for (int kv_head = 0; kv_head < kv_heads; ++kv_head) {
    builder.add_tile(kv_head * (heads / kv_heads), heads / kv_heads, pass);
  }
}

std::vector<int32_t> served(const QueryView& queries, const RowSet& set) {
  if (!set.serves.empty()) return {set.serves.begin(), set.serves.end()};
  std::vector<int32_t> all(static_cast<size_t>(queries.count()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

Plan plan_for(const QueryView& queries, const RowSet& set) {
  PlanBuilder builder(queries, set);
  const std::vector<int32_t> readers = served(queries, set);
  const bool tree = !queries.parents.empty();
  // Of a tree's own rows each node reads its ancestors and itself; all read what is older.
  const auto first_new =
      std::lower_bound(set.ordinals.begin(), set.ordinals.end(), queries.ordinals.front());
  const int64_t old = tree ? first_new - set.ordinals.begin() : set.count();
  const int64_t group = queries.queries.size(1) / set.keys.size(1);
  const auto step = static_cast<size_t>(std::max<int64_t>(1, tile_rows / group));
  for (size_t begin = 0; old > 0 && begin < readers.size(); begin += step) {
    builder.begin_queries();
    for (size_t i = begin; i < std::min(begin + step, readers.size()); ++i) {
      builder.add_query(readers[i]);
    }
    builder.begin_segments();
    builder.add_rows(0, old);
    add_tiles(builder, queries, set, 0);
  }
  if (!tree || old == set.count()) return builder.take();
  for (const int32_t reader : readers) {
    std::vector<int32_t> ancestors;
    for (int32_t node = reader; node >= 0; node = queries.parents[static_cast<size_t>(node)]) {
      const int32_t ordinal = queries.ordinals[static_cast<size_t>(node)];
      const auto at = std::lower_bound(first_new, set.ordinals.end(), ordinal);
      if (at == set.ordinals.end() || *at != ordinal) continue;  // pruned, or in another set
      ancestors.push_back(static_cast<int32_t>(at - set.ordinals.begin()));
    }
    std::reverse(ancestors.begin(), ancestors.end());
    builder.begin_queries();
    builder.add_query(reader);
    builder.begin_segments();
    builder.add_gathered(ancestors);
    add_tiles(builder, queries, set, old > 0 ? 1 : 0);
  }
  return builder.take();
}

// All sets one after another in one place.
struct Joined {
  Tensor keys, values;
  std::vector<int32_t> ordinals;
  std::vector<Modality> modalities;

  explicit Joined(std::span<const RowSet> sets) {
    int64_t rows = 0;
    for (const RowSet& set : sets) rows += set.count();
    const ConstTensorView& like = sets[0].keys;
    const Shape shape{rows, like.size(1), like.size(2)};
    keys = Tensor(like.dtype(), shape, like.device());
    values = Tensor(like.dtype(), shape, like.device());
    int64_t at = 0;
    for (const RowSet& set : sets) {
      const auto copy = [&](Tensor& to, ConstTensorView from) {
        copy_bytes(to.view().rows(at, set.count()).raw(), to.device(), from.raw(), from.device(),
                   static_cast<size_t>(from.bytes()));
      };
      copy(keys, set.keys);
      copy(values, set.values);
      ordinals.insert(ordinals.end(), set.ordinals.begin(), set.ordinals.end());
      modalities.insert(modalities.end(), set.modalities.begin(), set.modalities.end());
      at += set.count();
    }
  }
  RowSet view() const { return {keys, values, ordinals, modalities}; }
};

}  // namespace

void attend_densely(const Context& context, const QueryView& queries, std::span<const RowSet> sets,
                    float scale, TensorView out, SoftmaxState state) {
  const int64_t pairs = queries.count() * queries.queries.size(1);
  Tensor own;
  if (state.max == nullptr || state.sum == nullptr) {
    own = Tensor(DType::f32, {2, pairs}, context.device);
    float* room = reinterpret_cast<float*>(own.view().raw());
    if (state.max == nullptr) state.max = room;
    if (state.sum == nullptr) state.sum = room + pairs;
  }
  RunOptions options;
  options.state = state;
  for (const RowSet& given : sets) {
    if (given.count() == 0) continue;
    const Gathered gathered = gather(given);
    run_plan(context, plan_for(queries, gathered.set), queries, gathered.set, scale, out, options);
    options.onto = true;
  }
  if (!options.onto) throw Error(ErrorKind::internal, "a group reads at least its own rows");
}

void attend_sets(Attention& attention, const Context& context, int layer, const QueryView& queries,
                 std::span<const RowSet> sets, float scale, TensorView out) {
  const bool all_plain = std::all_of(sets.begin(), sets.end(), plain) && queries.parents.empty();
  if (all_plain && sets.size() == 1) {
    return attention.attend(context, layer, queries, sets[0], scale, out);
  }
  if (!all_plain || attention.reads_all()) {
    return attend_densely(context, queries, sets, scale, out);
  }
  const Joined joined(sets);
  attention.attend(context, layer, queries, joined.view(), scale, out);
}

}  // namespace kinora

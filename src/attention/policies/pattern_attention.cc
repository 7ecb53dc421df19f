#include "attention/policies/pattern_attention.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <optional>

#include "attention/cuda/runner_cuda.h"
#include "attention/plan/line_plan.h"
#include "attention/search/grid_search.h"
#include "base/error.h"

namespace kinora {
namespace {

// What a head's time is booked under: the kind of pattern, with its boundary where it has one.
std::string label_of(const HeadChoice& choice) {
  std::string label;
  for (const RegionPattern& pattern : choice.patterns) {
    const std::string& name = pattern.spec.kind->name;
    if (label.find(name) == std::string::npos) {
      label += label.empty() ? "" : "+";
      label += name;
    }
  }
  if (choice.boundary != Boundary::none) {
    label += fmt::format(" ({} boundary)", boundary_name(choice.boundary));
  }
  return label;
}

// A pattern as plans on a GPU have it; none: only the CPU plans it so far.
std::optional<cuda_attention::LineHead> device_head(const PatternSpec& spec) {
  cuda_attention::LineHead head;
  if (spec.kind->strongest) {
    head.probed = 1;
    head.strongest = spec.kind->strongest(spec.sizes);
    return head;
  }
  if (spec.kind->look) {
    head.probed = 1;
    head.has_grid = 1;
    head.grid = spec.kind->look(spec.sizes);
    if (!cuda_attention::plans_grid(head.grid)) return std::nullopt;
    return head;
  }
  if (spec.kind->needs_probe) return std::nullopt;
  const LineIndex index = resolve(spec, {}, {});
  LineIndex bands;
  bands.everything = index.everything;
  bands.sink = head.sink = index.sink;
  bands.local = head.local = index.local;
  bands.bottom = head.bottom = index.bottom;
  if (index.everything) head.bottom = std::numeric_limits<int32_t>::max();
  if (bands != index) return std::nullopt;
  return head;
}

// Keys in the list of a tile of 128 queries, about.
double listed_keys(const cuda_attention::LineHead& head, int64_t rows) {
  // Diagonals that are found lie together: a tile reads so many keys for each, and not all the 128
  // and more that it would read for a single one.
  constexpr double slash_keys = 10;
  constexpr double tile_keys = 64;  // of a tile itself
  const auto all = static_cast<double>(rows);
  if (head.bottom == std::numeric_limits<int32_t>::max()) return all;
  double keys = tile_keys + head.sink + head.local;
  if (head.has_grid != 0) {
    const GridLook& grid = head.grid;
    // Where a stride is searched, the lines may be as dense as the search allows.
    const double stride = grid.stride > 0 ? grid.stride : least_stride;
    const int lines = grid.horizontal + grid.vertical + grid.slash;
    keys += grid.sink + grid.local + all * grid.phases * lines / stride;
  } else if (head.probed != 0) {
    keys += head.strongest.columns + slash_keys * head.strongest.slashes;
  }
  return std::min(keys, all);
}

// A head in one of its regions, with the pattern that it has there.
struct HeadRegion {
  int head = 0;
  const Region* region = nullptr;
  PatternSpec spec{};
  LineIndex index{};
};

// Finds the index of each; what has to be looked at is looked at together.
void resolve_all(const Context& context, const QueryView& queries, const RowSet& rows, float scale,
                 ProbeOf of, std::vector<HeadRegion>& all) {
  std::vector<ProbeRequest> requests;
  std::vector<size_t> request_of(all.size(), all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    if (!all[i].spec.kind->needs_probe) continue;
    request_of[i] = requests.size();
    requests.push_back({all[i].region, all[i].head, of});
  }
  const std::vector<Probe> probes = probe_regions(context, queries, rows, scale, requests);
  const Probe none;
  const auto count = static_cast<int64_t>(all.size());
  context.threads->parallel_for(count, 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const bool probed = request_of[i] < probes.size();
      all[i].index = resolve(all[i].spec, *all[i].region, probed ? probes[request_of[i]] : none);
    }
  });
}

}  // namespace

PatternAttention::PatternAttention(std::string name, HeadChoice choice, SparseOptions options)
    : SparseAttention(std::move(options)), name_(std::move(name)), choice_(std::move(choice)) {}

PatternAttention::PatternAttention(std::string name, std::shared_ptr<const HeadTable> table,
                                   SparseOptions options)
    : SparseAttention(std::move(options)), name_(std::move(name)), table_(std::move(table)) {
  if (!table_ || !table_->complete()) {
    throw Error(ErrorKind::usage, "attention " + name_ + ": the table is not complete");
  }
}

const HeadChoice& PatternAttention::choice(int layer, int head) const {
  return table_ ? *table_->at(layer, head) : choice_;
}

void PatternAttention::check_heads(int layer, int heads) const {
  if (!table_ || (heads == table_->shape.heads && layer < table_->shape.layers)) return;
  throw Error(ErrorKind::bad_input,
              fmt::format("attention table: made for {} heads in {} layers, used for head count {} "
                          "in layer {}",
                          table_->shape.heads, table_->shape.layers, heads, layer));
}

std::vector<PatternAttention::GpuRegion> PatternAttention::gpu_regions(const Context& context,
                                                                       int layer,
                                                                       const QueryView& queries,
                                                                       const RowSet& rows) {
  if (!cuda_attention::unbroken(queries, rows)) return {};
  const auto heads = static_cast<int>(queries.queries.size(1));
  // A single pattern is as published, which looks at the last queries whatever they are.
  const ProbeOf of = table_ ? ProbeOf::each_modality : ProbeOf::region;
  std::map<Boundary, std::vector<GpuRegion>> regions;
  for (int head = 0; head < heads; ++head) {
    const HeadChoice& chosen = choice(layer, head);
    // Weights are not copied with the rows of a modality.
    if (rows.weighted() && chosen.boundary != Boundary::none) return {};
    const auto [at, fresh] = regions.try_emplace(chosen.boundary);
    std::vector<GpuRegion>& own = at->second;
    if (fresh) {
      const auto* spaces = gpu_spaces_.find(context, chosen.boundary, queries, rows, of);
      if (spaces == nullptr) return {};
      for (const cuda_attention::LineSpace& space : *spaces) {
        GpuRegion region;
        region.space = &space;
        region.heads.assign(static_cast<size_t>(heads), {.absent = 1});
        own.push_back(std::move(region));
      }
    }
    const std::string label = label_of(chosen);
    for (GpuRegion& region : own) {
      Region asked;
      asked.query_modality = region.space->query_modality;
      asked.key_modality = region.space->key_modality;
      const auto line = device_head(scaled(pattern_for(chosen, asked), length(rows)));
      if (!line || (line->has_grid != 0 && !region.space->adjacent)) return {};
      region.heads[static_cast<size_t>(head)] = *line;
      region.label = region.head_count == 0 || region.label == label ? label : "mixed heads";
      ++region.head_count;
    }
  }
  std::vector<GpuRegion> all;
  for (auto& [boundary, own] : regions) {
    std::move(own.begin(), own.end(), std::back_inserter(all));
  }
  return all;
}

void PatternAttention::attend_on_gpu(const Context& context, int layer, const QueryView& queries,
                                     const RowSet& rows, float scale, TensorView out) {
  const auto heads = queries.queries.size(1);
  check_heads(layer, static_cast<int>(heads));
  const std::vector<GpuRegion> regions = gpu_regions(context, layer, queries, rows);
  if (regions.empty()) {
    return SparseAttention::attend_on_gpu(context, layer, queries, rows, scale, out);
  }
  // Regions run onto one another. Rows of a modality that lie apart are copied once.
  struct CopiedRows {
    Tensor keys, values;
    RowSet rows;
  };
  std::map<std::pair<bool, Modality>, CopiedRows> copies;
  Tensor state;
  RunOptions run = gpu_run();
  for (const GpuRegion& region : regions) {
    const cuda_attention::LineSpace& space = *region.space;
    gpu_work_.begin(context, region.label, region.head_count);
    CopiedRows own;
    CopiedRows* read = &own;
    bool fresh = true;
    if (!space.row_list.empty()) {
      const auto [at, made] = copies.try_emplace({space.by_place, space.key_modality});
      read = &at->second;
      fresh = made;
    }
    if (fresh) {
      read->rows = cuda_attention::rows_of(context, space, rows, read->keys, read->values);
    }
    cuda_attention::DeviceLines found;
    if (std::ranges::any_of(region.heads, [](const auto& head) { return head.probed != 0; })) {
      found = cuda_attention::find_lines(context, space, queries, read->rows, scale, region.heads);
    }
    const auto plans =
        cuda_attention::line_plans(context, space, queries, read->rows, region.heads, found, out);
    gpu_work_.planned(context);
    if ((regions.size() > 1 || plans.size() > 1) && run.state.max == nullptr) {
      state = Tensor(DType::f32, {2, queries.count(), heads}, context.device);
      auto* max = reinterpret_cast<float*>(state.view().raw());
      run.state = {max, max + queries.count() * heads};
    }
    for (size_t i = 0; i < plans.size(); ++i) {
      if (i > 0) {
        gpu_work_.begin(context, region.label, 0);
        gpu_work_.planned(context);
      }
      cuda_attention::run_plan(context, plans[i], queries, read->rows, scale, out, run);
      run.onto = true;
      gpu_work_.end(context);
      gpu_work_.counted(cuda_attention::count_pairs(context, plans[i]));
    }
  }
  correct_on_gpu(context, queries, rows, scale, options_.delta_stride, out);
}

std::optional<GpuWorkload> PatternAttention::gpu_workload(int layer, const QueryView& queries,
                                                          const RowSet& rows) const {
  const auto heads = static_cast<int>(queries.queries.size(1));
  check_heads(layer, heads);
  GpuWorkload work;
  work.plans = 0;
  std::map<Boundary, bool> probed;  // by a head with such a boundary
  for (int head = 0; head < heads; ++head) {
    const HeadChoice& chosen = choice(layer, head);
    bool& probes = probed[chosen.boundary];
    double keys = 0;
    for (const RegionPattern& pattern : chosen.patterns) {
      const auto line = device_head(scaled(pattern.spec, length(rows)));
      if (!line) return std::nullopt;
      keys = std::max(keys, listed_keys(*line, rows.count()));
      probes |= line->probed != 0;
      const bool horizontal = line->has_grid != 0 && line->grid.horizontal != 0;
      if (line->bottom > 0 || horizontal) work.longest = rows.count();
    }
    work.keys += keys / heads;
  }
  for (const auto& [boundary, probes] : probed) {
    // A boundary of both cuts text and video into four regions.
    const int regions = boundary == Boundary::none ? 1 : boundary == Boundary::both ? 4 : 2;
    work.plans += regions;
    if (probes) work.probes += regions;
  }
  return work;
}

bool PatternAttention::plans_by_data(int layer, int heads) const {
  for (int head = 0; head < heads; ++head) {
    for (const RegionPattern& pattern : choice(layer, head).patterns) {
      if (pattern.spec.kind->needs_probe) return true;
    }
  }
  return false;
}

std::vector<LabelledPlan> PatternAttention::sparse_plans(const Context& context, int layer,
                                                         const QueryView& queries,
                                                         const RowSet& rows, float scale) {
  const auto heads = static_cast<int>(queries.queries.size(1));
  const int group = heads / static_cast<int>(rows.keys.size(1));
  check_heads(layer, heads);
  // Planning is short compared with attention on one thread but would be long compared with
  // attention on many, so the threads share all of it.
  const auto for_each = [&](size_t count, const auto& work) {
    context.threads->parallel_for(static_cast<int64_t>(count), 1, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) work(i);
    });
  };
  std::map<Boundary, std::vector<Region>> regions;
  for (int head = 0; head < heads; ++head) regions.try_emplace(choice(layer, head).boundary);
  for_each(regions.size(), [&](size_t i) {
    auto& [boundary, cut] = *std::next(regions.begin(), static_cast<int64_t>(i));
    cut = cut_regions(boundary, queries, rows);
  });
  std::vector<HeadRegion> all;
  std::vector<size_t> first_of(static_cast<size_t>(heads));  // region of each head, in `all`
  for (int head = 0; head < heads; ++head) {
    const HeadChoice& chosen = choice(layer, head);
    first_of[static_cast<size_t>(head)] = all.size();
    for (const Region& region : regions.at(chosen.boundary)) {
      all.push_back({head, &region, scaled(pattern_for(chosen, region), length(rows))});
    }
  }
  // A single pattern is as published, which looks at the last queries whatever they are.
  resolve_all(context, queries, rows, scale, table_ ? ProbeOf::each_modality : ProbeOf::region,
              all);
  const auto index_of = [&](int head, size_t region) -> const LineIndex& {
    return all[first_of[static_cast<size_t>(head)] + region].index;
  };
  const auto alike = [&](int a, int b) {
    const HeadChoice &one = choice(layer, a), &other = choice(layer, b);
    if (one.boundary != other.boundary || label_of(one) != label_of(other)) return false;
    for (size_t i = 0; i < regions.at(one.boundary).size(); ++i) {
      if (index_of(a, i) != index_of(b, i)) return false;
    }
    return true;
  };

  // Siblings with equal indexes share tiles, so that keys are read once for all of them.
  struct Part {
    int head, end;
    size_t region;
    Plan plan{};
  };
  std::vector<Part> parts;
  for (int head = 0; head < heads;) {
    const HeadChoice& chosen = choice(layer, head);
    int end = head + 1;
    while (end < heads && end / group == head / group && alike(head, end)) ++end;
    for (size_t i = 0; i < regions.at(chosen.boundary).size(); ++i) parts.push_back({head, end, i});
    head = end;
  }
  for_each(parts.size(), [&](size_t i) {
    Part& part = parts[i];
    PlanBuilder builder(queries, rows);
    add_line_tiles(builder, regions.at(choice(layer, part.head).boundary)[part.region],
                   index_of(part.head, part.region), part.head, part.end - part.head);
    part.plan = builder.take();
  });
  std::map<std::string, std::vector<Plan>> plans;
  for (Part& part : parts) {
    plans[label_of(choice(layer, part.head))].push_back(std::move(part.plan));
  }
  std::vector<LabelledPlan> result;
  for (auto& [label, pieces] : plans) {
    result.push_back({label, join(std::move(pieces), context.threads)});
  }
  return result;
}

}  // namespace kinora

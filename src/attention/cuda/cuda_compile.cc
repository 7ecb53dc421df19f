#include "attention/cuda/cuda_compile.h"

#include <algorithm>
#include <map>

namespace kinora {
namespace {

// A list is cut no finer than this many blocks of keys.
constexpr int64_t fewest_blocks = 8;
constexpr int64_t parts_per_processor = 4;

// The number of rows not later than each query; nothing is kept where they grow one by one from
// `limit_base`, as those of a group at the end of memory do.
void find_limits(CudaPlan& plan, std::span<const int32_t> queries, std::span<const int32_t> rows) {
  if (queries.empty()) return;
  auto at = static_cast<size_t>(visible_rows(rows, queries[0]));
  plan.limit_base = static_cast<int32_t>(at);
  const auto without_gaps = [](std::span<const int32_t> ordinals) {
    return int64_t{ordinals.back()} - ordinals.front() + 1 == std::ssize(ordinals);
  };
  // Both increase strictly, so that their ends tell; `at` rows are not later than the first query.
  if (at > 0 && without_gaps(queries) && without_gaps(rows) && queries.back() <= rows.back()) {
    return;
  }
  plan.limits.resize(queries.size());
  bool affine = true;
  for (size_t i = 0; i < queries.size(); ++i) {
    while (at < rows.size() && rows[at] <= queries[i]) ++at;
    plan.limits[i] = static_cast<int32_t>(at);
    affine &= plan.limits[i] == plan.limit_base + static_cast<int32_t>(i);
  }
  if (affine) plan.limits.clear();
}

int32_t limit_of(const CudaPlan& plan, int64_t query) {
  return plan.limits.empty() ? plan.limit_base + static_cast<int32_t>(query)
                             : plan.limits[static_cast<size_t>(query)];
}

// Blocks of the parts that lists are cut into where there are too few jobs for all processors; 0
// leaves them whole. Told by the shape of the problem and not by the tiles, and parts start at
// multiples of it: the same keys in other tiles give the same bits.
int64_t part_blocks(const CudaShape& shape, const CudaCut& cut) {
  const int64_t group = shape.heads / shape.kv_heads;
  const int64_t jobs = (shape.queries * group + cut.job_rows - 1) / cut.job_rows * shape.kv_heads;
  if (!cut.split || jobs >= 2 * int64_t{cut.processors}) return 0;
  const int64_t blocks = (shape.rows + cut.block_keys - 1) / cut.block_keys;
  return std::max(fewest_blocks, jobs * blocks / (int64_t{cut.processors} * parts_per_processor));
}

void split_jobs(CudaPlan& plan, int64_t job_begin, int64_t step) {
  std::vector<CudaJob> jobs;
  for (size_t i = static_cast<size_t>(job_begin); i < plan.jobs.size(); ++i) {
    const CudaJob& job = plan.jobs[i];
    const int64_t parts = (job.blocks + step - 1) / step;
    if (parts <= 1) {
      jobs.push_back(job);
      continue;
    }
    CudaMerge merge{job, static_cast<int32_t>(parts), 0};
    merge.job.partial = plan.partial_rows;
    plan.merges.push_back(merge);
    for (int64_t part = 0; part < parts; ++part) {
      CudaJob piece = job;
      piece.first_block = static_cast<int32_t>(part * step);
      piece.blocks = static_cast<int32_t>(std::min(step, job.blocks - part * step));
      piece.partial = plan.partial_rows;
      plan.partial_rows += job.rows;
      jobs.push_back(piece);
    }
  }
  plan.jobs.resize(static_cast<size_t>(job_begin));
  plan.jobs.insert(plan.jobs.end(), jobs.begin(), jobs.end());
}

// Ends a pass: its jobs are cut and put in order, longest first, so that no processor is left alone
// with a long job at the end.
void close_pass(CudaPlan& plan, const CudaShape& shape, const CudaCut& cut) {
  CudaPass pass;
  if (!plan.passes.empty()) {
    pass.job_begin = plan.passes.back().job_end;
    pass.merge_begin = plan.passes.back().merge_end;
  }
  if (const int64_t step = part_blocks(shape, cut); step > 0) {
    split_jobs(plan, pass.job_begin, step);
  }
  const auto longer = [](const CudaJob& a, const CudaJob& b) { return a.blocks > b.blocks; };
  const auto first = plan.jobs.begin() + pass.job_begin;
  if (!std::is_sorted(first, plan.jobs.end(), longer)) {
    std::stable_sort(first, plan.jobs.end(), longer);
  }
  pass.job_end = static_cast<int64_t>(plan.jobs.size());
  pass.merge_end = static_cast<int64_t>(plan.merges.size());
  plan.passes.push_back(pass);
}

void find_start(CudaPlan& plan) {
  plan.start = ListStart::blocks;
  for (const CudaSegment& segment : plan.segments) {
    if (segment.stride != 1) {
      plan.start = ListStart::scattered;
      return;
    }
    if (segment.begin % piece_keys != 0) plan.start = ListStart::rows;
  }
  if (plan.start == ListStart::rows && !plan.merges.empty()) plan.start = ListStart::scattered;
}

int32_t block_count(CudaSegment segment, const CudaJob& job, const CudaCut& cut) {
  segment.trim(job.low, job.high);
  return (segment.count + cut.block_keys - 1) / cut.block_keys;
}

class Compiler {
 public:
  Compiler(const Plan& plan, const CudaCut& cut) : plan_(plan), cut_(cut) {}

  CudaPlan compile(std::span<const int32_t> query_ordinals, std::span<const int32_t> row_ordinals) {
    const bool masked = std::any_of(plan_.segments.begin(), plan_.segments.end(),
                                    [](const Segment& segment) { return segment.masked; });
    if (masked) find_limits(out_, query_ordinals, row_ordinals);
    out_.segments.reserve(plan_.segments.size());
    out_.gathered.reserve(plan_.gathered.size());
    out_.jobs.reserve(plan_.tiles.size());
    int32_t passes = 1;
    int64_t covered = 0;
    for (const Tile& tile : plan_.tiles) {
      passes = std::max(passes, tile.pass + 1);
      if (tile.pass == 0) covered += tile.queries() * tile.heads;
    }
    out_.covers_all = covered == plan_.query_count * plan_.heads;
    for (int32_t pass = 0; pass < passes; ++pass) {
      for (const Tile& tile : plan_.tiles) {
        if (tile.pass == pass) add_tile(tile);
      }
      close_pass(out_, {plan_.heads, plan_.kv_heads, plan_.query_count, plan_.row_count}, cut_);
    }
    find_start(out_);
    return std::move(out_);
  }

 private:
  // Canonical form of a list: neighbouring rows joined, crumbs of less than a block gathered.
  std::pair<int64_t, int64_t> list_of(const Tile& tile) {
    const auto key = std::make_pair(tile.segment_begin, tile.segment_end);
    if (const auto found = lists_.find(key); found != lists_.end()) return found->second;
    std::vector<CudaSegment>& list = list_;
    list.clear();
    for (int64_t i = tile.segment_begin; i < tile.segment_end; ++i) {
      const Segment& from = plan_.segments[static_cast<size_t>(i)];
      if (from.count == 0) continue;
      CudaSegment next;
      next.begin = from.begin;
      next.count = static_cast<int32_t>(from.count);
      next.full = from.masked ? 0 : next.count;
      next.stride = from.count == 1 && from.stride > 1 ? 1 : from.stride;
      if (!list.empty() && joins(list.back(), next)) {
        CudaSegment& last = list.back();
        if (last.full == last.count) last.full += next.full;
        last.count += next.count;
      } else {
        list.push_back(next);
      }
    }
    gather_crumbs(list);
    const auto begin = static_cast<int64_t>(out_.segments.size());
    for (CudaSegment& segment : list) {
      if (segment.stride > 1) segment.shift = place_of_stride(segment.stride);
      out_.any_row_lists |= segment.stride == gathered_stride || segment.shift < 0;
      out_.segments.push_back(segment);
    }
    const auto range = std::make_pair(begin, static_cast<int64_t>(out_.segments.size()));
    lists_.emplace(key, range);
    return range;
  }

  // A stride's place in the plan's list; −1 where that is full.
  int32_t place_of_stride(int32_t stride) {
    const auto found = std::find(out_.strides.begin(), out_.strides.end(), stride);
    const auto place = static_cast<int32_t>(found - out_.strides.begin());
    if (found != out_.strides.end()) return place;
    if (place == most_stride_maps) return -1;
    out_.strides.push_back(stride);
    return place;
  }

  // Whether b continues a, so that their keys can be one segment: no full keys after masked ones.
  static bool joins(const CudaSegment& a, const CudaSegment& b) {
    if (a.full < a.count && b.full > 0) return false;
    if (a.stride != b.stride) return false;
    return b.begin == a.begin + int64_t{a.count} * std::max(a.stride, 1);
  }

  void gather_crumbs(std::vector<CudaSegment>& list) {
    const auto crumb = [&](const CudaSegment& segment) { return segment.count < cut_.block_keys; };
    if (std::count_if(list.begin(), list.end(), crumb) < 2) {
      for (CudaSegment& segment : list) {
        if (segment.stride == 0) segment.begin = copy_gathered(segment.begin, segment.count);
      }
      return;
    }
    CudaSegment crumbs;
    crumbs.begin = static_cast<int64_t>(out_.gathered.size());
    crumbs.stride = 0;
    for (const bool masked : {false, true}) {
      for (const CudaSegment& segment : list) {
        if (!crumb(segment)) continue;
        const int32_t begin = masked ? segment.full : 0;
        const int32_t end = masked ? segment.count : segment.full;
        for (int32_t i = begin; i < end; ++i) out_.gathered.push_back(row_of(segment, i));
        crumbs.count += end - begin;
        if (!masked) crumbs.full += end - begin;
      }
    }
    std::vector<CudaSegment> kept;
    for (CudaSegment segment : list) {
      if (crumb(segment)) continue;
      if (segment.stride == 0) segment.begin = copy_gathered(segment.begin, segment.count);
      kept.push_back(segment);
    }
    kept.push_back(crumbs);
    list = std::move(kept);
  }

  int32_t row_of(const CudaSegment& segment, int32_t i) const {
    return segment.stride == 0 ? plan_.gathered[static_cast<size_t>(segment.begin + i)]
                               : static_cast<int32_t>(segment.begin + int64_t{i} * segment.stride);
  }

  int64_t copy_gathered(int64_t begin, int32_t count) {
    const auto at = static_cast<int64_t>(out_.gathered.size());
    out_.gathered.insert(out_.gathered.end(), plan_.gathered.begin() + begin,
                         plan_.gathered.begin() + begin + count);
    return at;
  }

  void add_tile(const Tile& tile) {
    if (tile.queries() == 0) return;
    const auto [segment_begin, segment_end] = list_of(tile);
    CudaJob job;
    job.segment_begin = segment_begin;
    job.segments = static_cast<int32_t>(segment_end - segment_begin);
    job.head = tile.head;
    job.heads = tile.heads;
    place_queries(tile, job);
    const int64_t rows = tile.queries() * tile.heads;
    const int64_t pieces = (rows + cut_.job_rows - 1) / cut_.job_rows;
    for (int64_t piece = 0; piece < pieces; ++piece) {
      job.row_begin = rows * piece / pieces;
      job.rows = static_cast<int32_t>(rows * (piece + 1) / pieces - job.row_begin);
      const int64_t first = tile.query_begin + job.row_begin / tile.heads;
      const int64_t last = tile.query_begin + (job.row_begin + job.rows - 1) / tile.heads;
      job.low = job.high = limit_of(out_, plan_.query_rows[static_cast<size_t>(first)]);
      if (job.listed == 0) {  // limits rise with the queries
        job.high = limit_of(out_, plan_.query_rows[static_cast<size_t>(last)]);
      }
      for (int64_t i = first + 1; job.listed != 0 && i <= last; ++i) {
        const int32_t seen = limit_of(out_, plan_.query_rows[static_cast<size_t>(i)]);
        job.low = std::min(job.low, seen);
        job.high = std::max(job.high, seen);
      }
      job.blocks = 0;
      for (int64_t i = segment_begin; i < segment_end; ++i) {
        job.blocks += block_count(out_.segments[static_cast<size_t>(i)], job, cut_);
      }
      out_.jobs.push_back(job);
    }
  }

  // A range of queries needs no list. Heads share their tiles' queries, so each is looked at once.
  void place_queries(const Tile& tile, CudaJob& job) {
    const auto key = std::make_pair(tile.query_begin, tile.query_end);
    const auto [found, added] = query_places_.try_emplace(key);
    if (added) {
      const auto* rows = plan_.query_rows.data() + tile.query_begin;
      const int64_t count = tile.queries();
      bool range = true;
      for (int64_t i = 1; i < count && range; ++i) range = rows[i] == rows[i - 1] + 1;
      found->second = {range ? int64_t{rows[0]} : static_cast<int64_t>(out_.queries.size()),
                       !range};
      if (!range) out_.queries.insert(out_.queries.end(), rows, rows + count);
    }
    job.query_begin = found->second.first;
    job.listed = found->second.second ? 1 : 0;
  }

  const Plan& plan_;
  const CudaCut& cut_;
  CudaPlan out_;
  std::vector<CudaSegment> list_;  // under way
  std::map<std::pair<int64_t, int64_t>, std::pair<int64_t, int64_t>> lists_;
  std::map<std::pair<int64_t, int64_t>, std::pair<int64_t, bool>> query_places_;  // begin, listed
};

}  // namespace

CudaPlan compile_plan(const Plan& plan, std::span<const int32_t> query_ordinals,
                      std::span<const int32_t> row_ordinals, const CudaCut& cut) {
  return Compiler(plan, cut).compile(query_ordinals, row_ordinals);
}

CudaPlan compile_dense(const CudaShape& shape, std::span<const int32_t> query_ordinals,
                       std::span<const int32_t> row_ordinals, const CudaCut& cut) {
  CudaPlan plan;
  plan.covers_all = true;
  find_limits(plan, query_ordinals, row_ordinals);
  CudaSegment all;
  all.count = static_cast<int32_t>(shape.rows);
  plan.segments.push_back(all);
  const int64_t group = shape.heads / shape.kv_heads;
  const int64_t rows = shape.queries * group;
  CudaJob job;
  job.segments = 1;
  job.heads = static_cast<int32_t>(group);
  // From the last rows, which read most, to the first; kv heads side by side.
  for (int64_t end = rows; end > 0; end = job.row_begin) {
    job.row_begin = (end - 1) / cut.job_rows * cut.job_rows;
    job.rows = static_cast<int32_t>(end - job.row_begin);
    job.low = limit_of(plan, job.row_begin / group);
    job.high = limit_of(plan, (end - 1) / group);
    job.blocks = block_count(all, job, cut);
    for (int64_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
      job.head = static_cast<int32_t>(kv_head * group);
      plan.jobs.push_back(job);
    }
  }
  close_pass(plan, shape, cut);
  find_start(plan);
  return plan;
}

CudaPlan compile_windows(const CudaShape& shape, std::span<const int32_t> offsets,
                         const CudaCut& cut) {
  CudaPlan plan;
  plan.covers_all = true;
  plan.repeats = cut.repeat_jobs ? static_cast<int32_t>(shape.heads) : 1;
  CudaJob job;
  job.segments = 1;
  for (size_t window = 0; window + 1 < offsets.size(); ++window) {
    const int64_t begin = offsets[window];
    const int64_t end = offsets[window + 1];
    if (begin == end) continue;
    CudaSegment segment;
    segment.begin = begin;
    segment.count = segment.full = static_cast<int32_t>(end - begin);
    job.segment_begin = static_cast<int64_t>(plan.segments.size());
    plan.segments.push_back(segment);
    job.blocks = block_count(segment, job, cut);
    for (int64_t row = begin; row < end; row += cut.job_rows) {
      job.query_begin = row;
      job.rows = static_cast<int32_t>(std::min<int64_t>(cut.job_rows, end - row));
      for (int64_t head = 0; head < shape.heads; head += plan.repeats) {
        job.head = static_cast<int32_t>(head);
        plan.jobs.push_back(job);
      }
    }
  }
  CudaCut whole = cut;
  whole.split = false;  // parts of repeated jobs would share their partial results
  close_pass(plan, shape, whole);
  find_start(plan);
  return plan;
}

}  // namespace kinora

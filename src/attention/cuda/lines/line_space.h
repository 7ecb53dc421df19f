// A region (plan/region.h) as plans made on a GPU see it: rows that lie side by side, queries by a
// list, and what depends on modalities and ordinals alone. Every layer of a group uses the same
// ones. Private to attention/.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "attention/attention.h"
#include "attention/plan/region.h"
#include "attention/search/probe.h"
#include "base/context.h"
#include "base/tensor.h"

namespace kinora::cuda_attention {

// Adjacent queries of a space that share one list of keys: their coordinates count up by one.
struct LineTile {
  int32_t first = 0;  // place of the first one among the queries of the space
  int32_t count = 0;
  int32_t coordinate = 0;  // of the first one, counted from the first row
  int32_t reach = 0;       // likewise
  int32_t drawn = 0;       // which of the heights it is drawn with
};

// Adjacent queries that are looked at to find lines, at most 64.
struct ProbeRun {
  int32_t query = 0;  // the first one in the QueryView
  int32_t count = 0;
  int32_t coordinate = 0;           // of the first one, counted from the first row
  int32_t limit = 0;                // rows that it sees,
  int32_t limit_step = 1;           // and how many more each that follows
  std::vector<int32_t> ordinals{};  // [count]: with them and the space's rows it sees just these
};

// Tiles are drawn as if they were a little higher than they are where there are many heights.
constexpr int most_drawn_heights = 3;

struct LineSpace {
  Modality query_modality = Modality::text;
  Modality key_modality = Modality::text;
  // Rows [row_begin, row_begin + row_count) of memory, or those of a list.
  int64_t row_begin = 0;
  int64_t row_count = 0;
  std::vector<int32_t> row_list{};
  std::vector<int32_t> row_ordinals{};  // empty: as in memory
  int32_t first_row = 0;                // coordinate of the first row
  int32_t first_query = 0;              // and of the first query
  bool adjacent = true;                 // coordinates of the queries count up by one
  bool by_place = false;   // the reach is the last row that is seen; else the coordinate itself
  bool covers_all = true;  // all queries are in it

  int64_t query_count = 0;
  std::vector<int32_t> queries{};  // [query_count] in the QueryView; empty: all, in order
  std::vector<int32_t>
      limits{};  // [queries of the QueryView]: rows seen; empty: limit_base + query
  int32_t limit_base = 0;
  std::vector<LineTile> tiles{};
  std::vector<int32_t> heights{};  // that tiles are drawn with, at most most_drawn_heights
  std::vector<ProbeRun> probes{};

  // The same in device memory, sent by upload().
  Tensor device_queries{}, device_limits{}, device_tiles{}, device_rows{};
};

// All queries and rows as one region, without gaps (device_plan.h); nothing is sent.
LineSpace whole_space(const QueryView& queries, const RowSet& rows, ProbeOf of = ProbeOf::region);
// A region of unbroken queries and rows; none where its rows have gaps that its lines would meet.
std::optional<LineSpace> line_space(const Region& region, Boundary boundary,
                                    const QueryView& queries, const RowSet& rows, ProbeOf of);
void upload(const Context& context, LineSpace& space);

// The rows of a space: a part of memory, or copies, which are made into the tensors.
RowSet rows_of(const Context& context, const LineSpace& space, const RowSet& memory, Tensor& keys,
               Tensor& values);

// The spaces of one group's boundaries, kept while queries and rows have the same ordinals and
// modalities: the layers of a group ask for them one after another.
class LineSpaces {
 public:
  // Null where a region is none for a GPU. Queries and rows are unbroken.
  const std::vector<LineSpace>* find(const Context& context, Boundary boundary,
                                     const QueryView& queries, const RowSet& rows, ProbeOf of);

 private:
  // Ordinals have no gaps, so that the first ones tell all.
  struct Key {
    int32_t first_query = 0, first_row = 0;
    std::vector<Modality> query_modalities, row_modalities;
    int device = 0;
    ProbeOf of = ProbeOf::region;
  };
  std::optional<Key> key_;
  std::map<Boundary, std::optional<std::vector<LineSpace>>> spaces_;
};

}  // namespace kinora::cuda_attention

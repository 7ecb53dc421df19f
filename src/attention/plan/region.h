// A region is a set of query rows and a set of key rows that a pattern treats as one plane.
// Modality boundaries cut the whole plane into regions; inside one, a pattern sees only
// coordinates, so that every pattern works for every boundary, for pruned memory and for any
// interleaving.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "attention/attention.h"
#include "attention/plan/plan.h"

namespace kinora {

// Where a head's pattern breaks: nowhere, between key modalities, between query modalities, or
// both.
enum class Boundary : uint8_t { none, key, query, both };

std::string_view boundary_name(Boundary boundary);  // "none", "key", "query", "both"
Boundary parse_boundary(std::string_view name);     // throws a bad_input error

// Where a pattern has its lines. For none, key and query the coordinate of a query or key is its
// ordinal, so that lines keep their place across pruned rows. For both it is the place among the
// rows of its own modality, as if rows and columns had been grouped by modality: lines run on
// across what lies between. Two modalities count apart there, so the queries are shifted together,
// by as little as lets none of them see a key of a larger coordinate; within one modality the shift
// is 0. Windows are counted back from the last key that a query sees, its reach.
struct Region {
  Modality query_modality = Modality::text;  // of a query or both boundary
  Modality key_modality = Modality::text;    // of a key or both boundary
  int pass = 0;                              // regions that share queries differ in it
  std::vector<int32_t> queries;              // indexes into the QueryView, increasing
  std::vector<int32_t> rows;                 // indexes into the RowSet, increasing
  std::vector<int32_t> query_coordinates;    // one per query, strictly increasing
  std::vector<int32_t> query_reach;          // largest key coordinate it may see, never decreasing;
                                     // −1: none. By ordinals it is the query's own coordinate
  std::vector<int32_t> row_coordinates;  // one per row, strictly increasing
  std::vector<int32_t> run_ends;  // per place: the place after the run of adjacent rows it is in
  bool unbroken = false;          // rows and coordinates both count up by one

  int64_t row_count() const { return static_cast<int64_t>(rows.size()); }
  // First place whose coordinate is not less than `coordinate`.
  int64_t place_of(int64_t coordinate) const;
};

// All regions of a boundary; only those that have queries and rows.
std::vector<Region> cut_regions(Boundary boundary, const QueryView& queries, const RowSet& rows);

// Keys that one tile reads, in coordinates of its region.
struct TileReads {
  struct Range {
    int64_t begin = 0;
    int64_t end = 0;
  };
  std::vector<Range> ranges;    // any order, may overlap
  int32_t stride = 0;           // lines: coordinates ≡ a phase modulo stride
  std::vector<int32_t> phases;  // each in [0, stride)
  int64_t end = 0;              // nothing from here on is read
};

// Single keys that all tiles of a region read. Their rows are kept in the plan once, so that tiles
// which run together find them to be the same.
struct Columns {
  std::vector<int32_t> coordinates;  // of those that exist, increasing
  int64_t kept = 0;                  // where their rows stand in the builder's plan
};

// Coordinates may name keys that do not exist.
Columns keep_columns(PlanBuilder& builder, const Region& region,
                     std::span<const int32_t> coordinates);

// Adds every key of `reads` and every column once to the builder's list of segments: ranges and
// lines as affine segments where rows are adjacent, everything else gathered. Sorts and merges
// `reads.ranges`.
void add_reads(PlanBuilder& builder, const Region& region, TileReads& reads,
               const Columns& columns = {});

}  // namespace kinora

#include "attention/cuda/lines/line_space.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "attention/plan/line_plan.h"

namespace kinora::cuda_attention {
namespace {

constexpr int64_t probe_queries = 64;

// A query of a region, rows counted from the region's first.
struct Place {
  int32_t query = 0;
  int32_t coordinate = 0;
  int32_t limit = 0;  // rows that it sees
};

bool next_to(const Place& a, const Place& b) { return b.coordinate == a.coordinate + 1; }

int32_t reach_of(const LineSpace& space, const Place& place) {
  return space.by_place ? place.limit - 1 : place.coordinate;
}

void cut_tiles(LineSpace& space, const std::vector<Place>& places) {
  for (size_t begin = 0; begin < places.size();) {
    size_t end = begin + 1;
    while (end < places.size() && end - begin < static_cast<size_t>(line_tile) &&
           next_to(places[end - 1], places[end])) {
      ++end;
    }
    LineTile tile;
    tile.first = static_cast<int32_t>(begin);
    tile.count = static_cast<int32_t>(end - begin);
    tile.coordinate = places[begin].coordinate;
    tile.reach = reach_of(space, places[begin]);
    space.tiles.push_back(tile);
    begin = end;
  }
}

// Every height of its own where there are few, else the next of a few.
void choose_heights(LineSpace& space) {
  std::vector<int32_t> heights;
  for (const LineTile& tile : space.tiles) {
    if (std::find(heights.begin(), heights.end(), tile.count) != heights.end()) continue;
    heights.push_back(tile.count);
    if (heights.size() > most_drawn_heights) break;
  }
  if (heights.size() > most_drawn_heights) {
    heights = {line_tile / 8, line_tile / 2, line_tile};
  }
  std::sort(heights.begin(), heights.end());
  space.heights = heights;
  for (LineTile& tile : space.tiles) {
    const auto at = std::lower_bound(heights.begin(), heights.end(), tile.count);
    tile.drawn = static_cast<int32_t>(at - heights.begin());
  }
}

// The last queries of all or of each modality, cut where their places or what they see leaps.
void choose_probes(LineSpace& space, const QueryView& queries, const std::vector<Place>& places,
                   ProbeOf of) {
  std::array<int64_t, 4> taken{};
  std::vector<Place> chosen;
  for (size_t i = places.size(); i > 0; --i) {
    const Place& place = places[i - 1];
    const auto modality =
        of == ProbeOf::region
            ? size_t{0}
            : static_cast<size_t>(queries.modalities[static_cast<size_t>(place.query)]);
    if (taken[modality]++ < probe_queries) chosen.push_back(place);
  }
  std::reverse(chosen.begin(), chosen.end());
  for (size_t begin = 0; begin < chosen.size();) {
    size_t end = begin + 1;
    const auto goes_on = [&](int32_t step) {
      return end < chosen.size() && end - begin < static_cast<size_t>(probe_queries) &&
             chosen[end].query == chosen[end - 1].query + 1 &&
             next_to(chosen[end - 1], chosen[end]) &&
             chosen[end].limit == chosen[end - 1].limit + step;
    };
    ProbeRun run;
    run.limit_step = goes_on(1) ? 1 : 0;
    while (goes_on(run.limit_step)) ++end;
    run.query = chosen[begin].query;
    run.count = static_cast<int32_t>(end - begin);
    run.coordinate = chosen[begin].coordinate;
    run.limit = chosen[begin].limit;
    for (size_t i = begin; i < end; ++i) {
      run.ordinals.push_back(space.by_place
                                 ? chosen[i].limit - 1
                                 : queries.ordinals[static_cast<size_t>(chosen[i].query)]);
    }
    space.probes.push_back(std::move(run));
    begin = end;
  }
}

}  // namespace

LineSpace whole_space(const QueryView& queries, const RowSet& rows, ProbeOf of) {
  LineSpace space;
  space.row_count = rows.count();
  space.first_row = rows.ordinals.front();
  space.first_query = queries.ordinals.front();
  space.query_count = queries.count();
  space.limit_base = space.first_query - space.first_row + 1;
  std::vector<Place> places;
  places.reserve(static_cast<size_t>(queries.count()));
  for (int32_t query = 0; query < static_cast<int32_t>(queries.count()); ++query) {
    places.push_back({query, space.limit_base - 1 + query, space.limit_base + query});
  }
  cut_tiles(space, places);
  choose_heights(space);
  choose_probes(space, queries, places, of);
  return space;
}

std::optional<LineSpace> line_space(const Region& region, Boundary boundary,
                                    const QueryView& queries, const RowSet& rows, ProbeOf of) {
  if (boundary == Boundary::none) return whole_space(queries, rows, of);
  LineSpace space;
  space.by_place = boundary == Boundary::both;
  if (!region.unbroken && !space.by_place) return std::nullopt;
  space.query_modality = region.query_modality;
  space.key_modality = region.key_modality;
  space.row_count = region.row_count();
  space.first_row = region.row_coordinates.front();
  if (region.unbroken) {
    space.row_begin = region.rows.front();
  } else {
    space.row_list = region.rows;
  }
  if (space.by_place) {
    space.row_ordinals.resize(region.rows.size());
    std::iota(space.row_ordinals.begin(), space.row_ordinals.end(), 0);
  }
  std::vector<Place> places;
  for (size_t i = 0; i < region.queries.size(); ++i) {
    if (region.query_reach[i] < space.first_row) continue;  // it sees none of the rows
    const auto limit = static_cast<int32_t>(region.place_of(int64_t{region.query_reach[i]} + 1));
    places.push_back({region.queries[i], region.query_coordinates[i] - space.first_row, limit});
    space.adjacent =
        space.adjacent && (places.size() == 1 || next_to(places[places.size() - 2], places.back()));
  }
  space.query_count = std::ssize(places);
  space.covers_all = space.query_count == queries.count();
  space.limits.assign(static_cast<size_t>(queries.count()), 0);
  for (const Place& place : places) {
    space.queries.push_back(place.query);
    space.limits[static_cast<size_t>(place.query)] = place.limit;
  }
  if (!places.empty()) space.first_query = places.front().coordinate + space.first_row;
  cut_tiles(space, places);
  choose_heights(space);
  choose_probes(space, queries, places, of);
  return space;
}

const std::vector<LineSpace>* LineSpaces::find(const Context& context, Boundary boundary,
                                               const QueryView& queries, const RowSet& rows,
                                               ProbeOf of) {
  const bool same = key_ && key_->device == context.device.index && key_->of == of &&
                    key_->first_query == queries.ordinals.front() &&
                    key_->first_row == rows.ordinals.front() &&
                    std::ranges::equal(key_->query_modalities, queries.modalities) &&
                    std::ranges::equal(key_->row_modalities, rows.modalities);
  if (!same) {
    const auto copy = [](const auto& from) { return std::vector(from.begin(), from.end()); };
    spaces_.clear();
    key_ = Key{queries.ordinals.front(), rows.ordinals.front(), copy(queries.modalities),
               copy(rows.modalities),    context.device.index,  of};
  }
  const auto [at, fresh] = spaces_.try_emplace(boundary);
  std::optional<std::vector<LineSpace>>& spaces = at->second;
  if (fresh) {
    spaces.emplace();
    if (boundary == Boundary::none) {
      spaces->push_back(whole_space(queries, rows, of));
    } else {
      for (const Region& region : cut_regions(boundary, queries, rows)) {
        std::optional<LineSpace> space = line_space(region, boundary, queries, rows, of);
        if (!space) {
          spaces.reset();
          break;
        }
        if (space->query_count > 0) spaces->push_back(std::move(*space));
      }
    }
    if (spaces) {
      for (LineSpace& space : *spaces) upload(context, space);
    }
  }
  return spaces ? &*spaces : nullptr;
}

}  // namespace kinora::cuda_attention

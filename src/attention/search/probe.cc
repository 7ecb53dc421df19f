#include "attention/search/probe.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "attention/cpu/probe_cpu.h"

namespace kinora {
namespace {

// Places of the queries that are looked through, increasing.
std::vector<int32_t> last_places(const QueryView& queries, const ProbeRequest& request) {
  const Region& region = *request.region;
  std::vector<int32_t> places;
  std::array<int64_t, 4> taken{};  // by modality
  for (size_t i = region.queries.size(); i > 0; --i) {
    if (region.query_reach[i - 1] < region.row_coordinates.front()) break;
    const auto query = static_cast<size_t>(region.queries[i - 1]);
    const auto modality =
        request.of == ProbeOf::region ? size_t{0} : static_cast<size_t>(queries.modalities[query]);
    if (taken[modality]++ < request.count) places.push_back(static_cast<int32_t>(i - 1));
  }
  std::reverse(places.begin(), places.end());
  return places;
}

}  // namespace

std::vector<Probe> probe_regions(const Context& context, const QueryView& queries,
                                 const RowSet& rows, float scale,
                                 std::span<const ProbeRequest> requests) {
  std::vector<Probe> probes(requests.size());
  const int64_t group = queries.queries.size(1) / rows.keys.size(1);
  std::map<std::tuple<const Region*, int64_t, ProbeOf, int64_t>, attention_cpu::Look> together;
  for (size_t i = 0; i < requests.size(); ++i) {
    const ProbeRequest& request = requests[i];
    const Region& region = *request.region;
    const int64_t kv_head = request.head / group;
    const auto [at, fresh] = together.try_emplace({&region, kv_head, request.of, request.count});
    attention_cpu::Look& look = at->second;
    if (fresh) {
      look.region = &region;
      look.kv_head = kv_head;
      look.places = last_places(queries, request);
    }
    Probe& probe = probes[i];
    probe.columns.assign(region.rows.size(), 0.0f);
    probe.queries = std::ssize(look.places);
    if (look.places.empty()) continue;
    const auto last = static_cast<size_t>(look.places.back());
    probe.diagonals.assign(static_cast<size_t>(region.query_coordinates[last]) + 1, 0.0f);
    look.heads.push_back(request.head);
    look.probes.push_back(&probe);
  }
  std::vector<attention_cpu::Look> looks;
  for (auto& [key, look] : together) {
    if (!look.heads.empty()) looks.push_back(std::move(look));
  }
  attention_cpu::run_looks(context, queries, rows, scale, looks);
  return probes;
}

Probe probe_region(const Context& context, const QueryView& queries, const RowSet& rows,
                   const Region& region, int head, float scale, ProbeOf of, int64_t count) {
  const ProbeRequest request{&region, head, of, count};
  return std::move(probe_regions(context, queries, rows, scale, std::span(&request, 1)).front());
}

}  // namespace kinora

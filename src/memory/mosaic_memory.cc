// Mosaic as people choose it: its settings.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "memory/mosaic/mosaic_rows.h"
#include "memory/policies.h"

namespace kinora {

MemoryPolicy mosaic_policy() {
  const auto rules = [](auto field) {
    return [field](auto& options) -> auto& { return options.rules.*field; };
  };
  const std::vector<std::pair<std::string, VisualMatch>> matches{
      {"query", VisualMatch::query}, {"embedding", VisualMatch::embedding}};
  const std::vector<std::pair<std::string, ClusterRank>> ranks{{"mass", ClusterRank::mass},
                                                               {"mean", ClusterRank::mean}};
  const std::vector<std::pair<std::string, ClusterBy>> groupings{{"nested", ClusterBy::nested},
                                                                 {"visual", ClusterBy::visual},
                                                                 {"semantic", ClusterBy::semantic},
                                                                 {"nothing", ClusterBy::nothing}};
  Settings<PartialOptions> reading(MosaicOptions().reading);
  add_rows(reading);
  add_window(reading);
  add_positions(reading);
  add_tiers(reading);
  reading.flag("ahead", &PartialOptions::ahead,
               "whether rows that wait in a file are read as soon as the layer before has chosen");
  Settings<MosaicOptions> settings;
  settings.include(reading, &MosaicOptions::reading)
      .count("recent", &MosaicOptions::recent, {}, "of these, rows of the newest frames")
      .count("representatives", &MosaicOptions::representatives, {0, 512},
             "of these, rows that stand for clusters, at most a quarter of all")
      .count_or("search", &MosaicOptions::search, {1}, {"all", 0},
                "rows of the best visual clusters, whose clusters of rows are searched")
      .choice("visual", &MosaicOptions::visual, matches,
              "what meets visual clusters: a layer's queries their mean key, or the question's "
              "embedding that of their frames")
      .choice("rank", &MosaicOptions::rank, ranks,
              "clusters by the attention each query would give them, or by the sum of queries")
      .choice("by", rules(&MosaicRules::by), groupings,
              "what rows are grouped by: frames and then keys, one of these, or nothing: each is a "
              "cluster")
      .count("cluster", rules(&MosaicRules::cluster_rows), {2}, "rows of a full cluster")
      .count("mean", rules(&MosaicRules::mean_rows), {},
             "rows of a cluster on average, at least: while there are fewer, none is split; 0: no "
             "matter")
      .count_or("resident", rules(&MosaicRules::resident), {1}, {"all", 0},
                "newest tokens whose clusters split at once; older ones when they are next read");
  MemoryPolicy policy;
  policy.info = {"mosaic", "rows in clusters of frames and keys; a question reads the best of them",
                 settings.info()};
  policy.make = [settings](std::span<const GivenSetting> given, const MemoryOptions& options) {
    MosaicOptions chosen = settings.read(given);
    // Clusters of rows that wait in a file split when they are read again.
    if (chosen.rules.resident == 0) chosen.rules.resident = chosen.reading.tiers.host;
    auto rows = std::make_unique<MosaicRows>(chosen, options.layout, options.device);
    return std::make_unique<PartialMemory>(rows_of(options, chosen.reading), std::move(rows),
                                           chosen.reading);
  };
  return policy;
}

}  // namespace kinora

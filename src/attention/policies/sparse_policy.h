// Describes a sparse policy: its own settings, typed, and those that all sparse policies share. For
// the files of single policies; everybody else uses policy.h.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "attention/policies/policy.h"
#include "attention/policies/sparse_attention.h"
#include "base/policy/settings.h"

namespace kinora {

// Settings of every sparse policy.
Settings<SparseOptions> shared_sparse_settings();

// Words of the setting `boundary`.
std::vector<std::pair<std::string, Boundary>> boundary_words();

// make(options, attention options with the shared settings applied) gives the policy itself.
template <typename Options, typename Make>
AttentionPolicy sparse_policy(std::string name, std::string summary, const Settings<Options>& own,
                              Make make) {
  struct Both {
    Options own;
    SparseOptions sparse{};
  };
  Settings<Both> settings(Both{own.initial()});
  settings.include(own, &Both::own).include(shared_sparse_settings(), &Both::sparse);
  AttentionPolicy policy;
  policy.info = {std::move(name), std::move(summary), settings.info()};
  policy.check = [settings](std::span<const GivenSetting> given) { settings.read(given); };
  policy.make = [settings, make = std::move(make)](
                    std::span<const GivenSetting> given,
                    const AttentionOptions& options) -> std::unique_ptr<Attention> {
    Both both = settings.read(given, {settings.initial().own, options.sparse});
    AttentionOptions chosen = options;
    chosen.sparse = std::move(both.sparse);
    return make(std::move(both.own), chosen);
  };
  return policy;
}

}  // namespace kinora

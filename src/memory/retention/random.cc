#include "memory/retention/policies.h"

namespace kinora {
namespace {

// A hash of the key's bits: looks random, is the same in every run and differs between layers.
class RandomRows final : public RetentionRule {
 public:
  std::string_view name() const override { return "random"; }
  std::vector<double> scores(const Context&, ConstTensorView keys, ConstTensorView,
                             ConstTensorView) const override {
    std::vector<double> scores;
    for (int64_t i = 0; i < keys.size(0); ++i) {
      const ConstTensorView row = keys[i];
      uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
      for (int64_t k = 0; k < row.bytes(); ++k) {
        hash = (hash ^ static_cast<uint64_t>(row.raw()[k])) * 0x100000001b3;
      }
      scores.push_back(static_cast<double>((hash ^ (hash >> 31)) * 0x9e3779b97f4a7c15 >> 11));
    }
    return scores;
  }
};

}  // namespace

RetentionPolicy random_policy() {
  return ratio_policy(std::make_shared<RandomRows>(),
                      "rows drawn at random stay, the same in every run: a control");
}

}  // namespace kinora

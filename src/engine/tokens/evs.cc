#include "engine/tokens/changes.h"
#include "engine/tokens/policies.h"

namespace kinora {
namespace {

class ChangeJudge final : public TokenJudge {
 public:
  explicit ChangeJudge(int64_t tokens_per_unit) : changes_(tokens_per_unit) {}
  std::vector<float> scores(const Context& context, ConstTensorView tokens, int64_t units,
                            int64_t) override {
    return changes_.next(context, tokens, units);
  }

 private:
  Changes changes_;
};

class Evs final : public TokenRule {
 public:
  std::string_view name() const override { return "evs"; }
  std::unique_ptr<TokenJudge> begin(int64_t tokens_per_unit) const override {
    return std::make_unique<ChangeJudge>(tokens_per_unit);
  }
};

}  // namespace

TokenPolicy evs_policy() {
  return token_share_policy(
      std::make_shared<Evs>(),
      "what differs most from the same place one step earlier goes on, by 1 − cosine (EVS)");
}

}  // namespace kinora

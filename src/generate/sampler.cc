#include "generate/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "ops/softmax.h"
#include "ops/top_k.h"

namespace kinora {
namespace {

void require(bool holds, const char* name, double value, const char* range) {
  if (!holds) {
    throw Error(ErrorKind::usage, fmt::format("{} is {}, but must be {}", name, value, range));
  }
}

// Below this the softmax of any two different floats is 0 or 1: greedy, without overflow.
constexpr double greedy_below = 1e-5;
constexpr int64_t most_fetched = 1024;  // candidates, from a GPU

double total(const std::vector<Sampler::Candidate>& candidates) {
  return std::accumulate(
      candidates.begin(), candidates.end(), 0.0,
      [](double sum, const Sampler::Candidate& c) { return sum + c.probability; });
}

bool more_likely(const Sampler::Candidate& a, const Sampler::Candidate& b) {
  return a.probability != b.probability ? a.probability > b.probability : a.token < b.token;
}

}  // namespace

// Candidates, likeliest first, sorted only as far as somebody looks: most draws end among the first
// few of a hundred thousand.
class Sampler::Ranking {
 public:
  explicit Ranking(std::vector<Candidate> candidates) : candidates_(std::move(candidates)) {}

  size_t size() const { return candidates_.size(); }
  const Candidate& operator[](size_t place) {
    while (place >= sorted_) sort_more();
    return candidates_[place];
  }
  // Only the first `count` are left.
  void cut(size_t count) {
    if (count >= size()) return;
    if (count > sorted_) sort_to(count);
    candidates_.resize(count);
    sorted_ = std::min(sorted_, count);
  }
  double mass() const { return total(candidates_); }

 private:
  void sort_more() { sort_to(std::min(size(), std::max<size_t>(64, 8 * sorted_))); }
  void sort_to(size_t end) {
    const auto at = [&](size_t place) { return candidates_.begin() + static_cast<int64_t>(place); };
    std::partial_sort(at(sorted_), at(end), candidates_.end(), more_likely);
    sorted_ = end;
  }

  std::vector<Candidate> candidates_;
  size_t sorted_ = 0;
};

void check_sampling(const SamplingOptions& o) {
  require(o.temperature >= 0 && std::isfinite(o.temperature), "temperature", o.temperature,
          "0 (greedy) or larger");
  require(o.top_k >= 0, "top-k", static_cast<double>(o.top_k), "0 (off) or larger");
  require(o.top_p > 0 && o.top_p <= 1, "top-p", o.top_p, "above 0 and at most 1");
  require(o.min_p >= 0 && o.min_p <= 1, "min-p", o.min_p, "from 0 to 1");
  require(o.repetition_penalty > 0 && std::isfinite(o.repetition_penalty), "repetition penalty",
          o.repetition_penalty, "above 0");
}

Sampler::Sampler(const SamplingOptions& options) : options_(options), random_(options.seed) {
  check_sampling(options);
}

void Sampler::penalise(std::span<float> logits, std::span<const int32_t> context) {
  if (options_.repetition_penalty == 1) return;
  const auto penalty = static_cast<float>(options_.repetition_penalty);
  seen_.assign(logits.size(), 0);
  for (const int32_t token : context) {
    const auto index = static_cast<size_t>(token);
    if (token < 0 || index >= logits.size() || seen_[index]) continue;
    seen_[index] = 1;
    logits[index] = logits[index] < 0 ? logits[index] * penalty : logits[index] / penalty;
  }
}

Sampler::Ranking Sampler::rank(std::span<float> logits, std::span<const int32_t> context) {
  if (logits.empty()) throw Error(ErrorKind::internal, "there is no logit to choose from");
  penalise(logits, context);
  const auto best =
      static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  if (options_.temperature < greedy_below) return Ranking({{static_cast<int32_t>(best), 1.0}});

  std::vector<Candidate> candidates(logits.size());
  const double top = logits[best];
  for (size_t i = 0; i < logits.size(); ++i) {
    candidates[i] = {static_cast<int32_t>(i), std::exp((logits[i] - top) / options_.temperature)};
  }
  Ranking ranking(std::move(candidates));
  if (options_.top_k > 0) ranking.cut(static_cast<size_t>(options_.top_k));
  return ranking;
}

std::vector<Sampler::Candidate> Sampler::distribution(std::span<float> logits,
                                                      std::span<const int32_t> context) {
  Ranking ranking = rank(logits, context);
  const Kept kept = narrow(ranking, ranking.mass());
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < kept.count; ++i) {
    candidates.push_back({ranking[i].token, ranking[i].probability / kept.mass});
  }
  return candidates;
}

Sampler::Kept Sampler::narrow(Ranking& ranking, double mass) const {
  Kept kept{ranking.size(), mass};
  if (options_.top_p < 1) {
    // The shortest prefix that holds at least top_p of the mass.
    const double wanted = options_.top_p * mass;
    const size_t all = kept.count;
    kept = {1, ranking[0].probability};
    while (kept.count < all && kept.mass < wanted) {
      kept.mass += ranking[kept.count++].probability;
    }
  }
  if (options_.min_p > 0) {
    const double floor = options_.min_p * ranking[0].probability;
    const size_t all = kept.count;
    kept = {1, ranking[0].probability};
    while (kept.count < all && ranking[kept.count].probability >= floor) {
      kept.mass += ranking[kept.count++].probability;
    }
  }
  return kept;
}

std::optional<int32_t> Sampler::walk(Ranking& ranking, const Kept& kept, double place) {
  for (size_t i = 0; i < kept.count; ++i) {
    place -= ranking[i].probability / kept.mass;
    if (place < 0) return ranking[i].token;
  }
  return std::nullopt;
}

int32_t Sampler::draw(Ranking& ranking, const Kept& kept) {
  if (kept.count == 1) return ranking[0].token;
  const double place = drawn_ ? *drawn_ : random_.uniform();
  drawn_.reset();
  const auto token = walk(ranking, kept, place);
  return token ? *token : ranking[kept.count - 1].token;  // for what rounding has left over
}

int32_t Sampler::pick(std::span<float> logits, std::span<const int32_t> context) {
  Ranking ranking = rank(logits, context);
  return draw(ranking, narrow(ranking, ranking.mass()));
}

// Nothing when the choice depends on more candidates than are fetched.
std::optional<int32_t> Sampler::pick_on_gpu(const Context& where, ConstTensorView logits) {
  if (options_.temperature < greedy_below) return argmax(where, logits);
  const bool all = options_.top_k == 0 || options_.top_k >= logits.size(0);
  if (logits.size(0) <= few_logits || (!all && options_.top_k > most_fetched)) return std::nullopt;
  const auto best = top_k(where, logits, all ? most_fetched : options_.top_k);
  if (best.empty()) throw Error(ErrorKind::bad_input, "every logit is NaN");
  std::vector<Candidate> candidates;
  for (const auto& entry : best) {
    candidates.push_back({entry.index, std::exp((static_cast<double>(entry.value) - best[0].value) /
                                                options_.temperature)});
  }
  const double last = candidates.back().probability;
  Ranking ranking(std::move(candidates));
  const double fetched = ranking.mass();
  if (!all) return draw(ranking, narrow(ranking, fetched));
  const double mass = exp_sum(where, logits, best[0].value, 1 / options_.temperature);
  if (options_.top_p == 1 && options_.min_p == 0) {
    // Most draws fall on what was fetched. One that does not is the same among all of them.
    drawn_ = random_.uniform();
    const auto token = walk(ranking, {ranking.size(), mass}, *drawn_);
    if (token) drawn_.reset();
    return token;
  }
  if (fetched < options_.top_p * mass && last >= options_.min_p) return std::nullopt;
  return draw(ranking, narrow(ranking, mass));
}

bool Sampler::takes_the_largest() const {
  return options_.temperature < greedy_below && options_.repetition_penalty == 1;
}

int32_t Sampler::pick(const Context& where, TensorView row, std::span<const int32_t> context) {
  if (row.rank() != 1) throw Error(ErrorKind::internal, "a token is picked from one row");
  const auto count = static_cast<size_t>(row.size(0));
  if (row.device().is_cpu()) return pick({row.data<float>(), count}, context);
  if (options_.repetition_penalty == 1) {
    if (const auto token = pick_on_gpu(where, row)) return *token;
  }
  std::vector<float> host(count);
  copy_bytes(host.data(), Device::cpu(), row.raw(), row.device(), count * sizeof(float));
  return pick(host, context);
}

}  // namespace kinora

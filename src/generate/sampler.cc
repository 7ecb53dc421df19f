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

std::vector<Sampler::Candidate> Sampler::distribution(std::span<float> logits,
                                                      std::span<const int32_t> context) {
  if (logits.empty()) throw Error(ErrorKind::internal, "there is no logit to choose from");
  penalise(logits, context);
  const auto best =
      static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  if (options_.temperature < greedy_below) return {{static_cast<int32_t>(best), 1.0}};

  std::vector<Candidate> candidates(logits.size());
  const double top = logits[best];
  for (size_t i = 0; i < logits.size(); ++i) {
    candidates[i] = {static_cast<int32_t>(i), std::exp((logits[i] - top) / options_.temperature)};
  }
  size_t kept = candidates.size();
  if (options_.top_k > 0) kept = std::min(kept, static_cast<size_t>(options_.top_k));
  std::partial_sort(candidates.begin(), candidates.begin() + static_cast<int64_t>(kept),
                    candidates.end(), more_likely);
  candidates.resize(kept);
  const double mass = total(candidates);
  return narrowed(std::move(candidates), mass);
}

std::vector<Sampler::Candidate> Sampler::narrowed(std::vector<Candidate> candidates,
                                                  double mass) const {
  if (options_.top_p < 1) {
    // The shortest prefix that holds at least top_p of the mass.
    const double wanted = options_.top_p * mass;
    double held = 0;
    size_t count = 0;
    while (count < candidates.size() && held < wanted) held += candidates[count++].probability;
    candidates.resize(std::max<size_t>(1, count));
  }
  if (options_.min_p > 0) {
    const double floor = options_.min_p * candidates.front().probability;
    const auto end = std::find_if(candidates.begin() + 1, candidates.end(),
                                  [&](const Candidate& c) { return c.probability < floor; });
    candidates.erase(end, candidates.end());
  }
  const double sum = total(candidates);
  for (Candidate& candidate : candidates) candidate.probability /= sum;
  return candidates;
}

int32_t Sampler::draw(const std::vector<Candidate>& candidates) {
  if (candidates.size() == 1) return candidates.front().token;
  double left = random_.uniform();
  for (const Candidate& candidate : candidates) {
    left -= candidate.probability;
    if (left < 0) return candidate.token;
  }
  return candidates.back().token;
}

int32_t Sampler::pick(std::span<float> logits, std::span<const int32_t> context) {
  return draw(distribution(logits, context));
}

// Nothing when the choice depends on more candidates than are fetched.
std::optional<int32_t> Sampler::pick_on_gpu(const Context& where, ConstTensorView logits) {
  if (options_.temperature < greedy_below) return argmax(where, logits);
  const bool all = options_.top_k == 0 || options_.top_k >= logits.size(0);
  if ((all && options_.top_p == 1 && options_.min_p == 0) ||
      (!all && options_.top_k > most_fetched)) {
    return std::nullopt;
  }
  const auto best = top_k(where, logits, all ? most_fetched : options_.top_k);
  if (best.empty()) throw Error(ErrorKind::bad_input, "every logit is NaN");
  std::vector<Candidate> candidates;
  for (const auto& entry : best) {
    candidates.push_back({entry.index, std::exp((static_cast<double>(entry.value) - best[0].value) /
                                                options_.temperature)});
  }
  const double fetched = total(candidates);
  double mass = fetched;
  if (all) {
    mass = exp_sum(where, logits, best[0].value, 1 / options_.temperature);
    const bool enough =
        fetched >= options_.top_p * mass || candidates.back().probability < options_.min_p;
    if (!enough) return std::nullopt;
  }
  return draw(narrowed(std::move(candidates), mass));
}

bool Sampler::takes_the_largest() const {
  return options_.temperature < greedy_below && options_.repetition_penalty == 1;
}

int32_t Sampler::pick(const Context& where, TensorView row, std::span<const int32_t> context) {
  if (row.rank() != 1) throw Error(ErrorKind::internal, "a token is picked from one row");
  const auto count = static_cast<size_t>(row.size(0));
  if (where.device.is_cpu()) return pick({row.data<float>(), count}, context);
  if (options_.repetition_penalty == 1) {
    if (const auto token = pick_on_gpu(where, row)) return *token;
  }
  std::vector<float> host(count);
  copy_bytes(host.data(), Device::cpu(), row.raw(), row.device(), count * sizeof(float));
  return pick(host, context);
}

}  // namespace kinora

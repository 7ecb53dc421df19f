#include "generate/draft_pace.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "model/decoder/steps.h"

namespace kinora {
namespace {

// One more token costs a CPU a good part of a plain pass, a GPU next to nothing.
DraftCosts::Shares first_shares(Device device, double level) {
  const double token = device.is_cpu() ? 0.25 : 0.01;
  return {token, level, token};
}

std::vector<double> probabilities(const DraftTree& tree, std::span<const int32_t> nodes) {
  std::vector<double> out;
  for (const int32_t node : nodes) {
    out.push_back(std::exp(double{tree.nodes()[static_cast<size_t>(node)].confidence}));
  }
  return out;
}

}  // namespace

DraftPace::DraftPace(const TreeShape& shape, bool adapt, Device device, double level)
    : shape_(shape),
      adapt_(adapt),
      costs_(device.is_cpu() ? DraftCosts(first_shares(device, level))
                             : DraftCosts(first_shares(device, level), captured_tokens)),
      widths_(shape) {}

double DraftPace::now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool DraftPace::begin(bool possible) {
  began_ = now();
  drafted_ = 0;
  promised_ = 0;
  usual_ = true;
  width_ = 0;
  wanted_ = !adapt_ || costs_.try_now();
  tried_ = possible && wanted_;
  return tried_;
}

Draft DraftPace::grow(std::span<const Guess> first, int64_t most, int64_t deepest,
                      const RunLevel& run) {
  DraftTree tree;
  tree.add(-1, first);
  for (int64_t level = 0; level < std::min(shape_.depth, deepest - 1); ++level) {
    std::vector<int32_t> frontier = tree.frontier(shape_.width);
    if (adapt_) {
      std::vector<double> leaves = probabilities(tree, frontier);
      std::sort(leaves.rbegin(), leaves.rend());
      const std::vector<double> all = probabilities(tree, tree.ranked());
      const int64_t width = costs_.worth_going_on(leaves, all, level, now() - began_);
      if (width == 0) break;
      frontier = tree.frontier(width);
    }
    const std::vector<double> above = probabilities(tree, frontier);
    const Level found = timed([&] { return run(tree, frontier); });
    double below = 0;
    for (size_t i = 0; i < frontier.size(); ++i) {
      const std::vector<Guess>& guesses = found.followers[i];
      tree.add(frontier[i], guesses);
      if (!guesses.empty()) below += above[i] * std::exp(double{guesses[0].log_probability});
    }
    costs_.note_growth(std::accumulate(above.begin(), above.end(), 0.0), below);
  }
  return choose(tree, rank(tree, most));
}

Draft DraftPace::grow_whole(int64_t most, const RunWhole& run) {
  TreeShape shape = shape_;
  if (adapt_) shape.width = widths_.next();
  const GrownTree grown = run(shape);
  usual_ = grown.replayed;
  const Ranking ranking = rank(grown.tree, most);
  if (adapt_) {
    width_ = shape.width;
    widths_.see(shape.width, grown.tree, ranking.confidences, costs_);
  }
  return choose(grown.tree, ranking);
}

DraftPace::Ranking DraftPace::rank(const DraftTree& tree, int64_t most) const {
  Ranking ranking;
  ranking.nodes = tree.ranked(std::min(most, shape_.total - 1));
  ranking.confidences = probabilities(tree, ranking.nodes);
  return ranking;
}

Draft DraftPace::choose(const DraftTree& tree, const Ranking& ranking) {
  choose_of(ranking.confidences);
  return tree.best(ranking.nodes, drafted_);
}

void DraftPace::choose_of(std::span<const double> confidences) {
  drafted_ = adapt_ ? costs_.worth_checking(confidences, now() - began_) : std::ssize(confidences);
  promised_ = std::accumulate(confidences.begin(), confidences.begin() + drafted_, 0.0);
}

int64_t DraftPace::take(std::span<const double> confidences) {
  choose_of(confidences);
  tried_ = drafted_ > 0;  // looking cost nothing
  return drafted_;
}

void DraftPace::end() { proposed_ = now(); }

void DraftPace::learn(int64_t right, bool usual) {
  const double passing = now() - proposed_;
  if (!usual) return;
  if (tried_ && usual_)
    costs_.note_step(proposed_ - began_, passing, 1 + drafted_, right, promised_);
  costs_.note_pass(1 + drafted_, passing);
  if (width_ > 0 && usual_) {
    widths_.note(width_, {proposed_ - began_, passing, static_cast<double>(right), promised_});
  }
}

}  // namespace kinora

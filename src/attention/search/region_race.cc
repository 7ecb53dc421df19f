#include "attention/search/region_race.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "attention/runner.h"

namespace kinora {
namespace {

constexpr size_t parts = 16;  // of a plan's tiles; the first one sorts the patterns

}  // namespace

HeadOutcome run_head(const Context& context, const Plan& plan, const HeadViews& head, float scale) {
  const auto count = static_cast<size_t>(head.queries.count());
  HeadOutcome outcome{Tensor(DType::f32, head.queries.queries.shape()), std::vector<float>(count)};
  std::vector<float> sum(count);
  run_plan(context, plan, head.queries, head.rows, scale, outcome.out,
           {.state = {outcome.log_sums.data(), sum.data()}});
  for (size_t i = 0; i < count; ++i) outcome.log_sums[i] += std::log(sum[i]);
  return outcome;
}

class RegionRace::Runner {
 public:
  Runner(const RegionRace& race, const LineIndex& index, std::span<const double> hard)
      : race_(race), gaps_(static_cast<size_t>(race.head_.queries.count())) {
    PlanBuilder builder(race.head_.queries, race.head_.rows);
    add_line_tiles(builder, race.region_, index, 0);
    plan_ = builder.take();
    tiles_.swap(plan_.tiles);
    order_.resize(tiles_.size());
    if (hard.empty()) {
      // A step that shares no factor with their number goes through all of them.
      size_t step = tiles_.size() * 618 / 1000 + 1;
      while (std::gcd(step, tiles_.size()) > 1) ++step;
      for (size_t i = 0; i < order_.size(); ++i) order_[i] = i * step % tiles_.size();
      return;
    }
    std::vector<double> expected(tiles_.size());
    for (size_t i = 0; i < tiles_.size(); ++i) {
      order_[i] = i;
      for (int64_t q = tiles_[i].query_begin; q < tiles_[i].query_end; ++q) {
        expected[i] += hard[static_cast<size_t>(plan_.query_rows[static_cast<size_t>(q)])];
      }
      expected[i] /= static_cast<double>(std::max<int64_t>(1, tiles_[i].queries()));
    }
    std::stable_sort(order_.begin(), order_.end(),
                     [&](size_t a, size_t b) { return expected[a] > expected[b]; });
  }

  bool done() const { return next_ == order_.size(); }
  double so_far() const { return sum_; }
  // Gap of what was run relative to the true part there: what the whole is likely to come to.
  double estimate() const { return true_ > 0 ? sum_ / true_ : sum_; }

  void run_part() {
    const size_t count = std::max<size_t>(1, order_.size() / parts);
    plan_.tiles.clear();
    for (const size_t end = std::min(order_.size(), next_ + count); next_ < end; ++next_) {
      plan_.tiles.push_back(tiles_[order_[next_]]);
    }
    const HeadOutcome outcome = run_head(race_.context_, plan_, race_.head_, race_.scale_);
    for (const Tile& tile : plan_.tiles) {
      for (int64_t i = tile.query_begin; i < tile.query_end; ++i) {
        add(plan_.query_rows[static_cast<size_t>(i)], outcome);
      }
    }
  }

  const std::vector<double>& gaps() const { return gaps_; }
  // Whatever the tiles, added up in the order of the queries.
  double total() const {
    double total = 0;
    for (const int32_t query : race_.region_.queries) total += gaps_[static_cast<size_t>(query)];
    return total;
  }

 private:
  void add(int32_t query, const HeadOutcome& actual) {
    const auto at = static_cast<size_t>(query);
    const double a = race_.share(actual, at);
    const double e = race_.share(race_.full_, at);
    const int64_t size = race_.head_.queries.queries.size(2);
    const float* x = actual.out.data<float>() + query * size;
    const float* y = race_.full_.out.data<float>() + query * size;
    double apart = 0, squares = 0;
    for (int64_t c = 0; c < size; ++c) {
      const double expected = e * static_cast<double>(y[c]);
      const double difference = a * static_cast<double>(x[c]) - expected;
      apart += difference * difference;
      squares += expected * expected;
    }
    const double weight = race_.weight(at);
    gaps_[at] = weight * apart;
    sum_ += weight * apart;
    true_ += weight * squares;
  }

  const RegionRace& race_;
  Plan plan_;                  // its tiles are those of the part under way
  std::vector<Tile> tiles_;    // all
  std::vector<size_t> order_;  // in which they are run
  size_t next_ = 0;
  std::vector<double> gaps_;  // [queries]
  double sum_ = 0, true_ = 0;
};

RegionRace::RegionRace(const Context& context, const HeadViews& head, float scale,
                       const Region& region, const HeadOutcome& full,
                       std::span<const float> dense_log_sums, std::span<const float> weights)
    : context_(context),
      head_(head),
      scale_(scale),
      region_(region),
      full_(full),
      dense_log_sums_(dense_log_sums),
      weights_(weights) {}

// The part of a query's whole attention that falls on the region.
double RegionRace::share(const HeadOutcome& outcome, size_t query) const {
  if (dense_log_sums_.empty()) return 1;
  return std::exp(static_cast<double>(outcome.log_sums[query]) -
                  static_cast<double>(dense_log_sums_[query]));
}

double RegionRace::weight(size_t query) const {
  return weights_.empty() ? 1.0 : static_cast<double>(weights_[query]);
}

double RegionRace::norm() const {
  const int64_t size = head_.queries.queries.size(2);
  double total = 0;
  for (const int32_t query : region_.queries) {
    const auto at = static_cast<size_t>(query);
    const float* y = full_.out.data<float>() + query * size;
    double squares = 0;
    for (int64_t c = 0; c < size; ++c) squares += double{y[c]} * double{y[c]};
    total += weight(at) * std::pow(share(full_, at), 2) * squares;
  }
  return std::sqrt(total);
}

std::optional<double> RegionRace::gap(const LineIndex& index, double most,
                                      std::span<const double> hard,
                                      std::vector<double>* gaps) const {
  // Sums of parts differ in their last bits from the total; equals must not lose by that.
  const double enough = most * (1 + 1e-9);
  Runner runner(*this, index, hard);
  while (!runner.done()) {
    if (runner.so_far() > enough) return std::nullopt;
    runner.run_part();
  }
  const double total = runner.total();
  if (total > most) return std::nullopt;
  if (gaps != nullptr) *gaps = runner.gaps();
  return total;
}

size_t RegionRace::closest(std::span<const Entrant> entrants) const {
  if (entrants.size() < 2) return 0;
  // The likely ones first: the sooner a small gap is known, the sooner the others are out. What is
  // true of the largest of a family is nearly so of the others.
  std::vector<double> estimates(entrants.size());
  for (size_t i = entrants.size(); i > 0; --i) {
    const size_t at = i - 1;
    if (i < entrants.size() && entrants[i].family == entrants[at].family) {
      estimates[at] = estimates[i];
      continue;
    }
    Runner runner(*this, entrants[at].index, {});
    if (!runner.done()) runner.run_part();
    estimates[at] = runner.estimate();
  }
  std::vector<size_t> order(entrants.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return estimates[a] != estimates[b] ? estimates[a] < estimates[b] : a > b;
  });
  size_t best = order.front();
  double least = std::numeric_limits<double>::infinity();
  const double same = same_error * norm();
  std::vector<double> hard;
  for (const size_t place : order) {
    // One that stands earlier may be a little worse, one that stands later has to be better.
    const double most = std::sqrt(least) + (place < best ? same : -same);
    if (most < 0) continue;
    const std::optional<double> found = gap(entrants[place].index, most * most, hard, &hard);
    if (!found) continue;
    best = place;
    least = *found;
  }
  return best;
}

}  // namespace kinora

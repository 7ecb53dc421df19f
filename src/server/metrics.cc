#include "server/metrics.h"

#include <fmt/format.h>

namespace kinora::server {

void Metrics::count(std::string_view name, std::string_view labels, double value) {
  const std::lock_guard lock(mutex_);
  counters_[std::string(name)][std::string(labels)] += value;
}

void Metrics::observe(std::string_view name, double value, const std::vector<double>& buckets) {
  const std::lock_guard lock(mutex_);
  Histogram& histogram = histograms_[std::string(name)];
  if (histogram.buckets.empty()) {
    histogram.buckets = buckets;
    histogram.counts.resize(buckets.size());
  }
  for (size_t i = 0; i < histogram.buckets.size(); ++i) {
    histogram.counts[i] += value <= histogram.buckets[i];
  }
  histogram.sum += value;
  ++histogram.count;
}

double Metrics::total(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = counters_.find(name);
  double sum = 0;
  if (found == counters_.end()) return sum;
  for (const auto& [labels, value] : found->second) sum += value;
  return sum;
}

std::string Metrics::text(const std::vector<std::pair<std::string, double>>& gauges) const {
  std::string out;
  std::string last;
  for (const auto& [name, value] : gauges) {
    const std::string plain = name.substr(0, name.find('{'));
    const bool counts = plain.ends_with("_total");
    if (plain != last) out += fmt::format("# TYPE {} {}\n", plain, counts ? "counter" : "gauge");
    last = plain;
    out += fmt::format("{} {}\n", name, value);
  }
  const std::lock_guard lock(mutex_);
  for (const auto& [name, series] : counters_) {
    out += fmt::format("# TYPE {} counter\n", name);
    for (const auto& [labels, value] : series) {
      out += labels.empty() ? fmt::format("{} {}\n", name, value)
                            : fmt::format("{}{{{}}} {}\n", name, labels, value);
    }
  }
  for (const auto& [name, histogram] : histograms_) {
    out += fmt::format("# TYPE {} histogram\n", name);
    for (size_t i = 0; i < histogram.buckets.size(); ++i) {
      out += fmt::format("{}_bucket{{le=\"{}\"}} {}\n", name, histogram.buckets[i],
                         histogram.counts[i]);
    }
    out += fmt::format("{0}_bucket{{le=\"+Inf\"}} {1}\n{0}_sum {2}\n{0}_count {1}\n", name,
                       histogram.count, histogram.sum);
  }
  return out;
}

}  // namespace kinora::server

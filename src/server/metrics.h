// What /metrics tells Prometheus: counters and histograms in its text format. Used by service.cc.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace kinora::server {

class Metrics {
 public:
  // `labels` as Prometheus writes them: `route="/v1/models",status="200"`, or nothing.
  void count(std::string_view name, std::string_view labels, double value = 1);
  // Into a histogram of seconds, rates or sizes; each name has the buckets of its first use.
  void observe(std::string_view name, double value, const std::vector<double>& buckets);

  // Of a counter, whatever its labels.
  double total(const std::string& name) const;

  // Everything so far. Names of `gauges` that end in _total are counters. `gauges` are read just
  // now: name (with labels) and value.
  std::string text(const std::vector<std::pair<std::string, double>>& gauges) const;

 private:
  struct Histogram {
    std::vector<double> buckets;
    std::vector<int64_t> counts;
    double sum = 0;
    int64_t count = 0;
  };
  mutable std::mutex mutex_;
  std::map<std::string, std::map<std::string, double>> counters_;
  std::map<std::string, Histogram> histograms_;
};

}  // namespace kinora::server

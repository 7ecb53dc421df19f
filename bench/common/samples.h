// Repeated measurements of one quantity. A shared or virtual machine drifts, so every figure is a
// median with the range in which the middle half fell, and shares of a ceiling are medians of
// ratios of measurements made next to each other.
#pragma once

#include <functional>
#include <vector>

namespace kinora::bench {

struct Summary {
  double median = 0;
  double low = 0;   // first quartile
  double high = 0;  // third quartile
};

class Samples {
 public:
  void add(double value) { values_.push_back(value); }
  const std::vector<double>& values() const { return values_; }
  bool empty() const { return values_.empty(); }
  Summary summary() const;  // zeros when there are none
  // Element by element, over as many as both have.
  Samples divided_by(const Samples& other) const;

 private:
  std::vector<double> values_;
};

// Seconds that body took.
double seconds_of(const std::function<void()>& body);
// CPU seconds of the process: what other programs take does not count.
double cpu_seconds_of(const std::function<void()>& body);

// Lets the waiting threads of other libraries, which spin for a while, go to sleep.
void settle();

}  // namespace kinora::bench

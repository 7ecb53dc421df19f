// How far a long step has come and how long the rest will take, as one line of text. Stages that
// work at the same time are weighed by the seconds that were forecast for each, so that one share
// stands for the whole question; the time left is carried on smoothly from one report to the next.
// Knows no terminal and no clock; TerminalProgress shows it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kinora::cli {

struct ExpectedStage {
  std::string name;
  double seconds = 0;  // a guess; only its share of all matters much
  int64_t total = 0;   // where the stage itself does not know its end
};

class WorkProgress {
 public:
  // Begins anew with these stages, in the order in which they finish. Without any, a stage is shown
  // for itself when it reports.
  void expect(std::vector<ExpectedStage> stages);
  // `now` is in seconds, of any clock. A total of 0 is not known. True when the stage is new.
  bool update(std::string_view stage, int64_t done, int64_t total, double now);

  // Of all the work, if it is known.
  std::optional<double> share() const;
  std::optional<double> seconds_left() const { return left_; }
  // "37 %, 25 s left, decode 45/120 frames, prefill 812/3629 tokens"; what does not fit into the
  // columns is left out from the end.
  std::string text(size_t columns) const;

 private:
  struct Stage {
    std::string name;
    double seconds = 0;
    int64_t expected_total = 0;
    int64_t done = 0;
    int64_t total = 0;
    int64_t first = 0;  // done when it was first heard of, which says nothing about its rate
    double begun = 0;
    double last = 0;  // heard of
    bool heard = false;

    double part() const;
    std::string text() const;
  };
  Stage& find(std::string_view name, int64_t done, double now);
  void estimate(double now);

  std::vector<Stage> stages_;
  bool expected_ = false;
  std::string newest_;  // the stage that began last, where nothing was expected
  double begun_ = 0;
  double last_ = 0;
  bool begun_known_ = false;
  std::optional<double> left_;
};

// "8 s", "25 s", "2 min 10 s", "1 h 05 min": the coarser, the longer it is.
std::string rough_seconds(double seconds);

}  // namespace kinora::cli

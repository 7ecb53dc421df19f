// What a command did when, written for people: a trace that Perfetto and chrome://tracing open, and
// a picture of bars.
#pragma once

#include <kinora/session.h>

#include <string>
#include <vector>

namespace kinora::cli {

class TraceFile {
 public:
  // Empty paths: nothing is written. Refuses, before any work, a timeline that is no picture and
  // directories that are not there.
  TraceFile(std::string trace, std::string timeline);

  // Spans of an answer that was asked `offset` seconds after the command began.
  void add(const std::vector<Span>& spans, double offset);
  // Throws if a file cannot be written.
  void write(const std::string& title) const;

 private:
  std::string trace_;
  std::string timeline_;
  std::vector<Span> spans_;
};

// The JSON of a trace: complete events in microseconds, one thread per lane.
std::string trace_json(const std::vector<Span>& spans);

}  // namespace kinora::cli

// A session that has the parts in front of the questions of one prefix: what is asked of it is
// read as `kinora ask` would read it. Used by run.cc and recall.cc.
#pragma once

#include <kinora/session.h>

#include <cstdint>
#include <vector>

#include "base/cancel.h"
#include "eval/dataset.h"
#include "eval/score.h"

namespace kinora {

class PrefixSession {
 public:
  // Opens the inputs of `source`, which must outlive the session.
  PrefixSession(const Engine& engine, const SessionOptions& options, const EvalItem& source,
                const CancelToken& cancel)
      : session_(engine, options), source_(source) {
    InputOptions input;
    input.frames = source.frames;
    input.cancel = cancel;
    for (const EvalPart& part : source.parts) {
      if (!part.source.empty()) {
        const std::vector<double> times = session_.add(part.source, input).times;
        frames_ += static_cast<int64_t>(times.size());
        // The last frame lasts as long as the one before it.
        if (times.size() < 2) continue;
        begin_ = times.front();
        end_ = 2 * times.back() - times[times.size() - 2];
      }
    }
  }

  Session& session() { return session_; }
  int64_t frames() const { return frames_; }
  // What the frames of the last video cover.
  double begin() const { return begin_; }
  double end() const { return end_; }

  Answer ask(const EvalItem& item, const AnswerOptions& options) {
    session_.clear();
    std::vector<QuestionPart> parts;
    for (const EvalPart& part : source_.parts) {
      parts.push_back(part.source.empty() ? QuestionPart{part.text} : QuestionPart{});
    }
    parts.push_back({eval_prompt(item)});
    return session_.ask(parts, options);
  }

 private:
  Session session_;
  const EvalItem& source_;
  int64_t frames_ = 0;
  double begin_ = 0, end_ = 0;
};

}  // namespace kinora

// What an answer of an evaluation depends on, as one short key: an answer that was kept is used
// again only for the same question about the same pictures in the same setting. Used by run.cc.
#pragma once

#include <map>
#include <string>

#include "engine/engine_state.h"
#include "eval/dataset.h"

namespace kinora {

// Tells the content of a video, a picture or a folder of them from others: its size and its bytes;
// of large files 64 stretches of 64 KiB each, spread evenly. Of an address, the address. Nothing of
// names and times counts, so that a set may be moved. An absent file has an identity, too.
std::string source_identity(const std::string& source);

// What of an engine its answers depend on: the files of its model with its chat template and its
// draft, the tables of heads that policies and evidence read, the device and what it computes in.
std::string engine_setting(const EngineState& engine);

class AnswerKeys {
 public:
  // `setting`: that of the engine, limits; everything that is the same for all questions.
  explicit AnswerKeys(std::string setting) : setting_(std::move(setting)) {}

  // `shown` is the item whose videos are shown, which is another one in the wrong-video control.
  std::string key_of(const std::string& policy, const EvalItem& item, const EvalItem& shown);

 private:
  std::string setting_;
  std::map<std::string, std::string> identities_;  // of sources, looked at once
};

}  // namespace kinora

// What a saved memory knows besides its rows: the model and the policies that it was made with, and
// how its inputs were looked at. Written as JSON, with the frames of each input as a section of its
// own. Used by session_saved.cc.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <kinora/memory_file.h>

#include "base/files/archive.h"
#include "engine/engine_state.h"
#include "engine/ingest/visual_input.h"

namespace kinora {

struct SavedInput : VisualLook {
  std::string source;
  std::string content;
  std::vector<Subtitle> subtitles;
  std::vector<int32_t> kept;  // of its tokens, where a rule leaves some out
};

struct SavedAbout {
  std::string model, family, model_key, directory;
  // The two in the middle as to_string writes them, however they were chosen.
  std::string system, row_type, memory, token_choice, retain, attention;
  int64_t frames_per_group = 0;
  int64_t max_group_tokens = 0;
  bool closed = true;     // the first video has come to its end
  bool taken_in = false;  // it was taken in as it came
  int64_t tokens = 0;
  int64_t written = 0;
  std::vector<SavedInput> inputs;

  // Empty if the content of an input is not known, or may go on.
  std::string key() const;
  MemoryFile describe(const std::string& path, int64_t bytes) const;
};

void write_about(ArchiveWriter& out, const SavedAbout& about);
// Throws bad_input for what makes no sense.
SavedAbout read_about(const Archive& in);

// Tells models apart by their files: all that shapes a prompt or a row. Of weights, which are
// large, the list of tensors and samples of the numbers are looked at.
std::string key_of_model(const EngineState& engine);
// Of a file, or a folder with all that is in it; empty for anything else.
std::string key_of_source(const std::string& source);

}  // namespace kinora

// Saved memories: what a session read of its videos, in a file, to be asked about again without
// reading them. Part of the public API: plain types only.
//
//   session.add("talk.mp4");
//   session.save("talk.kinora");                                      // once
//   auto again = kinora::Session::reopen(engine, "talk.kinora");      // any time later
//   again.ask("When is the second chart shown?");
//
// A file serves the model that it was made with, and no other. docs/memory-files.md has the format.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <kinora/api.h>

namespace kinora {

struct MemoryFileInput {
  std::string source;   // as it was named when it was read; need not exist any more
  std::string content;  // a key of its bytes; empty: not known (a pipe, an address)
  std::string kind;     // "video" or "image"
  int64_t width = 0;    // as the model saw it
  int64_t height = 0;
  int64_t frames = 0;
  double from = 0;  // seconds: the first and the last frame that was looked at
  double until = 0;
  int64_t tokens = 0;  // that reached the decoder
};

// What a saved memory says of itself.
struct MemoryFile {
  std::string path;
  // Content, model, frames and policies in one: files of equal keys answer alike. Empty where an
  // input's content is not known.
  std::string key;
  int64_t written = 0;  // seconds since 1970
  int64_t bytes = 0;    // of the file
  int64_t tokens = 0;
  std::string model;  // its name
  std::string family;
  std::string model_key;        // of its files
  std::string model_directory;  // where it was; may be gone
  std::string system;           // SessionOptions, as far as they shape what is in memory
  std::string row_type;
  std::string memory;
  std::string token_choice = "all";  // SessionOptions::tokens
  std::string retain;
  std::string attention;
  std::vector<MemoryFileInput> inputs;
};

// Reads no rows. Throws what is wrong with the file; is it a saved memory at all?
KINORA_API MemoryFile describe_memory(const std::string& path);
KINORA_API bool is_memory_file(const std::string& path);

}  // namespace kinora

// How fast the tokenizer encodes, on one thread.
//
//   bench_tokenizer DIR                      MB/s over generated corpora, tokenizer.json in DIR
//   bench_tokenizer DIR --write FOLDER       writes the corpora for compare.py
//   bench_tokenizer DIR --serve              for compare.py: reads file names, answers
//                                            "seconds tokens checksum" for each
//   bench_tokenizer DIR --ids                for equality runs: length-prefixed texts on standard
//                                            input, ids on standard output
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "corpora.h"
#include "text/tokenizer.h"

namespace kinora::bench {
namespace {

constexpr size_t kCorpusBytes = 4'000'000;
constexpr int kRepetitions = 7;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Texts come as documents of a few kilobytes, cut at line ends, as prompts do.
std::vector<std::string_view> documents(std::string_view text) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    size_t end = text.size() <= 4096 ? text.size() : text.find('\n', 4096);
    end = end == std::string_view::npos ? text.size() : std::min(end + 1, text.size());
    parts.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return parts;
}

struct Measured {
  double seconds = 0;
  size_t tokens = 0;
  uint64_t checksum = 0;
};

Measured encode_all(const Tokenizer& tokenizer, const std::vector<std::string_view>& parts) {
  Measured measured;
  const auto start = std::chrono::steady_clock::now();
  for (const std::string_view part : parts) {
    const std::vector<int32_t> ids = tokenizer.encode(part);
    measured.tokens += ids.size();
    for (const int32_t id : ids) {
      measured.checksum = (measured.checksum * 31 + static_cast<uint64_t>(id)) & 0xffffffffu;
    }
  }
  measured.seconds = seconds_since(start);
  return measured;
}

void print_speeds(const Tokenizer& tokenizer) {
  fmt::print("{:10} {:>8} {:>8} {:>8} {:>14}\n", "corpus", "MB/s", "lowest", "highest", "tokens/s");
  for (const Corpus& corpus : make_corpora(kCorpusBytes)) {
    const std::vector<std::string_view> parts = documents(corpus.text);
    std::vector<double> speeds;
    size_t tokens = 0;
    for (int i = 0; i < kRepetitions; ++i) {
      const Measured measured = encode_all(tokenizer, parts);
      speeds.push_back(static_cast<double>(corpus.text.size()) / measured.seconds / 1e6);
      tokens = measured.tokens;
    }
    std::sort(speeds.begin(), speeds.end());
    const double median = speeds[speeds.size() / 2];
    fmt::print(
        "{:10} {:8.1f} {:8.1f} {:8.1f} {:14.0f}\n", corpus.name, median, speeds.front(),
        speeds.back(),
        median * 1e6 * static_cast<double>(tokens) / static_cast<double>(corpus.text.size()));
  }
}

void serve(const Tokenizer& tokenizer) {
  std::string path;
  while (std::getline(std::cin, path)) {
    const std::string text = real_files().read(path);
    const Measured measured = encode_all(tokenizer, documents(text));
    fmt::print("{:.6f} {} {}\n", measured.seconds, measured.tokens, measured.checksum);
    std::fflush(stdout);
  }
}

// Input: u32 length and bytes, again and again; u32 of all ones ends it. Output: u32 count and
// i32 ids for each.
void answer_ids(const Tokenizer& tokenizer) {
  uint32_t length = 0;
  std::string text;
  while (std::fread(&length, 4, 1, stdin) == 1 && length != 0xffffffffu) {
    text.resize(length);
    if (length > 0 && std::fread(text.data(), 1, length, stdin) != length) break;
    const std::vector<int32_t> ids = tokenizer.encode(text);
    const auto count = static_cast<uint32_t>(ids.size());
    std::fwrite(&count, 4, 1, stdout);
    std::fwrite(ids.data(), 4, ids.size(), stdout);
  }
  std::fflush(stdout);
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() < 2) {
    throw Error(ErrorKind::usage, "usage: bench_tokenizer DIR [--write FOLDER | --serve | --ids]");
  }
  const auto start = std::chrono::steady_clock::now();
  const Tokenizer tokenizer = Tokenizer::load(real_files(), arguments[1]);
  const double load_seconds = seconds_since(start);
  const std::string mode = arguments.size() > 2 ? arguments[2] : "";
  if (mode == "--serve") {
    serve(tokenizer);
  } else if (mode == "--ids") {
    answer_ids(tokenizer);
  } else if (mode == "--write" && arguments.size() > 3) {
    for (const Corpus& corpus : make_corpora(kCorpusBytes)) {
      real_files().write(join_path(arguments[3], corpus.name + ".txt"), corpus.text);
    }
  } else {
    fmt::print("{} tokens, loaded in {:.0f} ms\n", tokenizer.vocabulary_size(), load_seconds * 1e3);
    print_speeds(tokenizer);
  }
  return 0;
}

}  // namespace
}  // namespace kinora::bench

int main(int count, char** arguments) {
  try {
    return kinora::bench::run({arguments, arguments + count});
  } catch (const kinora::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return kinora::exit_code(error.kind());
  }
}

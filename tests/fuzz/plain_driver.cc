// Runs a libFuzzer target without libFuzzer, for compilers that lack it: random cuts, flips and
// splices of a corpus (files, or folders of them) for the given number of seconds, or of mutations.
//   video_fuzz SECONDS|MUTATIONSx CORPUS… [--seed SEED]
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

std::string mutate(const std::vector<std::string>& corpus, std::mt19937& random) {
  std::string bytes = corpus[random() % corpus.size()];
  if (bytes.empty()) bytes = "x";
  if (random() % 4 == 0) bytes.resize(1 + random() % bytes.size());
  if (random() % 8 == 0) {
    const std::string& other = corpus[random() % corpus.size()];
    bytes.replace(random() % bytes.size(), 16, other.substr(random() % (other.size() + 1), 64));
    if (bytes.empty()) bytes = "x";
  }
  for (uint32_t flips = random() % 12; flips > 0; --flips) {
    const size_t reach = random() % 2 == 0 ? std::min<size_t>(bytes.size(), 800) : bytes.size();
    bytes[random() % reach] = static_cast<char>(random());
  }
  return bytes;
}

}  // namespace

int main(int count, char** arguments) {
  unsigned seed = std::random_device()();
  std::vector<std::string> corpus;
  const auto add = [&](const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  };
  for (int i = 2; i < count; ++i) {
    if (std::string_view(arguments[i]) == "--seed" && i + 1 < count) {
      seed = static_cast<unsigned>(std::atoi(arguments[++i]));
    } else if (std::filesystem::is_directory(arguments[i])) {
      for (const auto& entry : std::filesystem::directory_iterator(arguments[i])) add(entry.path());
    } else {
      add(arguments[i]);
    }
  }
  if (corpus.empty()) {
    std::fprintf(stderr, "%s SECONDS|MUTATIONSx CORPUS… [--seed SEED]\n", arguments[0]);
    return 2;
  }
  std::printf("seed %u\n", seed);
  std::fflush(stdout);  // a crash must be repeatable
  std::mt19937 random(seed);
  using Clock = std::chrono::steady_clock;
  const std::string_view limit = arguments[1];
  const bool counted = limit.ends_with('x');
  const double most = std::atof(arguments[1]);
  const auto begin = Clock::now();
  const auto seconds_since = [](Clock::time_point time) {
    return std::chrono::duration<double>(Clock::now() - time).count();
  };
  // What a crash was caused by; several kinds run at once in one folder.
  const char* kind = std::getenv("KINORA_FUZZ");
  const std::string last = std::string("fuzz-") + (kind != nullptr ? kind : "video") + ".last";
  long runs = 0;
  double slowest = 0;
  while (counted ? static_cast<double>(runs) < most : seconds_since(begin) < most) {
    const std::string bytes = mutate(corpus, random);
    std::ofstream(last, std::ios::binary) << bytes;
    const auto started = Clock::now();
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    slowest = std::max(slowest, seconds_since(started));
    ++runs;
  }
  std::printf("%ld mutations, no crash, the slowest took %.3f s\n", runs, slowest);
  return 0;
}

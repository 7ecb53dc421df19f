// Runs a libFuzzer target without libFuzzer, for compilers that lack it: random cuts, flips and
// splices of a corpus for the given number of seconds.
//   video_fuzz CORPUS_FOLDER SECONDS [SEED]
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

std::string mutate(const std::vector<std::string>& corpus, std::mt19937& random) {
  std::string bytes = corpus[random() % corpus.size()];
  if (random() % 4 == 0) bytes.resize(1 + random() % bytes.size());
  if (random() % 8 == 0) {
    const std::string& other = corpus[random() % corpus.size()];
    bytes.replace(random() % bytes.size(), 16, other.substr(random() % other.size(), 64));
  }
  for (uint32_t flips = random() % 12; flips > 0; --flips) {
    const size_t reach = random() % 2 == 0 ? std::min<size_t>(bytes.size(), 800) : bytes.size();
    bytes[random() % reach] = static_cast<char>(random());
  }
  return bytes;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) {
    std::fprintf(stderr, "video_fuzz CORPUS_FOLDER SECONDS [SEED]\n");
    return 2;
  }
  std::vector<std::string> corpus;
  for (const auto& entry : std::filesystem::directory_iterator(arguments[1])) {
    std::ifstream file(entry.path(), std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  if (corpus.empty()) {
    std::fprintf(stderr, "%s: no files in it\n", arguments[1]);
    return 2;
  }
  const unsigned seed =
      count > 3 ? static_cast<unsigned>(std::atoi(arguments[3])) : std::random_device()();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(std::atof(arguments[2]));
  long runs = 0;
  while (std::chrono::steady_clock::now() < end) {
    const std::string bytes = mutate(corpus, random);
    // What a crash was caused by.
    std::ofstream("video_fuzz.last", std::ios::binary) << bytes;
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    ++runs;
  }
  std::printf("%ld runs\n", runs);
  return 0;
}

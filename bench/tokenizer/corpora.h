// Texts to measure the tokenizer on, made from a fixed seed: the shapes of words matter, not what
// they say.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace kinora::bench {

struct Corpus {
  std::string name;
  std::string text;
};

// prose, code, chinese, mixed, digits; each at least `bytes` long.
std::vector<Corpus> make_corpora(size_t bytes);

}  // namespace kinora::bench

// What ships with kinora: a small model and a clip to try it on. Looked up next to the program
// (PREFIX/share/kinora when installed), then in the source tree it was built from.
#pragma once

#include <string>
#include <vector>

namespace kinora::cli {

// The model to use when none is named: $KINORA_MODEL, else the bundled one. Throws a usage error
// that asks for --model when there is neither. Not yet a directory: find_model makes it one.
std::string default_model();

// The input as given, but "demo" is the bundled clip unless a file of that name is here. Throws
// not_found with the file that was probably meant, where one is.
std::string input_or_demo(const std::string& input);

// The directory of the bundled model; empty when it is not there.
std::string bundled_model();

// What a person should know before they trust this model: a line for the bundled one, empty for
// any other. With the inputs of a question: none where they are the bundled clip alone.
std::string bundled_note(const std::string& model);
std::string bundled_note(const std::string& model, const std::vector<std::string>& sources);

}  // namespace kinora::cli

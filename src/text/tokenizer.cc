#include "text/tokenizer.h"

#include <fmt/format.h>

#include <mutex>
#include <unordered_map>

#include "base/error.h"
#include "text/byte_pair.h"
#include "text/tokenizer_added.h"
#include "text/tokenizer_file.h"
#include "text/tokenizer_pieces.h"
#include "text/tokenizer_split.h"
#include "text/tokenizer_utf8.h"

namespace kinora {
namespace {

using tokenizer::AddedToken;
using tokenizer::AddedTokenFinder;
using tokenizer::BytePair;
using tokenizer::SpaceMarks;
using tokenizer::Splitter;
using tokenizer::TextStep;
using tokenizer::TokenizerFile;
using tokenizer::TokenModel;

constexpr size_t kMaxTextBytes = size_t{1} << 30;

// What one call of encode works with; the words it has met stay known for the next.
struct Workspace {
  BytePair::Scratch byte_pair;
  std::string normalized;
};

// Lends workspaces, so that calls in several threads share nothing and no word takes a lock.
class WorkspacePool {
 public:
  std::unique_ptr<Workspace> borrow() {
    const std::lock_guard lock(mutex_);
    if (spare_.empty()) return std::make_unique<Workspace>();
    std::unique_ptr<Workspace> workspace = std::move(spare_.back());
    spare_.pop_back();
    return workspace;
  }
  void give_back(std::unique_ptr<Workspace> workspace) {
    const std::lock_guard lock(mutex_);
    if (spare_.size() < kMaxSpare) spare_.push_back(std::move(workspace));
  }

 private:
  static constexpr size_t kMaxSpare = 64;  // at about 1.5 MB each
  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> spare_;
};

class Lease {
 public:
  explicit Lease(WorkspacePool& pool) : pool_(pool), workspace_(pool.borrow()) {}
  ~Lease() { pool_.give_back(std::move(workspace_)); }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  Workspace& operator*() { return *workspace_; }

 private:
  WorkspacePool& pool_;
  std::unique_ptr<Workspace> workspace_;
};

struct Step {
  std::optional<Splitter> splitter;
  bool prefix_space = false;
};

}  // namespace

class Tokenizer::Parts {
 public:
  explicit Parts(TokenizerFile file)
      : model(file.model),
        text_steps(std::move(file.text_steps)),
        space_marks(std::move(file.space_marks)),
        strip_space(file.strip_space),
        byte_pair(file.byte_tokens, model == TokenModel::byte_pairs ? file.merges : no_merges()),
        ids(std::move(file.ids)),
        prefix(std::move(file.prefix)),
        suffix(std::move(file.suffix)) {
    if (model == TokenModel::character_pairs) character_pairs.emplace(file);
    if (model == TokenModel::unigram) unigram.emplace(file);
    byte_pair.set_unknown(file.unknown, file.fuse_unknown);
    if (file.ignore_merges) byte_pair.set_whole_words(std::move(file.whole_words));
    for (tokenizer::PreTokenizerStep& step : file.steps) {
      Step& made = steps.emplace_back();
      made.prefix_space = step.prefix_space;
      if (!step.expression.empty()) made.splitter.emplace(step.expression);
    }
    std::vector<AddedToken> raw, normalized;
    std::unordered_map<std::string, bool> seen;
    for (AddedToken& token : file.added) {
      if (!token.normalized) {
        raw.push_back(std::move(token));
        continue;
      }
      std::string scratch;
      token.content = std::string(tokenizer::normalize(token.content, text_steps, scratch));
      if (seen.emplace(token.content, true).second) normalized.push_back(std::move(token));
    }
    in_raw_text = AddedTokenFinder(std::move(raw));
    in_normalized_text = AddedTokenFinder(std::move(normalized));

    ends.reserve(file.tokens.size());
    special.reserve(file.tokens.size());
    for (const TokenizerFile::Token& token : file.tokens) {
      bytes += token.bytes;
      ends.push_back(bytes.size());
      special.push_back(token.special);
    }
    begin_token = find(file.begin_token);
    end_token = find(file.end_token);
    pad_token = find(file.pad_token);
  }

  // `first`: the text begins the whole input.
  void encode_text(std::string_view text, bool first, bool parse_special, Workspace& workspace,
                   std::vector<int32_t>& out) const {
    const std::string_view normal = tokenizer::normalize(text, text_steps, workspace.normalized);
    if (in_normalized_text.empty()) return encode_piece(normal, first, workspace, out);
    in_normalized_text.for_each_piece(
        normal, parse_special,
        [&](std::string_view piece) {
          encode_piece(piece, first && piece.data() == normal.data(), workspace, out);
        },
        [&](int32_t id) { out.push_back(id); });
  }

  // A stretch between added tokens.
  void encode_piece(std::string_view text, bool first, Workspace& workspace,
                    std::vector<int32_t>& out) const {
    if (model == TokenModel::byte_pairs) return encode_words(text, 0, workspace, out);
    const auto encode_word = [&](std::string_view word) {
      if (unigram) {
        unigram->encode(word, out);
      } else {
        character_pairs->encode(word, workspace.byte_pair, out);
      }
    };
    if (space_marks.mark.empty()) return encode_word(text);
    tokenizer::for_each_marked_word(text, first, space_marks, encode_word);
  }

  void encode_words(std::string_view text, size_t step, Workspace& workspace,
                    std::vector<int32_t>& out) const {
    if (step == steps.size()) return byte_pair.encode(text, workspace.byte_pair, out);
    std::string prefixed;
    if (steps[step].prefix_space && text[0] != ' ') {
      prefixed = ' ' + std::string(text);
      text = prefixed;
    }
    if (!steps[step].splitter) return encode_words(text, step + 1, workspace, out);
    if (step + 1 == steps.size()) {
      steps[step].splitter->for_each_word(
          text, [&](std::string_view word) { byte_pair.encode(word, workspace.byte_pair, out); });
    } else {
      steps[step].splitter->for_each_word(
          text, [&](std::string_view word) { encode_words(word, step + 1, workspace, out); });
    }
  }

  std::string_view bytes_of(int32_t id) const {
    if (id < 0 || static_cast<size_t>(id) >= ends.size()) return {};
    const auto place = static_cast<size_t>(id);
    const size_t begin = place == 0 ? 0 : ends[place - 1];
    return std::string_view(bytes).substr(begin, ends[place] - begin);
  }

  std::optional<int32_t> find(const std::optional<std::string>& token) const {
    if (!token) return std::nullopt;
    const auto found = ids.find(*token);
    if (found == ids.end()) return std::nullopt;
    return found->second;
  }

  static std::span<const BytePair::Merge> no_merges() { return {}; }

  TokenModel model;
  std::vector<TextStep> text_steps;
  SpaceMarks space_marks;
  bool strip_space;
  BytePair byte_pair;
  std::optional<tokenizer::CharacterPairs> character_pairs;
  std::optional<tokenizer::Unigram> unigram;
  std::vector<Step> steps;
  AddedTokenFinder in_raw_text, in_normalized_text;
  std::string bytes;         // of all tokens, by id
  std::vector<size_t> ends;  // of every token in `bytes`
  std::vector<bool> special;
  std::unordered_map<std::string, int32_t> ids;
  std::vector<int32_t> prefix, suffix;
  std::optional<int32_t> begin_token, end_token, pad_token;
  mutable WorkspacePool workspaces;
};

Tokenizer Tokenizer::load(const FileSystem& files, const std::string& directory) {
  return Tokenizer(std::make_unique<Parts>(tokenizer::read_tokenizer_file(files, directory)));
}

Tokenizer::Tokenizer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  if (text.size() > kMaxTextBytes) {
    throw Error(ErrorKind::resource,
                fmt::format("a text of {} bytes is too long to encode at once; the limit is {}",
                            text.size(), kMaxTextBytes));
  }
  const size_t invalid = tokenizer::find_invalid_utf8(text);
  if (invalid != std::string_view::npos) {
    throw Error(
        ErrorKind::bad_input,
        fmt::format("the text is not valid UTF-8 at byte {} (0x{:02x}); convert it to UTF-8",
                    invalid, static_cast<unsigned char>(text[invalid])));
  }
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 16);
  if (options.add_special) ids = parts_->prefix;
  Lease workspace(parts_->workspaces);
  parts_->in_raw_text.for_each_piece(
      text, options.parse_special,
      [&](std::string_view piece) {
        const bool first = piece.data() == text.data();
        parts_->encode_text(piece, first, options.parse_special, *workspace, ids);
      },
      [&](int32_t id) { ids.push_back(id); });
  if (options.add_special) {
    ids.insert(ids.end(), parts_->suffix.begin(), parts_->suffix.end());
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (!skip_special || !is_special(id)) bytes += parts_->bytes_of(id);
  }
  std::string text;
  text.reserve(bytes.size());
  if (parts_->strip_space && bytes.starts_with(' ')) bytes.erase(0, 1);
  tokenizer::append_replacing_broken(bytes, /*last=*/true, text);
  return text;
}

std::string_view Tokenizer::bytes_of(int32_t id) const { return parts_->bytes_of(id); }

std::optional<int32_t> Tokenizer::id_of(std::string_view token) const {
  return parts_->find(std::string(token));
}

int32_t Tokenizer::require(std::string_view token) const {
  if (const std::optional<int32_t> id = id_of(token)) return *id;
  throw Error(ErrorKind::unsupported,
              fmt::format("the tokenizer has no token {}; this model needs it", token));
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < parts_->special.size() &&
         parts_->special[static_cast<size_t>(id)];
}

int32_t Tokenizer::vocabulary_size() const { return static_cast<int32_t>(parts_->ends.size()); }
std::optional<int32_t> Tokenizer::begin_token() const { return parts_->begin_token; }
std::optional<int32_t> Tokenizer::end_token() const { return parts_->end_token; }
std::optional<int32_t> Tokenizer::pad_token() const { return parts_->pad_token; }

}  // namespace kinora

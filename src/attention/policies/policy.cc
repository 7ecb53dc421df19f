#include "attention/policies/policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <map>

#include "attention/policies/block_attention.h"
#include "attention/policies/dense.h"
#include "attention/policies/momo.h"
#include "attention/policies/pattern_attention.h"
#include "base/error.h"

namespace kinora {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorKind::usage, "--attention " + what);
}

int64_t parse_count(std::string_view key, std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 ||
      value > (int64_t{1} << 30)) {
    refuse(fmt::format("{}={}: not a number that makes sense", key, text));
  }
  return value;
}

// "name:key=value,key=value+delta=16" taken apart.
struct Request {
  std::string name;
  std::map<std::string, std::string, std::less<>> settings;
  int64_t delta_stride = 0;
};

Request take_apart(std::string_view text) {
  Request request;
  const size_t plus = text.find('+');
  if (plus != std::string_view::npos) {
    std::string_view rest = text.substr(plus + 1);
    if (!rest.starts_with("delta") || (rest.size() > 5 && rest[5] != '=')) {
      refuse(fmt::format("\"{}\": only +delta or +delta=N may follow a pattern", text));
    }
    request.delta_stride = rest.size() > 5 ? parse_count("delta", rest.substr(6)) : 16;
    text = text.substr(0, plus);
  }
  const size_t colon = text.find(':');
  request.name = text.substr(0, colon);
  if (colon == std::string_view::npos) return request;
  for (size_t begin = colon + 1; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    const size_t equals = part.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      refuse(fmt::format("\"{}\": settings are key=value", part));
    }
    request.settings.emplace(part.substr(0, equals), part.substr(equals + 1));
    begin = end + 1;
  }
  return request;
}

// Takes settings out one by one; what is left over was not understood.
class Settings {
 public:
  explicit Settings(Request& request) : request_(request) {}

  template <typename T>
  void count(std::string_view key, T& into) {
    if (const auto text = take(key)) into = static_cast<T>(parse_count(key, *text));
  }
  void flag(std::string_view key, bool& into) {
    if (const auto text = take(key)) into = parse_count(key, *text) != 0;
  }
  std::optional<std::string> take(std::string_view key) {
    known_.push_back(key);
    const auto found = request_.settings.find(key);
    if (found == request_.settings.end()) return std::nullopt;
    std::string value = found->second;
    request_.settings.erase(found);
    return value;
  }
  void finish() const {
    if (!request_.settings.empty()) {
      const std::string unknown = request_.settings.begin()->first;
      refuse(known_.empty() ? fmt::format("{}: has no setting called \"{}\"; there is last",
                                          request_.name, unknown)
                            : fmt::format("{}: no setting is called \"{}\"; there are {}, last",
                                          request_.name, unknown, fmt::join(known_, ", ")));
    }
  }

 private:
  Request& request_;
  std::vector<std::string_view> known_;  // literals
};

// The published settings of every single pattern (table 2 of MMInference's paper).
PatternSpec default_spec(PatternKind kind, int32_t frame_stride) {
  switch (kind) {
    case PatternKind::a_shape:
      return {.kind = kind, .sink = 128, .local = 4096};
    case PatternKind::tri_shape:
      return {.kind = kind, .sink = 128, .local = 4096, .bottom = 128};
    case PatternKind::sf_fixed:
    case PatternKind::sf_strided:
      return {.kind = kind, .stride = frame_stride};
    case PatternKind::vertical_slash:
      return {.kind = kind, .verticals = 1000, .slashes = 6144};
    case PatternKind::grid:
      return {.kind = kind, .sink = 128, .horizontal = true, .vertical = true, .slash = true};
    case PatternKind::dense:
      break;
  }
  return {};
}

std::unique_ptr<Attention> make_pattern(Request request, PatternKind kind,
                                        const AttentionOptions& options) {
  PatternSpec spec = default_spec(kind, options.frame_stride);
  HeadChoice choice;
  Settings settings(request);
  settings.count("sink", spec.sink);
  settings.count("local", spec.local);
  settings.count("bottom", spec.bottom);
  settings.count("verticals", spec.verticals);
  settings.count("slashes", spec.slashes);
  settings.count("stride", spec.stride);
  settings.count("max-stride", spec.max_stride);
  if (const auto lines = settings.take("lines")) {
    if (lines->find_first_not_of("hvs") != std::string::npos) {
      refuse(fmt::format("lines={}: of h, v and s", *lines));
    }
    spec.horizontal = lines->find('h') != std::string::npos;
    spec.vertical = lines->find('v') != std::string::npos;
    spec.slash = lines->find('s') != std::string::npos;
  }
  // One pattern in every region of a boundary.
  if (const auto name = settings.take("boundary")) choice.boundary = parse_boundary(*name);
  settings.finish();
  choice.patterns.push_back({{}, {}, spec});
  return std::make_unique<PatternAttention>(request.name, choice, options.sparse);
}

void read_layout(Settings& settings, BlockLayout& layout) {
  settings.count("tile", layout.tile);
  settings.count("block", layout.block);
  settings.count("sink", layout.sink);
  settings.count("window", layout.window);
}

std::unique_ptr<Attention> make_momo(Request request, const AttentionOptions& options) {
  MomoOptions momo;
  momo.query_stride = spread_stride(momo.query_stride, options.frame_stride);
  Settings settings(request);
  read_layout(settings, momo.layout);
  settings.count("query-stride", momo.query_stride);
  settings.count("k", momo.k);
  settings.count("exact", momo.k_exact);
  settings.count("keys", momo.sparse_keys);
  settings.flag("trim", momo.trim);
  if (const auto name = settings.take("rank")) {
    if (*name != "mean" && *name != "mass") refuse(fmt::format("rank={}: mean or mass", *name));
    momo.rank = *name == "mass" ? BlockRank::mass : BlockRank::mean;
  }
  settings.flag("delta", momo.delta);
  if (const auto name = settings.take("top-k")) momo.top_k = parse_top_k(*name);
  settings.finish();
  momo.k_exact = std::min(momo.k_exact, momo.k);
  SparseOptions sparse = options.sparse;
  sparse.delta_stride = 0;  // it has its own
  return std::make_unique<MomoAttention>(momo, sparse);
}

std::unique_ptr<Attention> make_blocks(Request request, BlockMethod method,
                                       const AttentionOptions& options) {
  BlockLayout layout;
  int64_t keys = 4096;
  Settings settings(request);
  read_layout(settings, layout);
  settings.count("keys", keys);
  settings.finish();
  return std::make_unique<BlockAttention>(method, layout, keys, options.sparse);
}

}  // namespace

std::vector<std::string_view> attention_names() {
  return {"dense",      "mminference",    "momo", "a-shape",   "tri-shape", "sf-fixed",
          "sf-strided", "vertical-slash", "grid", "mean-pool", "oracle"};
}

bool needs_table(std::string_view text) { return text.starts_with("mminference"); }

std::unique_ptr<Attention> make_attention(std::string_view text, const AttentionOptions& given) {
  Request request = take_apart(text);
  AttentionOptions options = given;
  if (request.name != "dense") Settings(request).count("last", options.sparse.dense_last);
  if (request.delta_stride > 0) options.sparse.delta_stride = request.delta_stride;
  const auto names = attention_names();
  if (std::find(names.begin(), names.end(), request.name) == names.end()) {
    refuse(fmt::format("{}: there are {}", request.name, fmt::join(names, ", ")));
  }
  if (request.name == "momo") return make_momo(request, options);
  if (request.name == "mean-pool") return make_blocks(request, BlockMethod::mean_pool, options);
  if (request.name == "oracle") return make_blocks(request, BlockMethod::oracle, options);
  if (request.name == "dense" || request.name == "mminference") {
    Request rest = request;
    Settings(rest).finish();
    if (request.name == "dense") return std::make_unique<DenseAttention>();
    if (!options.table) {
      throw Error(ErrorKind::not_found,
                  "--attention mminference: no kinora-attention.json for this model; make one with "
                  "`kinora tune`");
    }
    return std::make_unique<PatternAttention>("mminference", options.table, options.sparse);
  }
  return make_pattern(request, parse_pattern(request.name), options);
}

}  // namespace kinora

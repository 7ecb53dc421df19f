#include "model/quantize/quantize_directory.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/error.h"
#include "model/config_files.h"
#include "model/families/families.h"
#include "model/quantize/layer_scales.h"
#include "model/quantize/rounding.h"
#include "model/weights/safetensors.h"
#include "model/weights/weights_binder.h"

namespace kinora {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr std::array projections = {"self_attn.q_proj.weight", "self_attn.k_proj.weight",
                                    "self_attn.v_proj.weight", "self_attn.o_proj.weight",
                                    "mlp.gate_proj.weight",    "mlp.up_proj.weight",
                                    "mlp.down_proj.weight"};

bool is_projection(const std::string& common) {
  return common.starts_with("model.language_model.layers.") &&
         std::any_of(projections.begin(), projections.end(),
                     [&](const char* end) { return common.ends_with(end); });
}

// The directory in the making; removed with what is in it unless it is kept.
class Folder {
 public:
  explicit Folder(const std::string& target)
      : target_(target), path_(fmt::format("{}.partial-{}", target, ::getpid())) {
    std::error_code failure;
    if (fs::exists(target_, failure)) {
      throw Error(ErrorKind::usage, target + " exists already; name a directory that does not");
    }
    fs::create_directories(path_, failure);
    if (failure) {
      throw Error(ErrorKind::resource,
                  fmt::format("{} cannot be made: {}", path_.string(), failure.message()));
    }
  }
  ~Folder() {
    std::error_code ignored;
    if (!kept_) fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  fs::path file(const std::string& name) const { return path_ / name; }
  void keep() {
    std::error_code failure;
    fs::rename(path_, target_, failure);
    if (failure) {
      throw Error(ErrorKind::resource,
                  fmt::format("{} cannot be written: {}", target_.string(), failure.message()));
    }
    kept_ = true;
  }

 private:
  fs::path target_, path_;
  bool kept_ = false;
};

[[noreturn]] void cannot_write(const fs::path& path) {
  throw Error(ErrorKind::resource,
              fmt::format("{} cannot be written; is the disk full?", path.string()));
}

// One tensor of an output file.
struct Planned {
  std::string name, dtype;
  std::vector<int64_t> shape;
  int64_t bytes = 0;
};

// A safetensors file whose tensors are written one after the other.
class OutputFile {
 public:
  OutputFile(const fs::path& path, const std::vector<Planned>& tensors)
      : path_(path), out_(path, std::ios::binary) {
    Json header = {{"__metadata__", {{"format", "pt"}}}};
    int64_t offset = 0;
    for (const Planned& tensor : tensors) {
      header[tensor.name] = {{"dtype", tensor.dtype},
                             {"shape", tensor.shape},
                             {"data_offsets", {offset, offset + tensor.bytes}}};
      offset += tensor.bytes;
    }
    std::string text = header.dump();
    text.append((8 - text.size() % 8) % 8, ' ');
    const uint64_t length = text.size();
    add(&length, sizeof(length));  // little-endian, as every machine that kinora runs on
    add(text.data(), text.size());
  }
  void add(const void* data, size_t bytes) {
    out_.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
    if (!out_) cannot_write(path_);
  }
  void close() {
    out_.close();
    if (!out_) cannot_write(path_);
  }

 private:
  fs::path path_;
  std::ofstream out_;
};

std::vector<std::byte> narrowed(DType type, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * static_cast<size_t>(dtype_size(type)));
  for (size_t i = 0; i < values.size(); ++i) {
    if (type == DType::f32) {
      std::memcpy(bytes.data() + 4 * i, &values[i], 4);
    } else {
      const uint16_t bits =
          type == DType::bf16 ? bf16::from_float(values[i]).bits : f16::from_float(values[i]).bits;
      std::memcpy(bytes.data() + 2 * i, &bits, 2);
    }
  }
  return bytes;
}

const char* type_word(DType type) {
  return type == DType::bf16 ? "BF16" : type == DType::f16 ? "F16" : "F32";
}

std::vector<int64_t> sizes_of(const Shape& shape) {
  std::vector<int64_t> sizes;
  for (int axis = 0; axis < shape.rank(); ++axis) sizes.push_back(shape[axis]);
  return sizes;
}

class Quantizer {
 public:
  Quantizer(const Context& context, const FileSystem& files, const std::string& directory,
            const QuantizeOptions& options, Progress* progress, const CancelToken& cancel)
      : context_(context),
        files_(files),
        directory_(directory),
        options_(options),
        progress_(progress),
        cancel_(cancel),
        tensors_(TensorFiles::open(files, directory)) {
    const ConfigFiles config = ConfigFiles::read(files, directory);
    if (config.top().has("quantization_config")) {
      throw Error(ErrorKind::usage, directory +
                                        " is quantised already; give the directory with "
                                        "16-bit weights that it was made from");
    }
    layers_ = family_of(config).read(config).decoder.layers;
    for (const std::string& name : tensors_.names()) names_[common_tensor_name(name)] = name;
    for (const auto& [common, name] : names_) {
      if (is_projection(common)) check_projection(name);
    }
    for (int64_t layer = 0; layer < layers_; ++layer) {
      for (const char* part : projections) {
        const std::string name = fmt::format("model.language_model.layers.{}.{}", layer, part);
        if (names_.contains(name)) continue;
        throw Error(ErrorKind::bad_input, fmt::format("{} has no tensor {}", directory, name));
      }
    }
    if (options.kind == PackedKind::int4) group_ = fitting_group();
    if (options.head) {
      const auto own = names_.find("lm_head.weight");
      tied_ = own == names_.end();
      head_ = tied_ ? "lm_head.weight" : own->second;
      const auto table = names_.find("model.language_model.embed_tokens.weight");
      if (tied_ && table == names_.end()) {
        throw Error(ErrorKind::bad_input, directory + " has neither a head nor embeddings");
      }
      head_source_ = tied_ ? table->second : head_;
      check_projection(head_source_);
    }
  }

  QuantizeResult run(Folder& folder) {
    if (!options_.sample.empty()) {
      InputSample sample =
          InputSample::take(context_, files_, directory_, options_.sample, options_.sample_tokens,
                            options_.kind == PackedKind::int4, progress_, cancel_);
      result_.sampled_tokens = sample.tokens();
      scales_ = choose_scales(*context_.threads, tensors_, names_, sample, layers_,
                              rounding_of(options_.kind, DType::f32, int64_t{1} << 40), cancel_,
                              progress_);
    }
    for (const std::string& shard : shards()) write_shard(folder, shard);
    if (weight_map_.size() > 1) write_index(folder);
    write_config(folder);
    copy_the_rest(folder);
    result_.error = result_.error > 0 ? std::sqrt(result_.error / std::max(total_, 1e-30)) : 0;
    return result_;
  }

 private:
  void check_projection(const std::string& name) const {
    const TensorEntry& entry = *tensors_.find(name);
    const bool floating =
        entry.known == DType::f32 || entry.known == DType::bf16 || entry.known == DType::f16;
    if (floating && entry.shape.rank() == 2) return;
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: tensor {} is {} {}, not a matrix in F32, "
                            "BF16 or F16",
                            directory_, name, entry.dtype, to_string(entry.shape)));
  }

  // Whether a tensor is written in fewer bits; a tied head is one that the files do not have.
  bool is_rounded(const std::string& name) const {
    return is_projection(common_tensor_name(name)) || (!head_.empty() && name == head_);
  }
  PackedKind kind_of(const std::string& name) const {
    return name == head_ && options_.kind == PackedKind::int4 ? PackedKind::int8 : options_.kind;
  }

  // What fits all inputs of a tensor: groups that divide, or whole channels.
  Rounding rounding_of(PackedKind kind, DType type, int64_t columns) const {
    Rounding rounding;
    rounding.kind = kind;
    rounding.scale_type = type;
    rounding.search = options_.search;
    rounding.group = kind == PackedKind::int4 ? group_ : columns;
    return rounding;
  }

  std::vector<std::string> shards() {
    std::vector<std::string> names;
    if (files_.is_file(join_path(directory_, "model.safetensors"))) {
      names.push_back("model.safetensors");
    } else {
      for (const std::string& file : files_.list(directory_)) {
        if (file.ends_with(".safetensors")) names.push_back(file);
      }
    }
    return names;
  }

  // The groups that were asked for where they divide the inputs of all projections, else smaller
  // ones.
  int64_t fitting_group() const {
    for (const int64_t group : {options_.group, int64_t{64}, int64_t{32}}) {
      const bool fits = std::all_of(names_.begin(), names_.end(), [&](const auto& name) {
        return !is_projection(name.first) || tensors_.find(name.second)->shape[1] % group == 0;
      });
      if (fits && group <= options_.group) return group;
    }
    throw Error(ErrorKind::unsupported,
                directory_ + " has projections whose inputs are no multiple of 32; choose 8 bits");
  }

  std::vector<Planned> plan_of(const std::string& name, const TensorEntry& entry) const {
    if (!is_rounded(name)) {
      return {{name, entry.dtype, sizes_of(entry.shape), entry.end - entry.begin}};
    }
    const int64_t n = entry.shape[0], k = entry.shape[1];
    const Rounding rounding = rounding_of(kind_of(name), *entry.known, k);
    const std::string layer = name.substr(0, name.size() - std::string(".weight").size());
    const int64_t groups = rounding.groups(k);
    const Planned scale{layer + ".weight_scale",
                        type_word(*entry.known),
                        {n, groups},
                        n * groups * dtype_size(*entry.known)};
    switch (rounding.kind) {
      case PackedKind::int4:
        return {{layer + ".weight_packed", "I32", {n, (k + 7) / 8}, n * ((k + 7) / 8) * 4},
                scale,
                {layer + ".weight_shape", "I64", {2}, 16}};
      case PackedKind::int8:
        return {{name, "I8", {n, k}, n * k}, scale};
      default:
        return {{name, "F8_E4M3", {n, k}, n * k}, scale};
    }
  }

  void write_shard(Folder& folder, const std::string& shard) {
    const SafetensorsFile source = SafetensorsFile::open(files_, join_path(directory_, shard));
    std::vector<Planned> planned;
    for (const auto& [name, entry] : source.entries()) {
      if (tensors_.find(name) == nullptr) continue;
      add_plan(shard, plan_of(name, entry), planned);
      if (tied_ && name == head_source_) add_plan(shard, plan_of(head_, entry), planned);
    }
    OutputFile out(folder.file(shard), planned);
    for (const auto& [name, entry] : source.entries()) {
      if (tensors_.find(name) == nullptr) continue;
      cancel_.check();
      result_.bytes_before += entry.end - entry.begin;
      if (progress_ != nullptr) {
        progress_->update("quantise", result_.bytes_before, tensors_.bytes());
      }
      if (is_rounded(name)) {
        round_tensor(source.tensor(name), name, out);
      } else {
        copy_tensor(source, name, entry, out);
      }
      if (tied_ && name == head_source_) round_tensor(source.tensor(name), head_, out);
    }
    out.close();
  }

  void add_plan(const std::string& shard, std::vector<Planned> tensors,
                std::vector<Planned>& planned) {
    for (Planned& one : tensors) {
      weight_map_[shard].push_back(one.name);
      result_.bytes_after += one.bytes;
      planned.push_back(std::move(one));
    }
  }

  void copy_tensor(const SafetensorsFile& source, const std::string& name, const TensorEntry& entry,
                   OutputFile& out) const {
    const auto changed = scales_.find(name);
    if (changed == scales_.end() || changed->second.rows.empty()) {
      const Tensor raw = source.raw(name);
      return out.add(raw.view().raw(), static_cast<size_t>(raw.bytes()));
    }
    std::vector<float> values = values_of(source.tensor(name));
    for (size_t i = 0; i < values.size(); ++i) values[i] /= changed->second.rows[i];
    const std::vector<std::byte> bytes = narrowed(*entry.known, values);
    out.add(bytes.data(), bytes.size());
  }

  void round_tensor(const Tensor& weight, const std::string& name, OutputFile& out) {
    const int64_t n = weight.size(0), k = weight.size(1);
    const Rounding rounding = rounding_of(kind_of(name), weight.dtype(), k);
    ++result_.layers;
    const int64_t groups = rounding.groups(k);
    const auto found = scales_.find(name);
    const TensorScales* change = found == scales_.end() ? nullptr : &found->second;
    std::vector<uint8_t> codes(static_cast<size_t>(n * k));
    std::vector<float> scales(static_cast<size_t>(n * groups));
    std::mutex lock;
    std::atomic<bool> finite{true};
    context_.threads->parallel_for(n, 8, [&](int64_t begin, int64_t end) {
      std::vector<float> row(static_cast<size_t>(k)), back(row.size());
      double error = 0, total = 0;
      for (int64_t i = begin; i < end; ++i) {
        load_row(weight, i, change, row);
        uint8_t* own = codes.data() + i * k;
        float* own_scales = scales.data() + i * groups;
        if (change != nullptr && change->compensation != nullptr) {
          change->compensation->round_row(rounding, row.data(), own, own_scales);
        } else {
          const bool weighed = change != nullptr && !change->importance.empty();
          round_row(rounding, row.data(), k, weighed ? change->importance.data() : nullptr, own,
                    own_scales);
        }
        unround_row(rounding, own, own_scales, k, back.data());
        for (size_t j = 0; j < row.size(); ++j) {
          error += (back[j] - row[j]) * (back[j] - row[j]);
          total += row[j] * row[j];
        }
      }
      if (!std::isfinite(total)) finite = false;
      const std::lock_guard guard(lock);
      result_.error += error;
      total_ += total;
    });
    if (!finite) {
      throw Error(ErrorKind::bad_input,
                  fmt::format("{}: tensor {} holds a NaN or an infinity", directory_, name));
    }
    if (rounding.kind == PackedKind::int4) {
      const std::vector<uint32_t> words = packed(codes, n, k);
      out.add(words.data(), words.size() * sizeof(uint32_t));
    } else {
      out.add(codes.data(), codes.size());
    }
    const std::vector<std::byte> bytes = narrowed(weight.dtype(), scales);
    out.add(bytes.data(), bytes.size());
    if (rounding.kind == PackedKind::int4) {
      const std::array<int64_t, 2> shape = {n, k};
      out.add(shape.data(), sizeof(shape));
    }
  }

  static void load_row(const Tensor& weight, int64_t index, const TensorScales* change,
                       std::vector<float>& row) {
    const auto k = static_cast<int64_t>(row.size());
    for (int64_t j = 0; j < k; ++j) {
      const int64_t at = index * k + j;
      row[static_cast<size_t>(j)] =
          weight.dtype() == DType::bf16  ? weight.data<bf16>()[at].to_float()
          : weight.dtype() == DType::f16 ? weight.data<f16>()[at].to_float()
                                         : weight.data<float>()[at];
    }
    if (change == nullptr) return;
    const float divisor = change->rows.empty() ? 1.0f : change->rows[static_cast<size_t>(index)];
    for (size_t j = 0; j < row.size(); ++j) {
      row[j] *= (change->columns.empty() ? 1.0f : change->columns[j]) / divisor;
    }
  }

  // Eight codes a word, low ones first, each with 8 added.
  static std::vector<uint32_t> packed(const std::vector<uint8_t>& codes, int64_t n, int64_t k) {
    const int64_t across = (k + 7) / 8;
    std::vector<uint32_t> words(static_cast<size_t>(n * across));
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < k; ++j) {
        const auto code = static_cast<uint32_t>(codes[static_cast<size_t>(i * k + j)] + 8) & 15u;
        words[static_cast<size_t>(i * across + j / 8)] |= code << (4 * (j % 8));
      }
    }
    return words;
  }

  void write_text(Folder& folder, const std::string& name, const std::string& text) const {
    std::ofstream out(folder.file(name), std::ios::binary);
    out << text;
    out.close();
    if (!out) cannot_write(folder.file(name));
  }

  void write_index(Folder& folder) const {
    Json index = {{"metadata", {{"total_size", result_.bytes_after}}},
                  {"weight_map", Json::object()}};
    std::map<std::string, std::string> sorted;
    for (const auto& [shard, names] : weight_map_) {
      for (const std::string& name : names) sorted[name] = shard;
    }
    for (const auto& [name, shard] : sorted) index["weight_map"][name] = shard;
    write_text(folder, "model.safetensors.index.json", index.dump(2) + "\n");
  }

  // A group of the config: which modules, in which form.
  Json scheme_of(PackedKind kind, const char* target) const {
    const bool four = kind == PackedKind::int4, fp8 = kind == PackedKind::fp8;
    const char* type = fp8 ? "float" : "int";
    const Json weights = {{"num_bits", four ? 4 : 8},
                          {"type", type},
                          {"symmetric", true},
                          {"strategy", four ? "group" : "channel"},
                          {"group_size", four ? Json(group_) : Json(nullptr)},
                          {"dynamic", false},
                          {"observer", "minmax"}};
    Json inputs = nullptr;  // 8-bit weights meet activations of 8 bits, one scale a token
    if (!four) {
      inputs = {{"num_bits", 8},       {"type", type},          {"symmetric", true},
                {"strategy", "token"}, {"group_size", nullptr}, {"dynamic", true}};
    }
    Json scheme = {{"targets", Json::array({target})},
                   {"weights", weights},
                   {"input_activations", inputs},
                   {"output_activations", nullptr}};
    return scheme;
  }
  static const char* format_of(PackedKind kind) {
    return kind == PackedKind::int4   ? "pack-quantized"
           : kind == PackedKind::int8 ? "int-quantized"
                                      : "float-quantized";
  }

  void write_config(Folder& folder) const {
    Json groups = {{"group_0", scheme_of(options_.kind, "Linear")}};
    const bool mixed = !head_.empty() && kind_of(head_) != options_.kind;
    if (mixed) {
      groups["group_1"] = scheme_of(kind_of(head_), "re:.*lm_head");
      groups["group_0"]["format"] = format_of(options_.kind);
      groups["group_1"]["format"] = format_of(kind_of(head_));
    }
    std::vector<std::string> ignored = {"re:.*visual.*", "re:.*vision_tower.*",
                                        "re:.*multi_modal_projector.*"};
    if (head_.empty()) ignored.insert(ignored.begin(), "lm_head");
    Json config = Json::parse(files_.read(join_path(directory_, "config.json")));
    if (tied_) {
      config["tie_word_embeddings"] = false;
      if (config.contains("text_config")) config["text_config"]["tie_word_embeddings"] = false;
    }
    config["quantization_config"] = {
        {"quant_method", "compressed-tensors"},
        {"format", mixed ? "mixed-precision" : format_of(options_.kind)},
        {"quantization_status", "compressed"},
        {"config_groups", groups},
        {"ignore", ignored},
        {"kv_cache_scheme", nullptr}};
    write_text(folder, "config.json", config.dump(2) + "\n");
  }

  // Tokenizer, templates, licences: everything small that is not weights.
  void copy_the_rest(Folder& folder) const {
    for (const std::string& name : files_.list(directory_)) {
      const bool weights = name.ends_with(".safetensors") || name.ends_with(".bin") ||
                           name.ends_with(".gguf") || name.ends_with(".pth") ||
                           name.ends_with("index.json");
      const std::string path = join_path(directory_, name);
      if (weights || name == "config.json" || !files_.is_file(path)) continue;
      write_text(folder, name, files_.read(path));
    }
  }

  const Context& context_;
  const FileSystem& files_;
  std::string directory_;
  const QuantizeOptions& options_;
  Progress* progress_;
  const CancelToken& cancel_;
  TensorFiles tensors_;
  int64_t layers_ = 0;
  int64_t group_ = 0;               // of int4
  std::string head_, head_source_;  // the head's name and what it is made of; empty: left alone
  bool tied_ = false;               // the head is a second use of the embeddings
  std::map<std::string, std::string, std::less<>> names_;  // common name → name in the files
  std::map<std::string, TensorScales> scales_;
  std::map<std::string, std::vector<std::string>> weight_map_;  // shard → names
  QuantizeResult result_;
  double total_ = 0;
};

}  // namespace

QuantizeResult quantize_directory(const Context& context, const FileSystem& files,
                                  const std::string& directory, const std::string& output,
                                  const QuantizeOptions& options, Progress* progress,
                                  const CancelToken& cancel) {
  if (options.kind == PackedKind::int4 && (options.group < 32 || options.group % 32 != 0)) {
    throw Error(ErrorKind::usage, fmt::format("groups of {} inputs cannot share a scale; give a "
                                              "multiple of 32",
                                              options.group));
  }
  Quantizer quantizer(context, files, directory, options, progress, cancel);
  Folder folder(output);
  const QuantizeResult result = quantizer.run(folder);
  folder.keep();
  return result;
}

}  // namespace kinora

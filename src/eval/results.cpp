#include "eval/results.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/commit.h"
#include "core/error.h"
#include "core/threads.h"
#include "eval/machine.h"
#include "eval/schema.h"
#include "io/mapped_file.h"
#include "io/write_file.h"
#include "sluice/version.h"

namespace sluice::impl {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> files_of(const Checkpoint& checkpoint) {
  if (checkpoint.gguf) return {checkpoint.path};
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(checkpoint.path))
    if (entry.path().extension() == ".safetensors" || entry.path().filename() == "config.json")
      files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

template <typename T>
nlohmann::json value_or_null(const std::optional<T>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

}  // namespace

nlohmann::json or_null(const std::optional<double>& value) { return value_or_null(value); }
nlohmann::json or_null(const std::optional<int64_t>& value) { return value_or_null(value); }
nlohmann::json or_null(const std::optional<bool>& value) { return value_or_null(value); }

std::string sha256_of(const std::vector<fs::path>& files) {
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(),
                                                                   EVP_MD_CTX_free);
  SLUICE_CHECK(context && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1);
  constexpr size_t kPiece = size_t{16} << 20;
  for (const fs::path& path : files) {
    const auto file = MappedFile::open(path);
    for (size_t begin = 0; begin < file->bytes().size(); begin += kPiece) {
      const auto piece =
          file->bytes().subspan(begin, std::min(kPiece, file->bytes().size() - begin));
      SLUICE_CHECK(EVP_DigestUpdate(context.get(), piece.data(), piece.size()) == 1);
      release_pages(piece);
    }
  }
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  SLUICE_CHECK(EVP_DigestFinal_ex(context.get(), digest, &size) == 1);
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) hex += fmt::format("{:02x}", digest[i]);
  return hex;
}

nlohmann::json results_header(const std::string& command, const std::string& command_line,
                              const Backend& backend, int n_ranks) {
  const nlohmann::json device = backend.description();
  const bool on_gpu = backend.device() == Device::kCuda;
  const std::string_view commit = source_commit();
  return {{"schema", kResultsSchema},
          {"command", command},
          {"command_line", command_line},
          {"timestamp", timestamp()},
          {"sluice_version", SLUICE_VERSION},
          {"commit", commit.empty() ? nlohmann::json() : nlohmann::json(commit)},
          {"machine",
           {{"cpu", cpu_name()},
            {"isa", on_gpu ? nlohmann::json() : device},
            {"threads", threads()},
            {"n_ranks", n_ranks},
            {"gpu", on_gpu ? device : nlohmann::json()}}}};
}

std::string device_text(const Backend& backend) {
  return fmt::format("{}, {}", cpu_name(), backend.description());
}

nlohmann::json describe_model(const Checkpoint& checkpoint, const Backend& backend,
                              const std::string& known_sha256) {
  const ModelSpec& spec = checkpoint.spec();
  return {{"path", checkpoint.path.string()},
          {"family", spec.family},
          {"n_layers", spec.n_layers},
          {"d_model", spec.d_model},
          {"n_heads", spec.n_heads},
          {"n_kv_heads", spec.n_kv_heads},
          {"head_dim", spec.head_dim},
          {"vocab", spec.vocab},
          {"dtype", dtype_name(backend.compute_dtype())},
          {"sha256", known_sha256.empty() ? model_sha256(checkpoint) : known_sha256}};
}

std::string model_sha256(const Checkpoint& checkpoint) { return sha256_of(files_of(checkpoint)); }

nlohmann::json describe_text(const fs::path& path, int64_t n_tokens) {
  return {{"path", path.string()}, {"sha256", sha256_of({path})}, {"n_tokens", n_tokens}};
}

nlohmann::json results_of(const std::string& command, const ResultsOrigin& origin,
                          int64_t n_tokens) {
  const Backend& backend = origin.model.backend();
  nlohmann::json results = results_header(command, origin.command_line, backend, origin.n_ranks);
  results["model"] = describe_model(origin.checkpoint, backend, origin.model_sha256);
  if (!origin.text.empty()) results["text"] = describe_text(origin.text, n_tokens);
  if (origin.bases != nullptr) results["bases"] = describe_bases(origin.bases->origin);
  return results;
}

nlohmann::json describe_comparison(const PlanComparison& plan) {
  const Comparison& c = plan.tokens;
  nlohmann::json results = {{"n_tokens", c.n_tokens()},
                            {"keys_read_fraction", plan.work.keys_read_fraction()},
                            {"clusters_fraction", plan.work.clusters_fraction()},
                            {"selection_products", plan.work.selection_products()},
                            {"selection_products_paper", plan.work.selection_products_paper()},
                            // Null: not measured.
                            {"generation_match_tokens", nullptr},
                            {"generation_match_characters", nullptr}};
  for (const Metric& metric : kMetrics) {
    if (metric.written) results[metric.key] = c.value(metric);
    if (!metric.error_key.empty()) results[metric.error_key] = c.error(metric);
  }
  results.update(describe_linear_shares(plan.linear));
  if (plan.generation_match.count() > 0) {
    results["generation_match_tokens"] = plan.generation_match.mean();
    results["generation_match_characters"] = plan.generation_match_characters.mean();
  }
  if (plan.masked)
    results.update({{"accuracy_base", plan.masked->base_right.mean()},
                    {"accuracy", plan.masked->right.mean()},
                    {"accuracy_stderr", plan.masked->right.standard_error()},
                    {"hidden_cosine", plan.masked->hidden.cosine.mean()},
                    {"hidden_relative_error", plan.masked->hidden.relative.mean()}});
  return results;
}

nlohmann::json describe_linear_shares(const LinearWork& work) {
  return {{"fast_path_fraction", or_null(work.fast_path_fraction())},
          {"weight_bytes_fraction", work.weight_bytes_fraction()}};
}

nlohmann::json describe_linear_work(const LinearWork& work) {
  nlohmann::json groups = nlohmann::json::array();
  for (const GroupWork& group : work.groups()) {
    const GroupPlan& plan = group.plan;
    const LinearCounts& counts = group.counts;
    groups.push_back({{"layer", group.layer},
                      {"input", basis_input_name(group.input)},
                      {"kind", linear_name(plan.kind)},
                      {"epsilon", plan.epsilon},
                      {"n_tokens", counts.n_tokens},
                      {"bytes_fraction", or_null(group.bytes_fraction())}});
    nlohmann::json& entry = groups.back();
    if (plan.kind == LinearKind::kGraded) {
      entry["kept_fraction"] = or_null(group.kept_fraction());
      continue;
    }
    entry["rank"] = plan.rank;
    entry["fast_path_fraction"] = or_null(group.fast_path_fraction());
    entry["n_bypassed"] = counts.n_bypassed;
    const bool any = counts.residuals.count() > 0;
    entry["residual_median"] =
        any ? nlohmann::json(counts.residuals.quantile(0.5)) : nlohmann::json();
    entry["residual_p90"] = any ? nlohmann::json(counts.residuals.quantile(0.9)) : nlohmann::json();
    if (plan.adaptive > 0) entry["n_additions"] = counts.n_additions;
  }
  return groups;
}

nlohmann::json describe_cache(const CacheMemory& cache) {
  return {{"n_tokens", cache.n_tokens},
          {"exact_bytes", cache.bytes.keys_values.exact},
          {"clusters_bytes", cache.bytes.keys_values.clusters},
          {"selection_rows_bytes", cache.bytes.selection_rows},
          {"outputs_bytes", cache.bytes.outputs},
          {"dense_bytes", cache.dense_bytes}};
}

std::string results_text(const nlohmann::json& results) {
  return results.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

void write_json(const nlohmann::json& results, const fs::path& path) {
  write_file(path, results_text(results));
}

}  // namespace sluice::impl

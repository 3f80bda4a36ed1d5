#include "eval/moments_pass.h"

#include <algorithm>

#include "core/error.h"
#include "eval/text/windows.h"

namespace sluice::impl {
namespace {

// A device's rows on the host.
ConstTensor on_host(Backend& backend, const ConstTensor& rows, Buffer& memory) {
  if (rows.device() == Device::kCpu) return rows;
  memory = host_buffer(rows.dtype(), rows.shape());
  backend.download(rows, memory.view());
  return memory.view();
}

size_t bytes_of(const ConstTensor& rows) {
  return static_cast<size_t>(rows.rows() * rows.row_elements() * element_bytes(rows.dtype()));
}

}  // namespace

MomentsPass::MomentsPass(Model& model, Communicator& ranks, const std::vector<MomentsGroup>& groups,
                         const ExemptOptions& exempt)
    : model_(model), ranks_(ranks), options_(exempt) {
  for (const MomentsGroup& group : groups) {
    const Key key(group.layer, group.input);
    owners_.emplace(key, group.owner);
    if (group.owner == ranks.rank())
      moments_.emplace(key, Moments(model.spec().row_widths().of(group.input)));
  }
  model_.observe_linear([this](const LinearSeen& seen) { see(seen); });
  model_.observe([this](const AttentionSeen& seen) { see(seen); });
}

MomentsPass::~MomentsPass() {
  model_.observe_linear({});
  model_.observe({});
}

// Ranks go through the layers together. A rank whose window has ended, or that has none, runs
// tokens of the first window, which is the longest, and its rows do not count: it would only wait
// otherwise, and owns groups of the others' rows.
void MomentsPass::run(std::span<const std::vector<int32_t>> windows, KvCache& cache) {
  SLUICE_CHECK(!windows.empty() && std::ssize(windows) <= ranks_.size());
  cache.truncate(0);
  exempt_.clear();
  windows_ = windows;
  const auto n = std::ssize(windows.front());
  step_ = model_.spec().causal ? kPassTokens : n;  // an encoder sees a window whole
  for (begin_ = 0; begin_ < n; begin_ += step_) {
    const bool has_own = n_rows_of(ranks_.rank()) > 0;
    const std::vector<int32_t>& window = windows[has_own ? static_cast<size_t>(ranks_.rank()) : 0];
    model_.forward(std::span(window).subspan(
                       static_cast<size_t>(begin_),
                       static_cast<size_t>(std::min(step_, std::ssize(window) - begin_))),
                   cache);
  }
}

int64_t MomentsPass::n_rows_of(int rank) const {
  if (rank >= std::ssize(windows_)) return 0;
  return std::clamp<int64_t>(std::ssize(windows_[static_cast<size_t>(rank)]) - begin_, 0, step_);
}

void MomentsPass::see(const LinearSeen& seen) {
  if (!wants(seen.layer, seen.input)) return;
  Buffer memory;
  deliver({seen.layer, seen.input}, {on_host(model_.backend(), seen.rows, memory)});
}

// Rows that selection compares, exempt tokens left out.
void MomentsPass::see(const AttentionSeen& seen) {
  const bool normed = wants(seen.layer, BasisInput::kSelectionNormed);
  const bool residual = wants(seen.layer, BasisInput::kSelectionResidual);
  if (!normed && !residual) return;
  Buffer memory, more_memory;
  const ConstTensor rows = on_host(model_.backend(), seen.residual, memory);
  auto& exempt =
      exempt_.try_emplace(seen.layer, options_.sinks, options_.outlier_ratio).first->second;
  std::vector<bool> skip;
  for (int64_t t = 0; t < rows.rows(); ++t) {
    const double inverse = exempt.needs_norms() ? inverse_norm(rows, t) : 0;
    skip.push_back(exempt.next(inverse > 0 ? 1 / inverse : 0));
  }
  if (residual) deliver({seen.layer, BasisInput::kSelectionResidual}, {rows, &skip});
  if (normed)
    deliver({seen.layer, BasisInput::kSelectionNormed},
            {on_host(model_.backend(), seen.input, more_memory), &skip});
}

void MomentsPass::deliver(const Key& group, const Rows& own) {
  const int owner = owners_.at(group);
  if (owner != ranks_.rank()) {
    if (n_rows_of(ranks_.rank()) > 0) send(own, owner);
    return;
  }
  for (int rank = 0; rank < std::ssize(windows_); ++rank) {
    if (n_rows_of(rank) == 0) continue;
    if (rank == ranks_.rank())
      add(group, own);
    else
      receive(group, own, rank);
  }
}

void MomentsPass::add(const Key& group, const Rows& rows) {
  Moments& moments = moments_.at(group);
  if (rows.skip != nullptr)
    moments.add_unit(rows.rows, *rows.skip);
  else
    moments.add(rows.rows);
}

void MomentsPass::send(const Rows& own, int to) {
  std::vector<std::byte> packed(bytes_of(own.rows));
  copy_rows(own.rows, Tensor(packed.data(), own.rows.dtype(), own.rows.shape()));
  ranks_.send(packed, to);
  if (own.skip == nullptr) return;
  std::vector<std::byte> flags;
  for (const bool skipped : *own.skip) flags.push_back(std::byte{skipped});
  ranks_.send(flags, to);
}

// like: of the same width and dtype, with flags where those come too.
void MomentsPass::receive(const Key& group, const Rows& like, int from) {
  const int64_t n = n_rows_of(from), d = like.rows.row_elements();
  const Buffer memory = host_buffer(like.rows.dtype(), {n, d});
  ranks_.receive({memory.view().bytes(), bytes_of(memory.view())}, from);
  std::vector<bool> skip;
  if (like.skip != nullptr) {
    std::vector<std::byte> flags(static_cast<size_t>(n));
    ranks_.receive(flags, from);
    for (const std::byte flag : flags) skip.push_back(flag != std::byte{0});
  }
  add(group, {memory.view(), like.skip != nullptr ? &skip : nullptr});
}

}  // namespace sluice::impl

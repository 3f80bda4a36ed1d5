#include "model/linear_work.h"

#include <algorithm>

namespace sluice::impl {
namespace {

// Of the matrix that reads an input.
double elements_of(const ModelSpec& spec, BasisInput input) {
  const auto n_in = static_cast<double>(spec.row_widths().of(input));
  switch (input) {
    case BasisInput::kAttentionInput:
      return n_in * static_cast<double>(spec.query_width() + 2 * spec.kv_width());
    case BasisInput::kMlpInput:
      return n_in * static_cast<double>((spec.gated ? 2 : 1) * spec.d_inner);
    default:
      return n_in * static_cast<double>(spec.d_model);
  }
}

std::optional<double> share(double part, double whole) {
  if (whole == 0) return {};
  return part / whole;
}

}  // namespace

std::optional<double> GroupWork::fast_path_fraction() const {
  if (plan.kind != LinearKind::kGsi) return {};
  return share(static_cast<double>(counts.n_fast), static_cast<double>(counts.n_tokens));
}

std::optional<double> GroupWork::kept_fraction() const {
  if (plan.kind != LinearKind::kGraded) return {};
  return share(static_cast<double>(counts.n_kept), static_cast<double>(counts.n_tokens * n_in));
}

std::optional<double> GroupWork::bytes_fraction() const {
  return share(counts.elements, counts.dense_elements);
}

GroupWork& LinearWork::group_of(int64_t layer, BasisInput input) {
  const auto known = std::find_if(groups_.begin(), groups_.end(), [&](const GroupWork& group) {
    return group.layer == layer && group.input == input;
  });
  if (known != groups_.end()) return *known;
  GroupWork& group = groups_.emplace_back();
  group.layer = layer;
  group.input = input;
  return group;
}

LinearWork& LinearWork::operator+=(const LinearWork& other) {
  for (const GroupWork& from : other.groups_) {
    GroupWork& group = group_of(from.layer, from.input);
    group.plan = from.plan;
    group.n_in = from.n_in;
    group.counts += from.counts;
  }
  elements_ += other.elements_;
  dense_elements_ += other.dense_elements_;
  return *this;
}

void LinearWork::add_rank(const LinearWork& other) {
  for (const GroupWork& from : other.groups_) {
    group_of(from.layer, from.input).counts.add_rank(from.counts);
    elements_ -= from.counts.basis_elements;
  }
  elements_ += other.elements_;
  dense_elements_ += other.dense_elements_;
}

void LinearWork::add(const KvCache& cache, const ModelSpec& spec) {
  const auto n_tokens = static_cast<double>(cache.length() * cache.n_batch());
  for (int64_t layer = cache.range().begin; layer < cache.range().end; ++layer)
    for (const BasisInput input : kLinearInputs) {
      const LinearGate* gate = cache.gate(layer, input);
      if (gate == nullptr) {
        elements_ += n_tokens * elements_of(spec, input);
        dense_elements_ += n_tokens * elements_of(spec, input);
        continue;
      }
      GroupWork& group = group_of(layer, input);
      group.plan = gate->plan();
      group.n_in = gate->n_in();
      group.counts += gate->counts();
      elements_ += gate->counts().elements;
      dense_elements_ += gate->counts().dense_elements;
    }
}

std::optional<double> LinearWork::fast_path_fraction() const {
  double n_fast = 0, n_tokens = 0;
  for (const GroupWork& group : groups_)
    if (group.plan.kind == LinearKind::kGsi) {
      n_fast += static_cast<double>(group.counts.n_fast);
      n_tokens += static_cast<double>(group.counts.n_tokens);
    }
  return share(n_fast, n_tokens);
}

double LinearWork::weight_bytes_fraction() const {
  return share(elements_, dense_elements_).value_or(1);
}

}  // namespace sluice::impl

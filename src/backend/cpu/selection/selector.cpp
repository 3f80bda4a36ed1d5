// Passes of the selector; what they are made of is in selection/gram/sweep.cpp and
// selection/gram/ahead.cpp.

#include "backend/cpu/selection/selector.h"

#include <algorithm>
#include <numeric>

#include "backend/cpu/selection/gram/selector.h"
#include "core/threads.h"

namespace sluice::impl::cpu::selection {
namespace {

// Enough rows to amortize reading a panel through the caches and to keep every thread busy. Few
// enough that comparing them with each other and deciding them one by one costs little.
size_t block_rows() { return static_cast<size_t>(std::clamp(32 * threads(), 128, 512)); }

const gemm::Kernel& fastest_kernel() {
  const gemm::Kernel* bfmmla = gemm::kernel_bfmmla();
  return bfmmla != nullptr ? *bfmmla : gemm::kernel_f32();
}

// A basis of rank k is tried, on a few rows and columns, once there are this many times k columns:
// finding the coordinates of a row costs as much as multiplying it with k columns. Where it is then
// given up, what was lost is some 4% of the work so far.
constexpr int64_t kColumnsPerRank = 4;
constexpr int64_t kSampleRows = 32, kSampleColumns = 96;

// The cost of a pair in addition to its product of coordinates, in multiplications at full width.
// The cost of a pair that survives in a low tile, as a factor. Both measured at d_model 192 and 768
// on Neoverse V1.
constexpr double kReduction = 96, kLowTile = 1.25;
// Of the work without a basis: nearer to it, the estimate is too rough.
constexpr double kMostWork = 0.95;
// Bases that leave fewer pairs than this are not worth looking for: on three trained models of
// d_model 192 they left 30% at best.
constexpr Pairs kFewestLeft = {.multiplied = 1, .dropped = 9};

bool same_rows(const ConstTensor& a, const ConstTensor& b) {
  return a.bytes() == b.bytes() && a.dtype() == b.dtype() && a.row_stride() == b.row_stride();
}

}  // namespace

GramSelector::GramSelector(const SelectorSpec& spec)
    : Selector(spec),
      rule_(spec.rule),
      kernel_(fastest_kernel()),
      exempt_tokens_(spec.sinks, spec.outlier_ratio),
      rows_(kernel_, spec.d_model),
      subspace_(spec.basis == nullptr ? nullptr : std::make_unique<Subspace>(kernel_, spec.basis)),
      columns_(no_columns()),
      block_columns_(no_columns()) {
  for (const double tau : spec_.taus) SLUICE_CHECK(tau >= 0 && tau < 1);
  for (size_t set = 0; set < spec_.taus.size(); ++set) {
    if (spec_.taus[set] > 0) live_sets_.push_back(set);
    const bool magnitudes = traits(rule_).magnitudes;
    sweep_queries_.push_back({mask(set, kOwnerMask), false});
    sweep_queries_.push_back({mask(set, deciding_mask(rule_, false)), magnitudes});
    sweep_queries_.push_back({mask(set, kInheritedMask), magnitudes});
    const bool paper = spec_.owner == OwnerKind::kPaper;
    owner_queries_.push_back({mask(set, kOwnerMask), paper, spec_.owner == OwnerKind::kEarlier});
  }
  GramSelector::reset();
}

void GramSelector::reset() {
  exempt_tokens_ = ExemptTokens(spec_.sinks, spec_.outlier_ratio);
  columns_.clear();
  block_columns_.clear();
  sets_.assign(spec_.taus.size(), {});
  for (size_t i = 0; i < sets_.size(); ++i) sets_[i].tau = spec_.taus[i];
  products_ = pairs_dropped_ = 0;
  if (subspace_ != nullptr) subspace_->clear();
  subspace_state_ = SubspaceState::kWaits;
}

// Takes in the tokens of a pass and tells the exempt ones; returns those that are compared.
GramSelector::Indices GramSelector::begin_pass(const SelectArgs& args) {
  const int64_t n = args.rows.rows();
  SLUICE_CHECK(args.rows.row_elements() == spec_.d_model);
  SLUICE_CHECK(!exempt_tokens_.needs_norms() || args.residual.rows() == n);
  SLUICE_CHECK(!inherits(rule_) || args.inherited.size() == sets_.size());
  pass_ = &args;
  first_ = sets_.empty() ? 0 : sets_[0].status.size();
  inherited_.clear();
  for (const Inherited& set : args.inherited)
    inherited_.push_back(set.flags(static_cast<int64_t>(first_), n));
  SLUICE_CHECK(first_ == 0 || !looks_ahead());
  SLUICE_CHECK(columns_.size() == 0 || rows_.source_dtype() == args.rows.dtype());
  inverses_.resize(static_cast<size_t>(n));
  if (!live_sets_.empty()) inverse_norms(args.rows, inverses_);
  column_of_.assign(static_cast<size_t>(n), -1);

  std::vector<double> norms(static_cast<size_t>(n));
  if (exempt_tokens_.needs_norms()) {
    if (same_rows(args.rows, args.residual) && !live_sets_.empty())
      norms = inverses_;
    else
      inverse_norms(args.residual, norms);
    for (double& norm : norms) norm = norm > 0 ? 1 / norm : 0;
  }
  Indices compared;
  std::vector<TokenStatus> statuses;
  for (int64_t i = 0; i < n; ++i) {
    const bool exempt = exempt_tokens_.next(norms[static_cast<size_t>(i)]);
    statuses.push_back(exempt ? TokenStatus::kExempt : TokenStatus::kRepresentative);
    if (!exempt) compared.push_back(static_cast<int32_t>(i));
  }
  // Everyone represents itself until decided otherwise.
  for (TokenSet& set : sets_) {
    set.status.insert(set.status.end(), statuses.begin(), statuses.end());
    set.owner.resize(set.status.size());
    std::iota(set.owner.begin() + static_cast<int64_t>(first_), set.owner.end(),
              static_cast<int32_t>(first_));
    set.cluster.resize(set.status.size());
    if (spec_.want_cosines) set.cosine.resize(set.status.size(), 1.0f);
  }
  return compared;
}

// Calls visit on blocks of the tokens that are picked, whose rows are then at hand.
void GramSelector::for_blocks(const Indices& tokens, const Picks& picks, const Visit& visit) {
  Indices picked;
  const size_t n_rows = block_rows();
  for (size_t i = 0; i <= tokens.size(); ++i) {
    if (i < tokens.size() && picks(tokens[i])) picked.push_back(tokens[i]);
    if (picked.empty() || (picked.size() < n_rows && i < tokens.size())) continue;
    rows_.assign({pass_->rows, inverses_, static_cast<int64_t>(first_)}, picked);
    visit(picked);
    picked.clear();
  }
}

// Whether the coordinates save work, judged by a sample of pairs: their products are rank wide,
// and a row's coordinates take as much as rank columns.
bool GramSelector::pays(const Pairs& sample) const {
  const auto d = static_cast<double>(spec_.d_model), rank = static_cast<double>(subspace_->rank());
  const auto multiplied = static_cast<double>(sample.multiplied);
  const double left = multiplied / (multiplied + static_cast<double>(sample.dropped));
  const double projected = rank / static_cast<double>(columns_.size());
  return kLowTile * left + (rank + kReduction) / d + projected < kMostWork;
}

// Makes the coordinates of all rows and columns, unless a look at a few columns says no.
bool GramSelector::take_subspace(const Scan& full) {
  if (subspace_ == nullptr || subspace_state_ == SubspaceState::kGivenUp) return false;
  const bool always = spec_.basis_use == BasisUse::kAlways;
  const bool waits = subspace_state_ == SubspaceState::kWaits && !always;
  if (waits && columns_.size() < kColumnsPerRank * subspace_->rank() + kSampleColumns) return false;
  if (waits && !pays(kFewestLeft)) return false;
  if (waits) {
    subspace_->take_rows(rows_, std::min(kSampleRows, rows_.size()));
    subspace_->take_columns(columns_, kSampleColumns);
    if (!pays(full.try_subspace(candidates_))) {
      subspace_state_ = SubspaceState::kGivenUp;
      subspace_->clear();
      return false;
    }
  }
  subspace_->take_rows(rows_, rows_.size());
  subspace_->take_columns(columns_, columns_.size());
  subspace_state_ = SubspaceState::kInUse;
  return true;
}

void GramSelector::scan(std::span<const Query> queries) {
  Scan full{&kernel_, spec_.d_model, &rows_, &columns_, queries, subspace_.get()};
  if (!take_subspace(full)) full.subspace = nullptr;
  const Pairs pairs = full.run(candidates_, parts_);
  products_ += pairs.multiplied;
  pairs_dropped_ += pairs.dropped;
  if (full.subspace != nullptr && spec_.basis_use == BasisUse::kWherePays && !pays(pairs)) {
    subspace_state_ = SubspaceState::kGivenUp;
    subspace_->clear();
  }
}

void GramSelector::extend(const SelectArgs& args) {
  const Indices tokens = begin_pass(args);
  if (!live_sets_.empty()) {
    const auto picks = [&](int32_t index) {
      return std::any_of(live_sets_.begin(), live_sets_.end(),
                         [&](size_t set) { return swept(set, index); });
    };
    for_blocks(tokens, picks, [&](const Indices& block) { sweep_block(block); });
    if (rule_ == SelectRule::kCascadePaper) check_against_kept(tokens);
    if (looks_ahead()) choose_owners(tokens);
  }
  for (TokenSet& set : sets_) set.number_clusters(static_cast<int64_t>(first_));
  pass_ = nullptr;
}

void GramSelector::settle_owner(Judge& judge, size_t set, int64_t row, Candidates& candidates) {
  Candidate* owner = judge.nearest(row, candidates);
  const auto t = static_cast<size_t>(rows_[row].position);
  if (owner != nullptr) sets_[set].owner[t] = static_cast<int32_t>(owner->position());
  if (spec_.want_cosines) {
    if (owner != nullptr) judge.make_exact(row, candidates.absolute, {owner, 1});
    sets_[set].cosine[t] = owner == nullptr ? -1.0f : static_cast<float>(owner->cosine);
  }
  const bool owned = owner != nullptr && (spec_.owner == OwnerKind::kPaper ||
                                          judge.reaches(row, threshold(set), candidates));
  if (!owned) sets_[set].status[t] = TokenStatus::kUncovered;
}

std::unique_ptr<Selector> make_selector(const SelectorSpec& spec) {
  return std::make_unique<GramSelector>(spec);
}

}  // namespace sluice::impl::cpu::selection

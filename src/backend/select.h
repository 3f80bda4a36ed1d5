// Choosing representative tokens: the seam's types. docs/algorithm.md, sections 1, 2 and 5.
//
// A Selector belongs to one layer of one sequence. It is extended pass by pass with the tokens
// that follow, keeps what later tokens must be compared with, and gives the same sets however the
// sequence was cut.

#pragma once

#include <cmath>
#include <memory>
#include <span>
#include <vector>

#include "backend/select_basis.h"
#include "core/tensor.h"

namespace sluice::impl {

enum class SelectRule : uint8_t {
  kIndependent,
  kGreedy,
  kCascadePaper,
  kCascadeCausal,
  kCascadeCover,
  kFixed,  // the inherited set as it is, unvalidated: a control, and what a plan may reuse
};

// Whether a rule starts from the set of the layer before.
inline bool inherits(SelectRule rule) {
  return rule != SelectRule::kIndependent && rule != SelectRule::kGreedy;
}

// Whom a token that is not a representative belongs to.
enum class OwnerKind : uint8_t {
  kEarlier,   // largest signed cosine among representatives before it
  kAnywhere,  // the same among all of them (encoders)
  kPaper,     // largest absolute cosine among all of them
};

enum class TokenStatus : uint8_t {
  kRedundant,
  kRepresentative,
  kExempt,     // a sink or an outlier: in the set, compared with nobody
  kUncovered,  // not in the set, and no owner at the threshold: kept exact by `keys` and `copy`
};

// When pairs are first looked at in a basis. Sets do not depend on it.
enum class BasisUse : uint8_t {
  kWherePays,  // as soon as that saves work, and for as long as it does
  kAlways,     // from the first token on: to count what the basis decides
};

struct SelectorSpec {
  SelectRule rule = SelectRule::kGreedy;
  OwnerKind owner = OwnerKind::kEarlier;
  std::vector<double> taus;  // distinct, in [0, 1); one set each. 0: every token is in the set
  int64_t d_model = 0;
  int64_t sinks = 0;          // the first tokens, exempt
  double outlier_ratio = 0;   // exempt above this multiple of the median norm; 0: nobody
  bool want_cosines = false;  // fill TokenSet::cosine
  std::shared_ptr<const SelectionBasis> basis = nullptr;  // of d_model dimensions, or none
  BasisUse basis_use = BasisUse::kWherePays;
};

// One set over all tokens so far; every vector is (n_tokens).
//
// Tokens that stand for themselves (all but kRedundant) are numbered by position: those numbers
// are the clusters. With OwnerKind::kPaper a token is kUncovered only where nobody could own it.
struct TokenSet {
  double tau = 0;
  std::vector<TokenStatus> status;
  std::vector<int32_t> owner;    // position; itself for kRepresentative and kExempt. An uncovered
                                 // token has its nearest representative, or itself where none is
  std::vector<int32_t> cluster;  // the owner's number; its own for kUncovered
  std::vector<float> cosine;     // exact, to the owner; 1 for one's own, -1 where there is no other
  int64_t n_clusters = 0;

  int64_t n_tokens() const { return static_cast<int64_t>(status.size()); }
  bool in_set(int64_t t) const {
    const TokenStatus s = status[static_cast<size_t>(t)];
    return s == TokenStatus::kRepresentative || s == TokenStatus::kExempt;
  }
  // Fills cluster from token `first` on, where status and owner are known.
  void number_clusters(int64_t first);
};

// One flag per token of a pass: whether it is in the set. Tokens [first, first + n_tokens).
std::vector<uint8_t> membership(const TokenSet& set, int64_t first, int64_t n_tokens);

class Selector;

// Which tokens of a pass the layer before has in its set: as flags in host memory, or as the
// selector that chose them, which a device backend reads where its sets are.
class Inherited {
 public:
  Inherited(std::span<const uint8_t> flags) : flags_(flags) {}     // NOLINT: a plain value
  Inherited(const std::vector<uint8_t>& flags) : flags_(flags) {}  // NOLINT
  Inherited(const Selector& above, size_t set) : above_(&above), set_(set) {}

  const Selector* above() const { return above_; }  // nullptr: flags
  size_t set() const { return set_; }               // of above()
  // Of the tokens [first, first + n_tokens), which are the pass.
  std::vector<uint8_t> flags(int64_t first, int64_t n_tokens) const;

 private:
  std::span<const uint8_t> flags_;
  const Selector* above_ = nullptr;
  size_t set_ = 0;
};

struct SelectArgs {
  ConstTensor rows;      // (n_tokens, d_model) f32 or compute dtype: what is compared
  ConstTensor residual;  // (n_tokens, d_model) f32: whose norms tell outliers; may be rows
  std::vector<Inherited> inherited;  // per tau; empty for kIndependent and kGreedy
  // Sums of squares of both, in any order, where the norm before handed them on: halves of its
  // NormArgs::squares, (n_tokens, 2) f32, a float64 each. Or undefined.
  ConstTensor row_squares = {}, residual_squares = {};
};

class Selector {
 public:
  virtual ~Selector() = default;
  // Decides the tokens that follow. kCascadePaper, and owners anywhere, take a sequence whole.
  virtual void extend(const SelectArgs& args) = 0;
  virtual void reset() = 0;           // forgets the sequence
  virtual int64_t bytes() const = 0;  // of rows kept for comparing later tokens

  const SelectorSpec& spec() const { return spec_; }
  // How many tokens are decided: known without waiting for a device.
  virtual int64_t n_decided() const { return sets_.empty() ? 0 : sets_[0].n_tokens(); }
  // In the order of spec().taus. A device backend brings them here when they are asked for.
  const std::vector<TokenSet>& sets() const {
    fetch();
    return sets_;
  }
  // Pairs of rows multiplied, all sets together: what this backend did, tiles and second looks
  // included; on a device, which pads every tile, without the padding and second looks.
  int64_t products() const {
    fetch();
    return products_;
  }
  // Pairs decided by their coordinates in spec().basis, and not multiplied.
  int64_t pairs_dropped() const {
    fetch();
    return pairs_dropped_;
  }

 protected:
  explicit Selector(SelectorSpec spec) : spec_(std::move(spec)) {
    SLUICE_CHECK(spec_.basis == nullptr || spec_.basis->d_model() == spec_.d_model);
  }
  // Brings sets_ and what is counted up to date, where they are elsewhere.
  virtual void fetch() const {}

  SelectorSpec spec_;
  mutable std::vector<TokenSet> sets_;
  mutable int64_t products_ = 0, pairs_dropped_ = 0;
};

class SelectionOps {
 public:
  virtual ~SelectionOps() = default;
  virtual std::unique_ptr<Selector> make_selector(const SelectorSpec& spec) = 0;
};

// 1 - tau^2: pairs of at least this cosine are redundant.
// Rounded once, whatever the compiler makes of a product and a difference.
inline double threshold_of(double tau) { return std::fma(-tau, tau, 1.0); }

}  // namespace sluice::impl

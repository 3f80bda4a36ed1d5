#include "layer/linear_gate.h"

#include <algorithm>

namespace sluice::impl {
namespace {

// Rows that are projected at once.
constexpr int64_t kTryRows = 256;
// Rows up to which a device decides by itself: each is a product of its own.
constexpr int64_t kDeviceRows = 8;
// A row that keeps more of its elements than this gains little, and is multiplied exactly.
constexpr double kMostKept = 0.75;

std::unique_ptr<RowGate> make_device_gate(Backend& backend, const GateSpec& spec) {
  DeviceGates* gates = backend.device_gates();
  return gates != nullptr ? gates->make_gate(spec) : nullptr;
}

}  // namespace

LinearCounts& LinearCounts::operator+=(const LinearCounts& other) {
  n_tokens += other.n_tokens;
  n_fast += other.n_fast;
  n_bypassed += other.n_bypassed;
  n_kept += other.n_kept;
  n_additions += other.n_additions;
  elements += other.elements;
  dense_elements += other.dense_elements;
  basis_elements += other.basis_elements;
  residuals += other.residuals;
  return *this;
}

void LinearCounts::add_rank(const LinearCounts& other) {
  elements += other.elements - other.basis_elements;
  dense_elements += other.dense_elements;
}

Tensor LinearScratch::get(Backend& backend, Use use, DType dtype, int64_t n_rows, int64_t width) {
  Buffer& buffer = buffers_[use];
  const int64_t bytes = checked_mul(checked_mul(n_rows, width), element_bytes(dtype));
  constexpr int64_t kUnit = 4;  // bytes of an f32
  if (!buffer.defined() || buffer.view().rows() * kUnit < bytes)
    buffer = backend.allocate(DType::kF32, {(bytes + kUnit - 1) / kUnit});
  return Tensor(buffer.view().bytes(), dtype, {n_rows, width}, backend.device());
}

LinearGate::LinearGate(Backend& backend, const LinearGroup& group, const GroupPlan& plan,
                       int64_t n_batch, std::shared_ptr<LinearScratch> scratch)
    : backend_(backend),
      group_(group),
      plan_(plan),
      scratch_(std::move(scratch)),
      sequences_(static_cast<size_t>(n_batch)) {
  SLUICE_CHECK(plan.kind != LinearKind::kDense);
  SLUICE_CHECK(plan.kind == LinearKind::kGsi ? group.subspace(plan.rank) != nullptr
                                             : group.columns() != nullptr);
  if (plan.kind == LinearKind::kGraded) {
    device_ = make_device_gate(backend, {.dense = &group.dense(),
                                         .epsilon = plan.epsilon,
                                         .columns = group.columns(),
                                         .most_kept = kMostKept});
  } else if (plan.adaptive == 0) {
    const Subspace& subspace = *group.subspace(plan.rank);
    device_ = make_device_gate(backend, {.dense = &group.dense(),
                                         .epsilon = plan.epsilon,
                                         .basis = subspace.basis.get(),
                                         .image = subspace.image.get(),
                                         .n_sequences = n_batch});
  }
  reset();
}

const LinearCounts& LinearGate::counts() const {
  receive();
  return counts_;
}

void LinearGate::reset() {
  counts_ = {};
  pending_.clear();
  if (device_ != nullptr) device_->forget();
  for (Sequence& sequence : sequences_) {
    sequence.bypass = {};
    sequence.on_device = false;
    if (plan_.adaptive > 0)
      sequence.adaptive = std::make_unique<AdaptiveBasis>(backend_, group_, plan_.rank,
                                                          plan_.adaptive, plan_.epsilon);
  }
}

void LinearGate::run(const LinearArgs& args, int64_t sequence) {
  const int64_t first = std::max<int64_t>(sequence, 0);
  const int64_t n_sequences = sequence < 0 ? static_cast<int64_t>(sequences_.size()) : 1;
  const int64_t n_rows = args.x.rows(), n_tokens = n_rows / n_sequences;
  SLUICE_CHECK(n_tokens * n_sequences == n_rows);
  if (n_rows == 0) return;
  if (device_ != nullptr && n_rows <= kDeviceRows) return run_on_device(args, first, n_sequences);
  receive();
  count_tokens(n_rows);
  if (plan_.kind == LinearKind::kGraded) return run_graded(args);
  if (plan_.adaptive == 0) return run_gsi(args, first, n_sequences);
  for (int64_t i = 0; i < n_sequences; ++i) {
    LinearArgs part = args;
    part.x = args.x.rows_from(i * n_tokens, n_tokens);
    part.out = args.out.rows_from(i * n_tokens, n_tokens);
    run_adaptive(part, sequences_[static_cast<size_t>(first + i)]);
  }
}

void LinearGate::run_gsi(const LinearArgs& args, int64_t first, int64_t n_sequences) {
  const Subspace& subspace = *group_.subspace(plan_.rank);
  const InForce in_force{subspace.basis.get(), subspace.image.get()};
  const int64_t n_rows = args.x.rows(), n_tokens = n_rows / n_sequences;
  for (int64_t i = 0; i < n_sequences; ++i)
    sequences_[static_cast<size_t>(first + i)].on_device = false;
  const Tensor coordinates = scratch_->get(backend_, LinearScratch::kCoordinates,
                                           backend_.compute_dtype(), n_rows, plan_.rank);
  scratch_->paths.resize(static_cast<size_t>(n_rows));
  for (int64_t i = 0; i < n_sequences; ++i)
    decide(sequences_[static_cast<size_t>(first + i)], in_force,
           args.x.rows_from(i * n_tokens, n_tokens), coordinates.rows_from(i * n_tokens, n_tokens),
           i * n_tokens);
  multiply(args, in_force, coordinates);
}

bool LinearGate::can_record() const {
  return device_ != nullptr && std::ssize(sequences_) <= kDeviceRows;
}

void LinearGate::expect() {
  SLUICE_CHECK(can_record());
  prepare_device(0, std::ssize(sequences_), 1);
  device_->expect(std::ssize(sequences_));
}

void LinearGate::prepare_device(int64_t first, int64_t n_sequences, int64_t n_tokens) {
  if (std::ssize(pending_) + n_sequences * n_tokens > RowGate::kRoom) receive();
  count_tokens(n_sequences * n_tokens);
  for (int64_t index = first; index < first + n_sequences; ++index) {
    Sequence& sequence = sequences_[static_cast<size_t>(index)];
    if (!sequence.on_device) device_->set(index, sequence.bypass);
    sequence.on_device = true;
    pending_.insert(pending_.end(), static_cast<size_t>(n_tokens), index);
  }
}

void LinearGate::run_on_device(const LinearArgs& args, int64_t first, int64_t n_sequences) {
  const int64_t n_tokens = args.x.rows() / n_sequences;
  if (!backend_.recording()) prepare_device(first, n_sequences, n_tokens);
  for (int64_t i = 0; i < n_sequences; ++i) {
    LinearArgs part = args;
    part.x = args.x.rows_from(i * n_tokens, n_tokens);
    part.out = args.out.rows_from(i * n_tokens, n_tokens);
    device_->run(part, first + i);
  }
}

void LinearGate::receive() const {
  if (pending_.empty()) return;
  const std::vector<RowDecision> decisions = device_->take();
  SLUICE_CHECK(decisions.size() == pending_.size());
  for (size_t i = 0; i < decisions.size(); ++i) {
    if (plan_.kind == LinearKind::kGraded) {
      count_kept(decisions[i].kept);
      continue;
    }
    Bypass& bypass = sequences_[static_cast<size_t>(pending_[i])].bypass;
    if (decisions[i].residual < 0) {
      bypass.skip(1);
      count(TokenPath::kBypassed, plan_.rank);
      continue;
    }
    const bool fast = decisions[i].kept != 0;
    bypass.decide(fast);
    counts_.residuals.add(decisions[i].residual);
    count(fast ? TokenPath::kFast : TokenPath::kSlow, plan_.rank);
  }
  pending_.clear();
}

void LinearGate::run_adaptive(const LinearArgs& args, Sequence& sequence) {
  AdaptiveBasis& adaptive = *sequence.adaptive;
  const int64_t n_rows = args.x.rows();
  for (int64_t begin = 0; begin < n_rows;) {
    const int64_t n = std::min(n_rows - begin, adaptive.to_boundary());
    LinearArgs part = args;
    part.x = args.x.rows_from(begin, n);
    part.out = args.out.rows_from(begin, n);
    const InForce in_force{&adaptive.basis(), &adaptive.image()};
    const Tensor coordinates = scratch_->get(backend_, LinearScratch::kCoordinates,
                                             backend_.compute_dtype(), n, in_force.basis->rank());
    scratch_->paths.resize(static_cast<size_t>(n));
    decide(sequence, in_force, part.x, coordinates, 0);
    adaptive.take(part.x, coordinates, scratch_->paths);
    multiply(part, in_force, coordinates);
    begin += n;
    if (!adaptive.at_boundary()) continue;
    const int64_t n_before = adaptive.n_extra();
    if (const int64_t n_joined = adaptive.grow(); n_joined > 0) {
      counts_.n_additions += n_joined;
      counts_.elements += static_cast<double>(group_.elements());
    }
    // A larger basis deserves another try. One that only swaps directions does not: on rows without
    // a subspace it would swap for ever.
    if (adaptive.n_extra() > n_before) sequence.bypass = {};
  }
}

void LinearGate::count_tokens(int64_t n) {
  counts_.n_tokens += n;
  counts_.dense_elements += static_cast<double>(n) * static_cast<double>(group_.elements());
}

void LinearGate::count(TokenPath path, int64_t rank) const {
  const auto k = static_cast<double>(rank), d = static_cast<double>(group_.dense().n_in());
  const auto n_out = static_cast<double>(group_.dense().n_out());
  const double projection = path == TokenPath::kBypassed ? 0 : k * d;
  counts_.basis_elements += projection;
  counts_.elements += projection;
  counts_.elements += path == TokenPath::kFast ? k * n_out : d * n_out;
  counts_.n_fast += path == TokenPath::kFast ? 1 : 0;
  counts_.n_bypassed += path == TokenPath::kBypassed ? 1 : 0;
}

void LinearGate::count_kept(int32_t kept) const {
  counts_.n_kept += kept;
  counts_.elements += static_cast<double>(kept) * static_cast<double>(group_.dense().n_out());
}

void LinearGate::decide(Sequence& sequence, const InForce& in_force, const ConstTensor& x,
                        const Tensor& coordinates, int64_t begin) {
  Bypass& bypass = sequence.bypass;
  const int64_t n_rows = x.rows(), rank = in_force.basis->rank();
  TokenPath* path = scratch_->paths.data() + begin;
  std::vector<float>& residuals = scratch_->residuals;
  for (int64_t row = 0; row < n_rows;) {
    if (const int64_t n = std::min<int64_t>(bypass.to_skip, n_rows - row); n > 0) {
      std::fill_n(path + row, n, TokenPath::kBypassed);
      for (int64_t i = 0; i < n; ++i) count(TokenPath::kBypassed, rank);
      bypass.skip(static_cast<int32_t>(n));
      row += n;
      continue;
    }
    const int64_t n = std::min(bypass.to_try(kTryRows), n_rows - row);
    residuals.resize(static_cast<size_t>(n));
    backend_.project({.basis = in_force.basis,
                      .x = x.rows_from(row, n),
                      .coordinates = coordinates.rows_from(row, n),
                      .residuals = residuals});
    // Where the gate closes, the others pass by: as if they had not been projected.
    for (const float residual : residuals) {
      if (bypass.to_skip > 0) break;
      const bool fast = residual <= plan_.epsilon;
      counts_.residuals.add(residual);
      bypass.decide(fast);
      path[row] = fast ? TokenPath::kFast : TokenPath::kSlow;
      count(path[row++], rank);
    }
  }
}

// Fast rows by the image, slow ones by the dense weights, each in one product.
void LinearGate::multiply(const LinearArgs& args, const InForce& in_force,
                          const ConstTensor& coordinates) {
  std::vector<int32_t>&fast = scratch_->fast_rows, &slow = scratch_->slow_rows;
  fast.clear();
  slow.clear();
  const std::vector<TokenPath>& paths = scratch_->paths;
  for (size_t i = 0; i < paths.size(); ++i)
    (paths[i] == TokenPath::kFast ? fast : slow).push_back(static_cast<int32_t>(i));
  LinearArgs by_image = args, by_dense = args;
  by_image.weights = in_force.image;
  by_image.x = coordinates;
  by_dense.weights = &group_.dense();
  if (slow.empty()) return backend_.linear(by_image);
  if (fast.empty()) return backend_.linear(by_dense);

  const auto n_fast = static_cast<int64_t>(fast.size()), n_slow = static_cast<int64_t>(slow.size());
  const auto scratch = [&](LinearScratch::Use use, DType dtype, int64_t n, int64_t width) {
    return scratch_->get(backend_, use, dtype, n, width);
  };
  const DType dtype = args.x.dtype();
  const Tensor fast_x = scratch(LinearScratch::kFast, dtype, n_fast, coordinates.row_elements());
  const Tensor slow_x = scratch(LinearScratch::kSlow, dtype, n_slow, args.x.row_elements());
  const Tensor products =
      scratch(LinearScratch::kProducts, args.out.dtype(), n_fast + n_slow, args.out.row_elements());
  backend_.gather_rows(coordinates, fast, fast_x);
  backend_.gather_rows(args.x, slow, slow_x);
  by_image.x = fast_x;
  by_dense.x = slow_x;
  by_image.accumulate = by_dense.accumulate = false;
  by_image.out = products.rows_from(0, n_fast);
  by_dense.out = products.rows_from(n_fast, n_slow);
  backend_.linear(by_image);
  backend_.linear(by_dense);

  std::vector<int32_t>& places = scratch_->places;  // of each row's product
  places.resize(paths.size());
  for (size_t i = 0; i < fast.size(); ++i)
    places[static_cast<size_t>(fast[i])] = static_cast<int32_t>(i);
  for (size_t i = 0; i < slow.size(); ++i)
    places[static_cast<size_t>(slow[i])] = static_cast<int32_t>(n_fast) + static_cast<int32_t>(i);
  if (args.accumulate)
    backend_.add_rows(products, places, args.out);
  else
    backend_.gather_rows(products, places, args.out);
}

// Counted are the elements kept. Columns are gathered only where the backend is faster so: a
// pass over the whole matrix serves many rows at once.
void LinearGate::run_graded(const LinearArgs& args) {
  const int64_t n_rows = args.x.rows(), d = args.x.row_elements();
  const Tensor graded = scratch_->get(backend_, LinearScratch::kSlow, args.x.dtype(), n_rows, d);
  std::vector<int32_t>& kept = scratch_->kept;
  kept.resize(static_cast<size_t>(n_rows));
  backend_.grade({.x = args.x, .epsilon = plan_.epsilon, .graded = graded, .kept = kept});
  const double most = kMostKept * static_cast<double>(d);
  double read = 0;
  for (size_t i = 0; i < kept.size(); ++i) {
    if (kept[i] > most) {
      const auto row = static_cast<int32_t>(i);
      backend_.gather_rows(args.x, {&row, 1}, graded.rows_from(row, 1));
      kept[i] = static_cast<int32_t>(d);
    }
    count_kept(kept[i]);
    read += kept[i];
  }
  if (read <= group_.columns()->worth_share() * static_cast<double>(d))
    return backend_.linear_columns({.weights = group_.columns(),
                                    .x = graded,
                                    .activation = args.activation,
                                    .accumulate = args.accumulate,
                                    .out = args.out});
  LinearArgs dense = args;
  dense.weights = &group_.dense();
  dense.x = graded;
  backend_.linear(dense);
}

}  // namespace sluice::impl

// Sets that go from the last selected layer of one process to the first of the next.

#include "layer/layer_attention.h"
#include "select/auto_tau.h"
#include "select/received.h"

namespace sluice::impl {
namespace {

std::unique_ptr<ReceivedSelector> received(std::vector<double> taus) {
  SelectorSpec spec;
  spec.taus = std::move(taus);
  return std::make_unique<ReceivedSelector>(std::move(spec));
}

}  // namespace

LayerAttention::LayerAttention(Backend& backend, const LayerPlan& plan,
                               const std::vector<double>& taus, int64_t n_batch)
    : backend_(backend), plan_(plan), d_model_(0), capacity_(0), causal_(true), above_(nullptr) {
  SLUICE_CHECK(plan.selects());
  sequences_.resize(static_cast<size_t>(n_batch));
  for (Sequence& sequence : sequences_) sequence.selector = received(taus);
}

void LayerAttention::hand_down(int64_t batch, Packer& out) {
  Sequence& sequence = sequences_[static_cast<size_t>(batch)];
  decide(batch);
  bool known = has_tau(batch);
  out(known);
  if (!known) return;
  // Layers with tau auto have a selector of their own (check_plan).
  if (plan_.tau_auto && sequence.n_handed == 0) {
    double tau = sequence.selector->spec().taus.front();
    out(tau);
    pack_sets(sequence.tried->sets(), 0, out);
  }
  pack_sets(sets(batch), sequence.n_handed, out);
  sequence.n_handed = chooser(batch).n_decided();
}

void LayerAttention::take_over(int64_t batch, Unpacker& in) {
  Sequence& sequence = sequences_[static_cast<size_t>(batch)];
  bool known = false;
  in(known);
  if (!known) return;
  if (!has_tau(batch)) {
    double tau = 0;
    in(tau);
    sequence.selector = received({tau});
    auto tried = received(auto_taus());
    tried->append(in);
    sequence.tried = std::move(tried);
  }
  auto& selector = dynamic_cast<ReceivedSelector&>(*sequence.selector);
  selector.append(in);
}

}  // namespace sluice::impl

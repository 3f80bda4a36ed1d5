// Models that are divided over ranks by width.

#pragma once

#include "model/tensor_share.h"
#include "unit/model/divided_models.h"

namespace sluice::impl::test {

// How a model is loaded, whole or divided.
struct Loading {
  int64_t context = 0;
  DType dtype = DType::kF32;
  std::optional<DType> weights = DType::kF32;
  bool expanded = false;
  std::unique_ptr<Backend> (*make_backend)(DType) = make_cpu_backend;
};

inline Model loaded(const CheckpointPtr& checkpoint, const Loading& how,
                    Communicator* ranks = nullptr) {
  RankPart part;
  if (ranks != nullptr)
    part.share = std::make_shared<TensorShare>(
        *ranks,
        divide_tensors(checkpoint->description, checkpoint->weights(), how.weights, ranks->size()));
  return Model(checkpoint, how.make_backend(how.dtype),
               {.context = how.context,
                .progress = {},
                .weights = how.weights,
                .expand_blocks = how.expanded,
                .part = std::move(part)});
}

inline AttentionPlan copy_plan(const Model& model) {
  UniformAttention choice;
  choice.mode = AttentionMode::kCopy;
  choice.tau = 0.6;
  return uniform_plan(choice, model.plan_shape());
}

}  // namespace sluice::impl::test

#include "backend/cuda/runtime/tensor_map.h"

namespace sluice::impl::cuda {
namespace {

// The driver's function, found at run time so that the program starts without a driver.
using Encode = decltype(&cuTensorMapEncodeTiled);
Encode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                         cudaEnableDefault, &found),
        "cuTensorMapEncodeTiled");
  SLUICE_CHECK(found == cudaDriverEntryPointSuccess && function != nullptr);
  return reinterpret_cast<Encode>(function);
}

}  // namespace

CUtensorMap make_map(const MapShape& shape) {
  static const Encode encode = find_encode();
  CUtensorMap map{};
  cuuint64_t sizes[3], strides[2];
  for (int i = 0; i < 3; ++i) sizes[i] = static_cast<cuuint64_t>(shape.sizes[i]);
  for (int i = 0; i < 2; ++i) strides[i] = static_cast<cuuint64_t>(shape.strides[i]);
  const cuuint32_t box[3] = {64, static_cast<cuuint32_t>(shape.boxes[0]),
                             static_cast<cuuint32_t>(shape.boxes[1])};
  const cuuint32_t steps[3] = {1, 1, 1};
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(shape.data), sizes,
             strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw Error("CUDA: TMA refuses a tensor (error " + std::to_string(result) + ")");
  return map;
}

}  // namespace sluice::impl::cuda

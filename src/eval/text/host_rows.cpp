#include "eval/text/host_rows.h"

namespace sluice::impl {
namespace {

template <typename T>
void widen(const ConstTensor& rows, float* out) {
  const int64_t n = rows.row_elements();
  for (int64_t i = 0; i < rows.rows(); ++i) {
    const T* row = rows.row<T>(i);
    for (int64_t j = 0; j < n; ++j) *out++ = to_float(row[j]);
  }
}

}  // namespace

std::vector<float> host_rows(Backend& backend, const ConstTensor& device) {
  ConstTensor rows = device;
  Buffer copy;
  if (device.device() != Device::kCpu) {
    copy = host_buffer(device.dtype(), device.shape());
    backend.download(device, copy.view());
    rows = copy.view();
  }
  std::vector<float> out(static_cast<size_t>(rows.rows() * rows.row_elements()));
  if (rows.dtype() == DType::kBF16)
    widen<BFloat16>(rows, out.data());
  else
    widen<float>(rows, out.data());
  return out;
}

}  // namespace sluice::impl

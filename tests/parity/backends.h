// What the parity tests share: the backends under test, seeded numbers, and tensors that live on a
// backend, may be strided, and know when someone wrote outside of them.
//
// The reference always works on f32 tensors that hold the inputs as the tested dtype rounds them,
// so that its results are exact to f32 and only the tested backend's rounding is in the bounds.

#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "core/threads.h"

namespace sluice::impl::test {

struct Setup {
  const char* name;
  DType dtype;
  std::unique_ptr<Backend> (*make)(DType);
  const char* missing = nullptr;  // what this machine lacks to run it

  std::unique_ptr<Backend> backend() const { return missing != nullptr ? nullptr : make(dtype); }
  std::unique_ptr<Backend> reference() const { return make_reference_backend(dtype); }
};

inline void PrintTo(const Setup& setup, std::ostream* out) {
  *out << setup.name << " " << dtype_name(setup.dtype);
}

// Instantiated for every backend and dtype in backends.cpp, on a device in cuda_backends.cpp.
class EveryBackend : public testing::TestWithParam<Setup> {
 protected:
  void SetUp() override {
    if (GetParam().missing != nullptr) GTEST_SKIP() << GetParam().missing;
  }
  ~EveryBackend() override { set_threads(0); }
  DType dtype() const { return GetParam().dtype; }
  const std::unique_ptr<Backend> backend = GetParam().backend();
  const std::unique_ptr<Backend> reference = GetParam().reference();
};

// The reference among them too: for what a definition says, not how two backends compare.
class EveryImplementation : public EveryBackend {};

inline float rounded(DType dtype, float x) {
  return dtype == DType::kBF16 ? to_float(to_bfloat16(x)) : x;
}

// n numbers in [-size, size), as dtype holds them.
inline std::vector<float> random_values(int64_t n, uint32_t seed, DType dtype = DType::kF32,
                                        float size = 1.0f) {
  std::mt19937 random(seed);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& x : values)
    x = rounded(dtype, size * (static_cast<float>(random() >> 8) * 0x1p-23f - 1.0f));
  return values;
}

inline std::vector<float> absolute(std::vector<float> values) {
  for (float& x : values) x = std::abs(x);
  return values;
}

class DeviceTensor {
 public:
  // `pad` elements lie between the rows; they are NaN, so that reading one shows in the result.
  DeviceTensor(Backend& backend, DType dtype, Shape shape, const std::vector<float>& values,
               int64_t pad = 0)
      : backend_(backend) {
    const Tensor plain(nullptr, dtype, shape);
    stride_ = plain.row_elements() + pad;
    buffer_ = backend.allocate(dtype, {plain.rows(), stride_});
    const Buffer host = host_buffer(dtype, {plain.rows(), stride_});
    for (int64_t row = 0; row < plain.rows(); ++row)
      for (int64_t i = 0; i < stride_; ++i)
        put(host.view(), row, i,
            i < plain.row_elements() ? values[static_cast<size_t>(row * plain.row_elements() + i)]
                                     : NAN);
    backend.upload(host.view(), buffer_.view());
    view_ = Tensor(buffer_.view().bytes(), dtype, shape, buffer_.view().device())
                .with_row_stride(stride_);
  }

  const Tensor& view() const { return view_; }

  // What it holds now. Fails the test when a number between the rows has changed.
  std::vector<float> values() const {
    const Buffer host = host_buffer(view_.dtype(), {view_.rows(), stride_});
    backend_.download(buffer_.view(), host.view());
    std::vector<float> out;
    for (int64_t row = 0; row < view_.rows(); ++row)
      for (int64_t i = 0; i < stride_; ++i) {
        const float x = get(host.view(), row, i);
        if (i < view_.row_elements())
          out.push_back(x);
        else
          EXPECT_TRUE(std::isnan(x)) << "written outside of row " << row << ", column " << i;
      }
    return out;
  }

 private:
  static void put(const Tensor& x, int64_t row, int64_t column, float value) {
    if (x.dtype() == DType::kBF16)
      x.row<BFloat16>(row)[column] = to_bfloat16(value);
    else
      x.row<float>(row)[column] = value;
  }
  static float get(const Tensor& x, int64_t row, int64_t column) {
    return x.dtype() == DType::kBF16 ? to_float(x.row<BFloat16>(row)[column])
                                     : x.row<float>(row)[column];
  }

  Backend& backend_;
  Buffer buffer_;
  Tensor view_;
  int64_t stride_;
};

// A tensor for results, NaN until someone writes.
inline DeviceTensor unwritten(Backend& backend, DType dtype, Shape shape, int64_t pad = 0) {
  return {backend, dtype, shape, std::vector<float>(static_cast<size_t>(shape.numel()), NAN), pad};
}

inline MatrixSource matrix_source(int64_t n_out, int64_t n_in, std::vector<float> weights,
                                  std::vector<float> bias = {}) {
  MatrixSource source;
  source.n_out = n_out;
  source.n_in = n_in;
  source.read_rows = [n_in, weights = std::move(weights)](int64_t begin, int64_t end, float* out) {
    std::memcpy(out, weights.data() + begin * n_in,
                static_cast<size_t>((end - begin) * n_in) * sizeof(float));
  };
  source.bias = std::move(bias);
  return source;
}

}  // namespace sluice::impl::test

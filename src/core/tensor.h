// Tensors: a typed, shaped view of memory on a device, and the memory itself.
//
// A view does not own its memory. Rows (axis 0) may be further apart than their length, so that
// a group of columns of a wider matrix is a view too; all other axes are contiguous.

#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "core/dtype.h"
#include "core/error.h"
#include "core/shape.h"

namespace sluice::impl {

enum class Device : uint8_t { kCpu, kCuda };

template <bool kConst>
class BasicTensor {
 public:
  using Byte = std::conditional_t<kConst, const std::byte, std::byte>;
  template <typename T>
  using Element = std::conditional_t<kConst, const T, T>;

  BasicTensor() = default;
  BasicTensor(std::conditional_t<kConst, const void*, void*> data, DType dtype, Shape shape,
              Device device = Device::kCpu)
      : data_(static_cast<Byte*>(data)), dtype_(dtype), device_(device), shape_(shape) {
    row_stride_ = row_elements();
  }
  // NOLINTNEXTLINE(google-explicit-constructor): a writable view is also a readable one.
  operator BasicTensor<true>() const {
    return BasicTensor<true>(data_, dtype_, shape_, device_).with_row_stride(row_stride_);
  }

  bool defined() const { return data_ != nullptr; }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  const Shape& shape() const { return shape_; }
  int64_t rows() const { return shape_.rank() == 0 ? 1 : shape_[0]; }
  int64_t row_elements() const {
    int64_t count = 1;
    for (int axis = 1; axis < shape_.rank(); ++axis) count *= shape_[axis];
    return count;
  }
  int64_t row_stride() const { return row_stride_; }  // in elements
  bool contiguous() const { return row_stride_ == row_elements() || rows() <= 1; }

  Byte* bytes() const { return data_; }
  template <typename T>
  Element<T>* data() const {
    SLUICE_CHECK(dtype_of<T>() == dtype_);
    return reinterpret_cast<Element<T>*>(data_);
  }
  template <typename T>
  Element<T>* row(int64_t index) const {
    return data<T>() + index * row_stride_;
  }

  BasicTensor with_row_stride(int64_t elements) const {
    BasicTensor view = *this;
    view.row_stride_ = elements;
    return view;
  }
  // Rows [begin, begin + count).
  BasicTensor rows_from(int64_t begin, int64_t count) const {
    SLUICE_CHECK(shape_.rank() >= 1 && begin >= 0 && count >= 0 && begin + count <= rows());
    BasicTensor view = *this;
    view.data_ += begin * row_stride_ * element_bytes(dtype_);
    view.shape_ = replaced_extent(0, count);
    return view;
  }
  // Columns [begin, begin + count) of a matrix.
  BasicTensor columns_from(int64_t begin, int64_t count) const {
    SLUICE_CHECK(shape_.rank() == 2 && begin >= 0 && count >= 0 && begin + count <= shape_[1]);
    BasicTensor view = *this;
    view.data_ += begin * element_bytes(dtype_);
    view.shape_ = replaced_extent(1, count);
    return view;
  }
  BasicTensor reshaped(Shape shape) const {
    SLUICE_CHECK(contiguous() && shape.numel() == shape_.numel());
    return BasicTensor(data_, dtype_, shape, device_);
  }

 private:
  Shape replaced_extent(int axis, int64_t extent) const {
    std::array<int64_t, Shape::kMaxRank> extents{};
    for (int i = 0; i < shape_.rank(); ++i)
      extents[static_cast<size_t>(i)] = i == axis ? extent : shape_[i];
    return Shape(std::span<const int64_t>(extents.data(), static_cast<size_t>(shape_.rank())));
  }

  Byte* data_ = nullptr;
  DType dtype_ = DType::kF32;
  Device device_ = Device::kCpu;
  Shape shape_;
  int64_t row_stride_ = 0;
};

using Tensor = BasicTensor<false>;
using ConstTensor = BasicTensor<true>;

// Memory that frees itself; made by a backend, which knows the device.
class Buffer {
 public:
  using Deleter = std::function<void(void*)>;
  Buffer() = default;
  Buffer(void* data, DType dtype, Shape shape, Device device, Deleter deleter)
      : memory_(data, std::move(deleter)), view_(data, dtype, shape, device) {}

  const Tensor& view() const { return view_; }
  bool defined() const { return view_.defined(); }

 private:
  std::unique_ptr<void, Deleter> memory_{nullptr, [](void*) {}};
  Tensor view_;
};

// Copies rows in host memory; same dtype and shape, strides may differ.
void copy_rows(const ConstTensor& from, const Tensor& to);

// Host memory, 64-byte aligned, zeroed. Throws Error when the machine refuses.
Buffer host_buffer(DType dtype, Shape shape);

}  // namespace sluice::impl

// Tensors: a shape over typed memory. A view does not own its bytes and is passed by value; a
// Tensor shares ownership of a Buffer. The innermost dimension is always contiguous; outer
// dimensions may have any stride, so that a slice of columns or a padded matrix is a view too.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <type_traits>

#include "base/buffer.h"
#include "base/device.h"
#include "base/dtype.h"

namespace kinora {

// Up to five dimensions (video: frames, tiles, height, width, channels).
class Shape {
 public:
  static constexpr int max_rank = 5;

  Shape() = default;
  Shape(std::initializer_list<int64_t> sizes);

  int rank() const { return rank_; }
  int64_t operator[](int axis) const { return sizes_[static_cast<size_t>(axis)]; }
  int64_t elements() const;  // throws when the product overflows
  bool operator==(const Shape& other) const;
  void append(int64_t size);  // adds an innermost dimension

 private:
  std::array<int64_t, max_rank> sizes_{};
  int rank_ = 0;
};

std::string to_string(const Shape& shape);  // "[2, 3, 4]"

// `Byte` is std::byte for writable views and const std::byte for read-only ones.
template <typename Byte>
class BasicView {
 public:
  using Strides = std::array<int64_t, Shape::max_rank>;  // in elements

  BasicView() = default;
  BasicView(Byte* data, DType dtype, const Shape& shape, Device device = Device::cpu());
  BasicView(Byte* data, DType dtype, const Shape& shape, const Strides& strides, Device device)
      : data_(data), dtype_(dtype), shape_(shape), strides_(strides), device_(device) {}

  // A typed CPU array as a view.
  template <typename T>
  static BasicView of(T* data, const Shape& shape) {
    return BasicView(reinterpret_cast<Byte*>(data), dtype_of<std::remove_const_t<T>>::value, shape);
  }

  operator BasicView<const std::byte>() const {
    return BasicView<const std::byte>(data_, dtype_, shape_, strides_, device_);
  }

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int rank() const { return shape_.rank(); }
  int64_t size(int axis) const { return shape_[axis]; }
  int64_t stride(int axis) const { return strides_[static_cast<size_t>(axis)]; }
  int64_t elements() const { return shape_.elements(); }
  int64_t bytes() const { return elements() * dtype_size(dtype_); }
  Device device() const { return device_; }
  bool empty() const { return data_ == nullptr || elements() == 0; }
  bool contiguous() const;

  Byte* raw() const { return data_; }

  // Typed access; throws an internal error when T is not the tensor's type.
  template <typename T>
  auto data() const {
    check_type(dtype_of<std::remove_const_t<T>>::value);
    using Element = std::conditional_t<std::is_const_v<Byte>, const T, T>;
    return reinterpret_cast<Element*>(data_);
  }
  // Start of row `index` of the outermost dimension.
  template <typename T>
  auto row(int64_t index) const {
    return data<T>() + index * strides_[0];
  }

  // Rows [begin, begin + count) of the outermost dimension.
  BasicView rows(int64_t begin, int64_t count) const;
  // One row: the outermost dimension dropped.
  BasicView operator[](int64_t index) const;
  // Columns [begin, begin + count) of the innermost dimension.
  BasicView columns(int64_t begin, int64_t count) const;
  // Another shape over the same elements; the view must be contiguous.
  BasicView reshaped(const Shape& shape) const;

 private:
  void check_type(DType wanted) const;

  Byte* data_ = nullptr;
  DType dtype_ = DType::f32;
  Shape shape_;
  Strides strides_{};
  Device device_;
};

using TensorView = BasicView<std::byte>;
using ConstTensorView = BasicView<const std::byte>;

// A contiguous tensor that shares ownership of its memory. Copying shares; `clone` copies.
class Tensor {
 public:
  Tensor() = default;
  // Uninitialised.
  Tensor(DType dtype, const Shape& shape, Device device = Device::cpu());
  // Over existing memory, for example part of a mapped file.
  Tensor(std::shared_ptr<Buffer> buffer, size_t offset_bytes, DType dtype, const Shape& shape);

  static Tensor zeros(DType dtype, const Shape& shape, Device device = Device::cpu());

  TensorView view() { return view_; }
  ConstTensorView view() const { return view_; }
  operator TensorView() { return view_; }
  operator ConstTensorView() const { return view_; }

  DType dtype() const { return view_.dtype(); }
  const Shape& shape() const { return view_.shape(); }
  int rank() const { return view_.rank(); }
  int64_t size(int axis) const { return view_.size(axis); }
  int64_t elements() const { return view_.elements(); }
  int64_t bytes() const { return view_.bytes(); }
  Device device() const { return view_.device(); }
  bool defined() const { return buffer_ != nullptr; }

  template <typename T>
  T* data() {
    return view_.data<T>();
  }
  template <typename T>
  const T* data() const {
    return ConstTensorView(view_).data<T>();
  }

  Tensor clone() const;
  Tensor to(Device device) const;  // shares when already there
  Tensor reshaped(const Shape& shape) const;

 private:
  std::shared_ptr<Buffer> buffer_;
  TensorView view_;
};

}  // namespace kinora

#include "base/tensor.h"

#include <cstring>

#include "base/error.h"

namespace kinora {

Shape::Shape(std::initializer_list<int64_t> sizes) {
  for (const int64_t size : sizes) append(size);
}

void Shape::append(int64_t size) {
  if (rank_ == max_rank) throw Error(ErrorKind::internal, "a tensor has at most 5 dimensions");
  if (size < 0) throw Error(ErrorKind::internal, "a tensor dimension is negative");
  sizes_[static_cast<size_t>(rank_++)] = size;
}

int64_t Shape::elements() const {
  int64_t product = 1;
  for (int axis = 0; axis < rank_; ++axis) {
    if (__builtin_mul_overflow(product, sizes_[static_cast<size_t>(axis)], &product)) {
      throw Error(ErrorKind::resource, "a tensor of shape " + to_string(*this) + " is too large");
    }
  }
  return product;
}

bool Shape::operator==(const Shape& other) const {
  if (rank_ != other.rank_) return false;
  for (int axis = 0; axis < rank_; ++axis) {
    if ((*this)[axis] != other[axis]) return false;
  }
  return true;
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (axis > 0) text += ", ";
    text += std::to_string(shape[axis]);
  }
  return text + "]";
}

template <typename Byte>
BasicView<Byte>::BasicView(Byte* data, DType dtype, const Shape& shape, Device device)
    : data_(data), dtype_(dtype), shape_(shape), device_(device) {
  int64_t stride = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    strides_[static_cast<size_t>(axis)] = stride;
    stride *= shape[axis];
  }
}

template <typename Byte>
bool BasicView<Byte>::contiguous() const {
  int64_t expected = 1;
  for (int axis = rank() - 1; axis >= 0; --axis) {
    if (shape_[axis] != 1 && stride(axis) != expected) return false;
    expected *= shape_[axis];
  }
  return true;
}

template <typename Byte>
void BasicView<Byte>::check_type(DType wanted) const {
  if (dtype_ != wanted) {
    throw Error(ErrorKind::internal, "a tensor of type " + std::string(dtype_name(dtype_)) +
                                         " was read as " + std::string(dtype_name(wanted)));
  }
}

template <typename Byte>
BasicView<Byte> BasicView<Byte>::rows(int64_t begin, int64_t count) const {
  if (rank() == 0 || begin < 0 || count < 0 || begin + count > size(0)) {
    throw Error(ErrorKind::internal, "rows " + std::to_string(begin) + " to " +
                                         std::to_string(begin + count) +
                                         " are outside a tensor of shape " + to_string(shape_));
  }
  Shape shape{count};
  for (int axis = 1; axis < rank(); ++axis) shape.append(shape_[axis]);
  return BasicView(data_ + begin * strides_[0] * dtype_size(dtype_), dtype_, shape, strides_,
                   device_);
}

template <typename Byte>
BasicView<Byte> BasicView<Byte>::operator[](int64_t index) const {
  const BasicView one = rows(index, 1);
  Shape shape;
  Strides strides{};
  for (int axis = 1; axis < rank(); ++axis) {
    shape.append(shape_[axis]);
    strides[static_cast<size_t>(axis - 1)] = stride(axis);
  }
  return BasicView(one.data_, dtype_, shape, strides, device_);
}

template <typename Byte>
BasicView<Byte> BasicView<Byte>::columns(int64_t begin, int64_t count) const {
  const int last = rank() - 1;
  if (last < 0 || begin < 0 || count < 0 || begin + count > size(last)) {
    throw Error(ErrorKind::internal, "columns " + std::to_string(begin) + " to " +
                                         std::to_string(begin + count) +
                                         " are outside a tensor of shape " + to_string(shape_));
  }
  Shape shape;
  for (int axis = 0; axis < last; ++axis) shape.append(shape_[axis]);
  shape.append(count);
  return BasicView(data_ + begin * dtype_size(dtype_), dtype_, shape, strides_, device_);
}

template <typename Byte>
BasicView<Byte> BasicView<Byte>::reshaped(const Shape& shape) const {
  if (!contiguous() || shape.elements() != elements()) {
    throw Error(ErrorKind::internal, "a tensor of shape " + to_string(shape_) +
                                         " cannot be seen as " + to_string(shape));
  }
  return BasicView(data_, dtype_, shape, device_);
}

template class BasicView<std::byte>;
template class BasicView<const std::byte>;

Tensor::Tensor(DType dtype, const Shape& shape, Device device)
    : buffer_(Buffer::allocate(device, static_cast<size_t>(shape.elements() * dtype_size(dtype)))),
      view_(buffer_->data(), dtype, shape, device) {}

Tensor::Tensor(std::shared_ptr<Buffer> buffer, size_t offset_bytes, DType dtype, const Shape& shape)
    : buffer_(std::move(buffer)),
      view_(buffer_->data() + offset_bytes, dtype, shape, buffer_->device()) {
  const auto needed = static_cast<size_t>(shape.elements() * dtype_size(dtype));
  if (offset_bytes > buffer_->size() || needed > buffer_->size() - offset_bytes) {
    throw Error(ErrorKind::internal, "a tensor reaches past the end of its buffer");
  }
}

Tensor Tensor::zeros(DType dtype, const Shape& shape, Device device) {
  Tensor host(dtype, shape);
  std::memset(host.view_.raw(), 0, static_cast<size_t>(host.bytes()));
  return host.to(device);
}

Tensor Tensor::clone() const {
  Tensor copy(dtype(), shape(), device());
  copy_bytes(copy.view_.raw(), device(), view_.raw(), device(), static_cast<size_t>(bytes()));
  return copy;
}

Tensor Tensor::to(Device target) const {
  if (target == device()) return *this;
  Tensor moved(dtype(), shape(), target);
  copy_bytes(moved.view_.raw(), target, view_.raw(), device(), static_cast<size_t>(bytes()));
  return moved;
}

Tensor Tensor::reshaped(const Shape& shape) const {
  Tensor other = *this;
  other.view_ = view_.reshaped(shape);
  return other;
}

}  // namespace kinora

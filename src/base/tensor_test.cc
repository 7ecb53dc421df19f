#include "base/tensor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "base/error.h"

namespace kinora {
namespace {

TEST(Shape, CountsElementsAndRefusesOverflow) {
  EXPECT_EQ((Shape{2, 3, 4}).elements(), 24);
  EXPECT_EQ(Shape{}.elements(), 1);
  EXPECT_EQ((Shape{5, 0, 7}).elements(), 0);
  EXPECT_THROW((Shape{int64_t{1} << 40, int64_t{1} << 40}).elements(), Error);
  EXPECT_EQ(to_string(Shape{2, 3}), "[2, 3]");
}

TEST(Tensor, ViewsOfRowsAndColumnsAddressTheSameMemory) {
  Tensor tensor(DType::i32, {4, 3, 5});
  std::iota(tensor.data<int32_t>(), tensor.data<int32_t>() + 60, 0);
  const TensorView rows = tensor.view().rows(1, 2);
  EXPECT_EQ(rows.shape(), (Shape{2, 3, 5}));
  EXPECT_EQ(*rows.data<int32_t>(), 15);
  EXPECT_TRUE(rows.contiguous());
  const TensorView columns = tensor.view().columns(2, 2);
  EXPECT_FALSE(columns.contiguous());
  EXPECT_EQ(columns[3][1].data<int32_t>()[1], 3 * 15 + 5 + 3);
  EXPECT_THROW(tensor.view().rows(3, 2), Error);
  EXPECT_THROW(tensor.view().columns(4, 2), Error);
  EXPECT_THROW(columns.reshaped({48}), Error);
}

TEST(Tensor, RefusesTheWrongType) {
  Tensor tensor(DType::bf16, {2});
  EXPECT_THROW(tensor.data<float>(), Error);
  EXPECT_NO_THROW(tensor.data<bf16>());
}

TEST(Tensor, CopiesShareAndClonesDoNot) {
  Tensor tensor = Tensor::zeros(DType::f32, {3});
  Tensor shared = tensor;
  Tensor cloned = tensor.clone();
  tensor.data<float>()[1] = 7;
  EXPECT_EQ(shared.data<float>()[1], 7);
  EXPECT_EQ(cloned.data<float>()[1], 0);
}

TEST(BufferTest, HostMemoryIsAlignedAtEverySize) {
  std::vector<std::shared_ptr<Buffer>> buffers;
  for (const size_t bytes : {0, 1, 63, 64, 65, 127, 129, 4097, 1 << 20, (1 << 22) + 1}) {
    for (int i = 0; i < 3; ++i) {
      buffers.push_back(Buffer::allocate(Device::cpu(), bytes));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffers.back()->data()) % 64, 0u) << bytes;
      std::memset(buffers.back()->data(), i, bytes);
    }
    buffers.erase(buffers.end() - 2);
  }
}

TEST(Tensor, CannotReachPastItsBuffer) {
  auto buffer = Buffer::allocate(Device::cpu(), 64);
  EXPECT_NO_THROW(Tensor(buffer, 32, DType::f32, {8}));
  EXPECT_THROW(Tensor(buffer, 32, DType::f32, {9}), Error);
  EXPECT_THROW(Tensor(buffer, 65, DType::u8, {0}), Error);
}

TEST(Tensor, GoesToEveryDeviceAndBack) {
  std::vector<Device> devices{Device::cpu()};
  for (size_t i = 0; i < cuda_devices().size(); ++i) devices.push_back(Device::cuda(int(i)));
  Tensor tensor(DType::i32, {7, 13});
  std::iota(tensor.data<int32_t>(), tensor.data<int32_t>() + 91, -5);
  for (const Device device : devices) {
    const Tensor back = tensor.to(device).clone().to(Device::cpu());
    EXPECT_TRUE(std::equal(back.data<int32_t>(), back.data<int32_t>() + 91,
                           ConstTensorView(tensor).data<int32_t>()))
        << to_string(device);
  }
}

TEST(Device, ParsesItsNamesAndRefusesOthers) {
  EXPECT_EQ(parse_device("cpu"), Device::cpu());
  for (const char* wrong : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "CPU"}) {
    try {
      parse_device(wrong);
      ADD_FAILURE() << wrong;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage) << wrong;
    }
  }
  const size_t count = cuda_devices().size();
  EXPECT_THROW(parse_device("cuda:" + std::to_string(count)), Error);
}

}  // namespace
}  // namespace kinora

#include "base/device.h"

#include <charconv>

#include "base/device_cuda.h"
#include "base/error.h"

namespace kinora {

std::string to_string(Device device) {
  return device.is_cpu() ? "cpu" : "cuda:" + std::to_string(device.index);
}

Device parse_device(std::string_view text) {
  if (text == "cpu") return Device::cpu();
  int index = 0;
  bool well_formed = text == "cuda";
  if (text.starts_with("cuda:")) {
    const std::string_view digits = text.substr(5);
    const auto [end, status] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
    well_formed = status == std::errc() && end == digits.data() + digits.size() && index >= 0;
  }
  if (!well_formed) {
    throw Error(ErrorKind::usage, "unknown device '" + std::string(text) +
                                      "': give cpu, cuda or cuda:N, where N is a device number");
  }
  std::string why;
  const auto devices = cuda_devices(&why);
  if (devices.empty()) throw Error(ErrorKind::not_found, "no CUDA device: " + why);
  if (static_cast<size_t>(index) >= devices.size()) {
    throw Error(ErrorKind::not_found, "no device cuda:" + std::to_string(index) +
                                          ": this machine has " + std::to_string(devices.size()) +
                                          " CUDA device(s), numbered from 0");
  }
  return Device::cuda(index);
}

std::vector<CudaDeviceInfo> cuda_devices(std::string* why_none) {
  std::string ignored;
  return cuda::devices(why_none ? *why_none : ignored);
}

}  // namespace kinora

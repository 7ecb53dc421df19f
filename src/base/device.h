// Where tensors live and work runs: the CPU, or a CUDA device by number.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kinora {

enum class DeviceKind : uint8_t { cpu, cuda };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;

  static Device cpu() { return {}; }
  static Device cuda(int index = 0) { return {DeviceKind::cuda, index}; }
  bool operator==(const Device&) const = default;
  bool is_cpu() const { return kind == DeviceKind::cpu; }
};

std::string to_string(Device device);  // "cpu", "cuda:0"

// Reads "cpu", "cuda" or "cuda:N". Throws a usage error that names the accepted forms, or
// not_found when that device is not on this machine ("auto" is for the caller to decide).
Device parse_device(std::string_view text);

// What is known of one CUDA device.
struct CudaDeviceInfo {
  std::string name;
  int major = 0;
  int minor = 0;
  int64_t total_bytes = 0;
};

// The CUDA devices of this machine; empty where there are none. `why_none`, when given, receives
// one line that says why: not compiled in, no driver, a driver that is too old.
std::vector<CudaDeviceInfo> cuda_devices(std::string* why_none = nullptr);

}  // namespace kinora

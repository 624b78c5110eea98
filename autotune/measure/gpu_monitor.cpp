#include "autotune/measure/gpu_monitor.h"

#include "runtime/driver/dynamic_library.h"

namespace flashjit {
namespace {

using NvmlDevice = struct NvmlDeviceOpaque*;
constexpr unsigned kSmClock = 1;
constexpr unsigned kGpuSensor = 0;

struct Nvml {
  int (*by_uuid)(const char*, NvmlDevice*) = nullptr;
  int (*clock)(NvmlDevice, unsigned, unsigned*) = nullptr;
  int (*temperature)(NvmlDevice, unsigned, unsigned*) = nullptr;
  bool ready = false;

  Nvml() {
    const auto library = DynamicLibrary::open("libnvidia-ml.so.1");
    if (!library) return;
    const auto init = reinterpret_cast<int (*)()>(library->symbol("nvmlInit_v2"));
    by_uuid = reinterpret_cast<decltype(by_uuid)>(library->symbol("nvmlDeviceGetHandleByUUID"));
    clock = reinterpret_cast<decltype(clock)>(library->symbol("nvmlDeviceGetClockInfo"));
    temperature = reinterpret_cast<decltype(temperature)>(library->symbol("nvmlDeviceGetTemperature"));
    ready = init && by_uuid && clock && temperature && init() == 0;
  }
};

}  // namespace

GpuState gpu_state(const std::string& uuid) {
  static const Nvml nvml;
  NvmlDevice device = nullptr;
  if (!nvml.ready || nvml.by_uuid(uuid.c_str(), &device) != 0) return {};
  unsigned mhz = 0, degrees = 0;
  if (nvml.clock(device, kSmClock, &mhz) != 0) mhz = 0;
  if (nvml.temperature(device, kGpuSensor, &degrees) != 0) degrees = 0;
  return {static_cast<int>(mhz), static_cast<int>(degrees)};
}

}  // namespace flashjit

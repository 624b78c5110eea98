// Clock and temperature of a GPU, from NVML where it can be opened. It only reads; nothing depends on it being there.
#pragma once

#include <string>

namespace flashjit {

struct GpuState {
  int clock_mhz = 0, temperature = 0;  // 0: not known
};
GpuState gpu_state(const std::string& uuid);

}  // namespace flashjit

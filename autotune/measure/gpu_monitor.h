// NVML, where it can be opened, gives the clock and temperature of a GPU. They are only read, and nothing depends on
// them.
#pragma once

#include <string>

namespace flashjit {

struct GpuState {
  int clock_mhz = 0, temperature = 0;  // 0 if not known
};
GpuState gpu_state(const std::string& uuid);

}  // namespace flashjit

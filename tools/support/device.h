// The figures of a plan are for a device: a target of the table, a card by its name, or this machine.
#pragma once

#include <string>

#include "compiler/result.h"
#include "compiler/spec/target.h"

namespace flashjit {

struct DeviceFigures {
  std::string title;   // for example "H200" or "x86-64-v3"
  std::string target;  // for example "sm_90a"
  int units = 0;       // number of SMs, or of cores, that times are predicted for
  // Number of cores of this machine, if it is a processor. Schedules are chosen for `units`, wherever they run.
  int usable_cores = 0;
  double memory_tbs = 0;  // speed that a long read reaches
};

// `name` is that of a target or a card. The error lists them.
Result<DeviceFigures> figures_of(const std::string& name);
// Returns the first GPU here that has a target, or else the processor.
Result<DeviceFigures> figures_of_this_machine();

// Returns for example "sm_90a, H200: 132 SMs, 4.54 TB/s" or "x86-64-v4: counted with 16 cores (2 here), 0.15 TB/s".
std::string device_text(const DeviceFigures& device, bool gpu);

}  // namespace flashjit

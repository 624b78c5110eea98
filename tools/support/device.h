// The figures of a plan are for a device: a target of the table, a card by its name, or this machine.
#pragma once

#include <string>

#include "compiler/result.h"
#include "compiler/spec/target.h"

namespace flashjit {

struct DeviceFigures {
  std::string title;      // "H200", "x86-64-v3"
  std::string target;     // "sm_90a"
  int units = 0;          // SMs, or cores, that times are predicted for
  int usable_cores = 0;   // of this machine, if it is a processor: schedules are chosen for `units`, wherever they run
  double memory_tbs = 0;  // that a long read reaches
};

// `name`: of a target or a card; the error lists them.
Result<DeviceFigures> figures_of(const std::string& name);
// The first GPU here that has a target; if there is none, the processor.
Result<DeviceFigures> figures_of_this_machine();

std::string device_text(
    const DeviceFigures& device,
    bool gpu);  // "sm_90a, H200: 132 SMs, 4.54 TB/s"; "x86-64-v4: counted with 16 cores (2 here), 0.15 TB/s"

}  // namespace flashjit

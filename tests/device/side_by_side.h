// Many launches of one kernel at the same time: on two streams, and in graphs that are replayed between them.
#pragma once

#include <string>

#include "flashjit/flashjit.hpp"
#include "runtime/driver/device_memory.h"
#include "runtime/driver/driver.h"
#include "tests/random/case.h"

namespace flashjit::testing_random {

// Memory for what the kernel's launches pass on, full of NaN; the arguments get it.
Result<DeviceBuffer> give_workspace(const GpuContext& gpu, const Kernel& kernel, Arguments& arguments);

// The outputs of `c` hold what one launch by itself gave: every other launch must give the same bits. Says what is
// wrong; empty: nothing.
std::string run_side_by_side(const GpuContext& gpu, Case& c, Kernel& kernel);

}  // namespace flashjit::testing_random

// `flashjit explain --ranks` tells which way to share a sequence wins, and what it waits for.
#pragma once

#include <string>

#include "compiler/choice/cost_model.h"
#include "runtime/compile/request.h"
#include "tools/support/device.h"
#include "tools/support/output.h"

namespace flashjit {

// `ranks` is a network such as "8x450GB/s". The request has a target with the units of the device.
Result<void> explain_ranks(const std::string& ranks, const Request& request, const DeviceFigures& device,
                           const Shape& shape, Output& output);

}  // namespace flashjit

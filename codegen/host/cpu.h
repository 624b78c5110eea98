// What this processor and operating system can run.
#pragma once

#include <string>

#include "compiler/spec/target.h"

namespace flashjit::host {

// Instructions the processor has, whose registers the operating system saves, and, for AMX, that it lets this process
// use.
const Capabilities& cpu();

// True when every instruction set a host target uses is there.
bool can_run(const Target& target);

// The last host row of the target table that can run; empty when none can.
std::string best_target();

}  // namespace flashjit::host

// Runs AMX instructions on a processor that has none: a handler for illegal instructions decodes and executes the six
// that the host backend uses, each thread with its own tiles. Slow, and as strict as the hardware about configuration.
#pragma once

namespace flashjit::testing {

void install_amx_emulator();

}  // namespace flashjit::testing

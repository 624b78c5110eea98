// FLASHJIT_DUMP_DIR gets everything that is made on the way to a kernel, one folder per key. It serves a person who
// looks, and must not stop the work: if something cannot be written, one note for each folder tells so. Others may be
// able to write the folder, so no link in it is followed. The files are:
//   spec.txt schedule.txt key.txt | ir/NN_pass.txt program.txt | config.gen.cuh ... entry.cu templates/... |
//   kernel.ptx kernel.cubin (of a processor kernel.ll kernel.o) facts/NAME.txt (facts/log.txt: the compiler's) |
//   error.txt
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "runtime/compile/compile.h"

namespace flashjit {

// Writes all that goes into the compiler. Returns a note about files that could not be written, or an empty text.
std::string dump_source(const std::string& folder, const Compiled& compiled);
// Writes all that comes out of the compiler, and `listing`, a form of it for people, which has to be made for this.
std::string dump_result(const std::string& folder, const Compiled& compiled, const Result<void>& outcome,
                        const std::optional<SourceFile>& listing);

// Returns whether `name` (relative to the kernel's folder) is a file that is written here or by `flashjit compile
// --out`, and no source.
bool is_dumped_beside_source(std::string_view name);

}  // namespace flashjit

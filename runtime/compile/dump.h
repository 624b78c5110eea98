// FLASHJIT_DUMP_DIR: everything that is made on the way to a kernel, one folder per key. It serves a person who
// looks, and must not stop the work: what cannot be written is said once for each folder, in a note. Others may be able
// to write the folder: no link in it is followed.
//   spec.txt schedule.txt key.txt | ir/NN_pass.txt program.txt | config.gen.cuh ... entry.cu templates/... |
//   kernel.ptx kernel.cubin (of a processor kernel.ll kernel.o) facts/NAME.txt (facts/log.txt: the compiler's) | error.txt
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "runtime/compile/compile.h"

namespace flashjit {

// Writes all that goes into the compiler. Returns the note, or nothing.
std::string dump_source(const std::string& folder, const Compiled& compiled);
// Writes all that comes out of the compiler, and `listing`, the form of it that a person reads, which has to be made for this.
std::string dump_result(const std::string& folder, const Compiled& compiled, const Result<void>& outcome,
                        const std::optional<SourceFile>& listing);

// Is `name` (relative to the kernel's folder) a file that is written here or by `flashjit compile --out`, and no
// source?
bool is_dumped_beside_source(std::string_view name);

}  // namespace flashjit

// Everything from the text of a spec to a cubin. Needs NVRTC, but no GPU and no driver.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "codegen/cuda/emit.h"
#include "compiler/plan.h"
#include "flashjit/flashjit.hpp"
#include "runtime/compile/nvrtc.h"
#include "runtime/store/store.h"

namespace flashjit {

class Bundles;

struct CompileOptions {
  KernelStore* store = nullptr;      // null: always compile, keep nothing
  int sm_count = 0;                  // of the device; 0: that of the target's row
  bool naive = false;                // the textbook version instead
  DumpSink dump;                     // sees the program after every pass
  const Bundles* bundles = nullptr;  // looked in before the store
  CompileBounds bounds;              // of all that may wait: other compiles of the same kernel, the compiler
  Effort effort = Effort::Best;      // quick: of the sync family alone, as hopper kernels are rejected then
  std::string override_dir;  // see source_override.h; the first schedule is then the only one, and is never passed over
  std::string
      compiler_program;  // of a compiler in a process of its own (find_compiler_program); empty: in this process
  const AttentionSpec* parsed = nullptr;  // what the text of the spec says, for who has read it already
};

struct Compiled {
  Plan plan;
  KernelSource source;
  StoreKey key;
  Facts facts;
  std::shared_ptr<const StoreEntry> binary;  // payload: the cubin; facts: "log", "warnings" and more
};

// The cost model's choice, or what the pins leave of it. A schedule that spills registers is passed over while another
// candidate is left; if all of them spill, the one that spills least is taken, with a note. Hopper kernels that spill,
// or whose matrix products or registers the compiler handled otherwise than planned, are never taken: the sync family
// is the last resort, and pins that exclude it make error Unsupported. A kernel of a bundle was judged when it was
// built: it is found by what was asked for, without NVRTC. With FLASHJIT_JIT=off nothing else is looked for, and NVRTC
// is never opened. Errors Timeout and Cancelled: `options.bounds`. Reads FLASHJIT_NVRTC, FLASHJIT_JIT and
// FLASHJIT_DUMP_DIR.
Result<Compiled> compile_spec(std::string_view spec, std::string_view target, std::string_view schedule,
                              const CompileOptions& options = {});

// The name of a kernel: all that decides its bytes. `compiler` is NVRTC's identity, `options` are what it is called
// with.
StoreKey key_of(const Plan& plan, const KernelSource& source, std::string_view compiler,
                const std::vector<std::string>& options);
// What compile_spec would take from the store, without a compile. A miss names the key that is not there: that of the
// first schedule, or of a looser one where those before it are stored and bad.
struct StoredSpec {
  std::optional<Compiled> hit;
  StoreKey key;
  std::string spec, schedule;  // of `key`, in canonical form
  std::string miss;            // what was looked at, and what was wrong there
};
Result<StoredSpec> find_spec(std::string_view spec, std::string_view target, std::string_view schedule,
                             const CompileOptions& options);

// Spec and pins as a plan: the part that needs no compiler. Also for host targets.
Result<Plan> plan_spec(std::string_view spec, std::string_view target, std::string_view schedule, int sm_count = 0,
                       const DumpSink& dump = {});
Result<Plan> plan_spec(const AttentionSpec& spec, std::string_view target, std::string_view schedule, int sm_count = 0,
                       const DumpSink& dump = {});

}  // namespace flashjit

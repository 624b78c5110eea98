// Everything from a request to a cubin. Needs NVRTC, but no GPU and no driver.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "codegen/cuda/emit.h"
#include "compiler/plan.h"
#include "flashjit/flashjit.hpp"
#include "runtime/compile/nvrtc/nvrtc.h"
#include "runtime/compile/request.h"
#include "runtime/engine/environment.h"
#include "runtime/store/store.h"

namespace flashjit {

class Bundles;

struct Compiled;

struct CompileOptions {
  EnvironmentSettings settings;      // as whoever is at the edge has read them: nothing here looks at the environment
  KernelStore* store = nullptr;      // null: always compile, keep nothing
  DumpSink dump;                     // sees the program after every pass
  const Bundles* bundles = nullptr;  // looked in before the store
  CompileBounds bounds;              // of all that may wait: other compiles of the same kernel, the compiler
  Effort effort = Effort::Best;      // quick: of a family that can be compiled quickly
  std::string override_dir;  // see source_override.h; the first schedule is then the only one, and is never passed over
  // Tries a kernel before it enters the store (verify.h) and says what is wrong with it, if anything is. None: it could
  // not be tried, and shall be taken all the same. No function: none is tried.
  std::function<Result<std::optional<std::string>>(const Compiled& compiled)> verify;
  std::string
      compiler_program;  // of a compiler in a process of its own (find_compiler_program); empty: in this process
};

struct Compiled {
  Plan plan;
  KernelSource source;
  StoreKey key;
  Facts facts;
  std::shared_ptr<const StoreEntry> binary;  // payload: the cubin; facts: "log", "warnings" and more
};

// The cost model's choice, or what the pins leave of it; search.h says which kernels are passed over. A kernel of a
// bundle was judged when it was built: it is found by what was asked for, without NVRTC. With FLASHJIT_JIT=off nothing
// else is looked for, and NVRTC is never opened. Errors Timeout and Cancelled: `options.bounds`.
Result<Compiled> compile_spec(const Request& request, const CompileOptions& options);

// This structure says what compile_spec would take from the store, without a compile. A miss names the key that is not
// there: that of the first schedule, or of a looser one where those before it are stored and bad.
struct StoredSpec {
  std::optional<Compiled> hit;
  StoreKey key;
  std::string spec, schedule;  // of `key`, in canonical form
  std::string miss;            // what was looked at, and what was wrong there
};
Result<StoredSpec> find_spec(const Request& request, const CompileOptions& options);

}  // namespace flashjit

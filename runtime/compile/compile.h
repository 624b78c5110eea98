// compile_spec() does everything from a request to a cubin. It needs NVRTC, but no GPU and no driver.
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
  // The caller has read these. Nothing here looks at the environment.
  EnvironmentSettings settings;
  // Without a store every kernel is compiled, and none is kept.
  KernelStore* store = nullptr;
  DumpSink dump;                     // It sees the program after every pass.
  const Bundles* bundles = nullptr;  // They are looked in before the store.
  // They limit everything that may wait: other compiles of the same kernel, and the compiler.
  CompileBounds bounds;
  // Quick takes a family that can be compiled quickly.
  Effort effort = Effort::Best;
  // See source_override.h. The first schedule is then the only one, and is never passed over.
  std::string override_dir;
  // Tries a kernel before it enters the store (verify.h). Returns what is wrong with it, an empty text if nothing is, or
  // no text if the kernel could not be tried and shall be taken all the same. Without this function no kernel is tried.
  std::function<Result<std::optional<std::string>>(const Compiled& compiled)> verify;
  // Path of a compiler that runs in a process of its own (find_compiler_program). If it is empty, the compiler runs in
  // this process.
  std::string compiler_program;
};

struct Compiled {
  Plan plan;
  KernelSource source;
  StoreKey key;
  Facts facts;
  // The payload is the cubin. Facts are "log", "warnings" and more.
  std::shared_ptr<const StoreEntry> binary;
};

// Compiles the cost model's choice, or the choice that the pins leave; search.h tells which kernels are passed over. A
// kernel of a bundle was judged when it was built: it is found by what was asked for, without NVRTC. With
// FLASHJIT_JIT=off nothing else is looked for, and NVRTC is never opened. Errors Timeout and Cancelled come from
// `options.bounds`.
Result<Compiled> compile_spec(const Request& request, const CompileOptions& options);

// This structure holds what compile_spec would take from the store, without a compile. A miss names the key that is not
// there: that of the first schedule, or of a looser one if those before it are stored and bad.
struct StoredSpec {
  std::optional<Compiled> hit;
  StoreKey key;
  std::string spec, schedule;  // both belong to `key`, in canonical form
  std::string miss;            // tells what was looked at, and what was wrong there
};
Result<StoredSpec> find_spec(const Request& request, const CompileOptions& options);

}  // namespace flashjit

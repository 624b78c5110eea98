// This is the interface of the host backend. The backend turns a Plan of a host target into an object file, and that
// into machine code, through LLVM. The optional library libflashjit_host.so, which holds LLVM, implements it. The
// runtime opens the library with dlopen, so nothing else needs LLVM.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compiler/plan.h"
#include "templates/kernel_params.h"

namespace flashjit {

// Calls body(item, worker) for item = 0..items-1, on any threads, and returns when all are done. worker is in
// 0..workers-1, and no two calls at the same time share one.
struct ParallelFor {
  int workers = 1;
  std::function<void(std::int64_t items, const std::function<void(std::int64_t item, int worker)>& body)> run;

  // Does the same without memory for what `body` captures.
  template <class Body>
  void each(std::int64_t items, const Body& body) const {
    run(items, std::cref(body));
  }
};

// This is one compiled kernel. It may run on many threads at once. The result does not depend on the number of workers.
class HostKernel {
 public:
  virtual ~HostKernel() = default;
  // All pointers are host pointers. The first run maps the memory that the kernel needs beside the tensors, and keeps
  // it. Nothing else is allocated, so no lack of memory ends a run half way. The textbook version, with which `bench`
  // compares, does allocate.
  virtual Result<void> run(const KernelParams& params, const ParallelFor& parallel) const = 0;
};

class HostBackend {
 public:
  virtual ~HostBackend() = default;
  // Returns a relocatable ELF file, which may be kept: this library makes equal files of equal plans in every process.
  // `naive` asks for the textbook version, which writes scores and probabilities to memory between its three steps.
  virtual Result<std::vector<std::uint8_t>> compile(const Plan& plan, bool naive) = 0;
  // Makes code in memory of the file that compile() gave for an equal plan. The bytes are trusted: whoever kept the
  // file has to know that no byte has changed.
  virtual Result<std::unique_ptr<HostKernel>> link(const Plan& plan, bool naive,
                                                   std::span<const std::uint8_t> object) = 0;
  // Returns the LLVM IR, for --emit.
  virtual Result<std::string> llvm_ir(const Plan& plan) = 0;
  virtual std::string llvm_version() const = 0;
  // Returns the best host row of the target table that this processor and operating system can run.
  virtual Result<std::string> best_target() const = 0;
};

// Returns a digest of the headers that determine how plans, kernels and this interface lie in memory
// (codegen/interface.cmake). Each of the two libraries has the digest of its own build, and only equal ones may meet.
const char* host_interface();

// This is the symbol of extern "C" const char* (), which returns host_interface().
inline constexpr char kHostInterfaceSymbol[] = "flashjit_host_interface";
// This is the symbol of extern "C" HostBackend* (), which is looked up after the interface.
inline constexpr char kHostBackendSymbol[] = "flashjit_host_backend";

}  // namespace flashjit

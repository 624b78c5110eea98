// NVRTC turns CUDA source into machine code, without a GPU. It is opened by name at run time, without a CUDA header.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "codegen/cuda/emit.h"
#include "compiler/result.h"
#include "compiler/spec/target.h"
#include "runtime/compile/compile_bounds.h"
#include "runtime/compile/nvrtc/nvrtc_log.h"

namespace flashjit {

struct NvrtcApi;

struct Cubin {
  std::vector<std::uint8_t> bytes;
  std::string log;
  CompileLog facts;
};

// Identity gives the identity of the compiler, with its path as the log. If it is no NVRTC, there is no identity, and
// the log tells why.
enum class CompilerOutput { Cubin, Ptx, Identity };
// Quick takes a fraction of the time and makes much slower code.
enum class Effort { Best, Quick };

// The mode says what code one run of the compiler makes.
struct CompileMode {
  Effort effort = Effort::Best;
  bool line_info = false;  // tells profilers which line of the source an instruction comes from
};

struct CompilerResult {
  std::string log;
  std::vector<std::uint8_t> bytes;
};

class Nvrtc {
 public:
  // Opens the process-wide library, and keeps the first one that could be opened. `where` is a library or a folder
  // (FLASHJIT_NVRTC). If it is empty, the library is looked for next to our own, then in the loader's path, then in the
  // usual places. Error NotFound lists the places that were tried. `program` is flashjit-compiler: every compile is
  // then a process of its own, and this process never loads the library. If it is empty, compiles run in this process.
  static Result<std::shared_ptr<const Nvrtc>> open(const std::string& where, const std::string& program = {},
                                                   const CompileBounds& bounds = {});
  ~Nvrtc();
  // Makes the answer of flashjit-compiler to a request for CompilerOutput::Identity.
  static CompilerResult identify(const std::string& file);

  // Programs are independent: any number of threads may compile at once. Error Compile holds the log as detail. Errors
  // Timeout and Cancelled come when `bounds` are over; in this process that is when NVRTC next asks, between its
  // phases.
  Result<Cubin> compile(const KernelSource& source, const Target& target, const CompileBounds& bounds = {},
                        CompileMode mode = {}) const;
  Result<std::string> ptx(const KernelSource& source, const Target& target, const CompileBounds& bounds = {}) const;
  Result<CompilerResult> run(const KernelSource& source, const std::vector<std::string>& options, CompilerOutput output,
                             const CompileBounds& bounds) const;

  // Returns the options that every compile for `target` passes; they are part of the store's key.
  std::vector<std::string> options(const Target& target, CompileMode mode = {}) const;

  int major() const { return major_; }
  int minor() const { return minor_; }
  const std::string& path() const { return path_; }
  // The identity names exactly this compiler: version and build ids of the two files that it is made of. It has no
  // path.
  const std::string& identity() const { return identity_; }

 private:
  Nvrtc() = default;
  static Result<std::shared_ptr<const Nvrtc>> search(const std::string& where, const std::string& program,
                                                     const CompileBounds& bounds);
  static Result<std::unique_ptr<Nvrtc>> load(const std::string& file);
  static Result<CompilerResult> ask(const std::string& file, const std::string& program, const CompileBounds& bounds);
  bool take(const CompilerResult& identity);

  std::unique_ptr<NvrtcApi> api_;  // null if only `program_` loads NVRTC
  int major_ = 0, minor_ = 0;
  std::string path_, identity_, program_;
};

}  // namespace flashjit

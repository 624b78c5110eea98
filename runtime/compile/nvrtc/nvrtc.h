// NVRTC: CUDA source to machine code, in this process and without a GPU. Opened by name at run time; no CUDA header.
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

// Identity: of the compiler, and its path as log; none where it is no NVRTC, and why as log.
enum class CompilerOutput { Cubin, Ptx, Identity };
enum class Effort { Best, Quick };  // quick: a fraction of the time, much slower code

// The mode says what code one run of the compiler makes.
struct CompileMode {
  Effort effort = Effort::Best;
  bool line_info = false;  // for profilers: which line of the source an instruction is of
};

struct CompilerResult {
  std::string log;
  std::vector<std::uint8_t> bytes;
};

class Nvrtc {
 public:
  // The process-wide library: the first success is kept. `where` is a library or a folder (FLASHJIT_NVRTC); empty: next
  // to our own library, then the loader's path, then the usual places. Error NotFound lists what was tried. `program`:
  // flashjit-compiler; every compile is then a process of its own, and this one never loads the library. Empty: compiles
  // in this process.
  static Result<std::shared_ptr<const Nvrtc>> open(const std::string& where, const std::string& program = {},
                                                   const CompileBounds& bounds = {});
  ~Nvrtc();
  // Makes the answer of flashjit-compiler to a request for CompilerOutput::Identity.
  static CompilerResult identify(const std::string& file);

  // Programs are independent: any number of threads may compile at once. Error Compile holds the log as detail.
  // Errors Timeout and Cancelled when `bounds` are over: in this process when NVRTC next asks, between its phases.
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
  // Names exactly this compiler: version and build ids of the two files it is made of. No path.
  const std::string& identity() const { return identity_; }

 private:
  Nvrtc() = default;
  static Result<std::shared_ptr<const Nvrtc>> search(const std::string& where, const std::string& program,
                                                     const CompileBounds& bounds);
  static Result<std::unique_ptr<Nvrtc>> load(const std::string& file);
  static Result<CompilerResult> ask(const std::string& file, const std::string& program, const CompileBounds& bounds);
  bool take(const CompilerResult& identity);

  std::unique_ptr<NvrtcApi> api_;  // null: it is loaded by `program_` only
  int major_ = 0, minor_ = 0;
  std::string path_, identity_, program_;
};

}  // namespace flashjit

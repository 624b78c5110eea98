// Uses LLVM: module -> optimised module -> object file -> executable memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/IR/Module.h>
#include <llvm/Target/TargetMachine.h>

#include "compiler/result.h"
#include "compiler/spec/target.h"

namespace flashjit::host {

Result<std::unique_ptr<llvm::TargetMachine>> make_target_machine(const Target& target);

// Functions were emitted with vectors and unrolled, or as scalar loops that LLVM is to vectorise.
enum class Emitted { Vectors, ScalarLoops };
void optimise(llvm::Module& module, llvm::TargetMachine& machine, Emitted emitted);

Result<std::vector<std::uint8_t>> object_of(llvm::Module& module, llvm::TargetMachine& machine);

// This is machine code in memory, which is freed with the object.
class Code {
 public:
  static Result<std::unique_ptr<Code>> link(std::span<const std::uint8_t> object);

  template <class Function>
  Result<Function> find(const char* name) const {
    FLASHJIT_ASSIGN(address, address_of(name));
    return reinterpret_cast<Function>(address);
  }

 private:
  Result<std::uintptr_t> address_of(const char* name) const;
  std::unique_ptr<llvm::orc::LLJIT> jit_;
};

}  // namespace flashjit::host

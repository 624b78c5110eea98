// LLVM: module -> optimised module -> object -> executable memory.
#pragma once

#include <memory>
#include <string>

#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/IR/Module.h>
#include <llvm/Target/TargetMachine.h>

#include "compiler/result.h"
#include "compiler/spec/target.h"

namespace flashjit::host {

Result<std::unique_ptr<llvm::TargetMachine>> make_target_machine(const Target& target);

void optimise(llvm::Module& module, llvm::TargetMachine& machine);

// Machine code in memory; freed with the object.
class Code {
 public:
  static Result<std::unique_ptr<Code>> link(llvm::Module& module, llvm::TargetMachine& machine);
  std::int64_t bytes() const { return bytes_; }

  template <class Function>
  Result<Function> find(const char* name) const {
    FLASHJIT_ASSIGN(address, address_of(name));
    return reinterpret_cast<Function>(address);
  }

 private:
  Result<std::uintptr_t> address_of(const char* name) const;
  std::unique_ptr<llvm::orc::LLJIT> jit_;
  std::int64_t bytes_ = 0;
};

}  // namespace flashjit::host

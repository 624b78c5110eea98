// NVRTC has static objects, which exit() destroys while other threads may be compiling: the end of a sound program would be a crash.
// Who compiles holds a pass. When the process ends no new ones are given, and exit() waits for those that are out.
#pragma once

#include "compiler/result.h"
#include "runtime/dynamic_library.h"

namespace flashjit {

class CompilerPass {
 public:
  CompilerPass();
  ~CompilerPass();
  CompilerPass(const CompilerPass&) = delete;
  CompilerPass& operator=(const CompilerPass&) = delete;
  Result<void> status() const;  // error: the process is ending

  // To be called when a compiler was loaded, before it compiles: what is registered after its static objects runs before they are destroyed,
  // and those that it makes from now on never are.
  static void library_was_loaded(const DynamicLibrary& library);

 private:
  bool given_ = false;
};

}  // namespace flashjit

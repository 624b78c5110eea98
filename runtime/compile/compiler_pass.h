// NVRTC has static objects, which exit() destroys while other threads may be compiling: the end of a sound program
// would be a crash. Who compiles holds a pass. When the process ends no new ones are given, and exit() waits for those
// that are out.
#pragma once

#include "compiler/result.h"

namespace flashjit {

class CompilerPass {
 public:
  CompilerPass();
  ~CompilerPass();
  CompilerPass(const CompilerPass&) = delete;
  CompilerPass& operator=(const CompilerPass&) = delete;
  Result<void> status() const;  // error: the process is ending

  // To be called when a compiler was loaded: what is registered after its static objects runs before they are
  // destroyed.
  static void library_was_loaded();

 private:
  bool given_ = false;
};

}  // namespace flashjit

// NVRTC has static objects, which exit() destroys while other threads may be compiling, so a correct program could
// crash at its end. A thread that compiles holds a pass. When the process ends no new passes are given, and exit()
// waits for those that are held.
#pragma once

#include "compiler/result.h"

namespace flashjit {

class CompilerPass {
 public:
  CompilerPass();
  ~CompilerPass();
  CompilerPass(const CompilerPass&) = delete;
  CompilerPass& operator=(const CompilerPass&) = delete;
  Result<void> status() const;  // It is an error if the process is ending.

  // This has to be called when a compiler was loaded: functions that are registered after its static objects were made
  // run before these are destroyed.
  static void library_was_loaded();

 private:
  bool given_ = false;
};

}  // namespace flashjit

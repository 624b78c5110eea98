// Finds out what this processor and operating system can run, and sets how floats behave meanwhile.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <string>

#include "compiler/result.h"
#include "compiler/spec/target.h"

namespace flashjit::host {

// Returns the instructions that the processor has, if the operating system saves their registers and, for AMX, lets
// this process use them.
const Capabilities& cpu();

// Returns true if every instruction set that a host target uses is there.
bool can_run(const Target& target);

// Returns the last host row of the target table that can run.
Result<std::string> best_target();

// Subnormal results are microcode on some processors. The softmax's tail makes many of them, and they do not matter.
class FlushSubnormals {
 public:
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

#if defined(__x86_64__)
  FlushSubnormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
  ~FlushSubnormals() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#else
  FlushSubnormals() {}  // This processor runs no kernels of the host backend.
#endif
};

}  // namespace flashjit::host

// This code knows what this processor and operating system can run, and sets how floats behave meanwhile.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <string>

#include "compiler/result.h"
#include "compiler/spec/target.h"

namespace flashjit::host {

// Instructions the processor has, whose registers the operating system saves, and, for AMX, that it lets this process
// use.
const Capabilities& cpu();

// True when every instruction set a host target uses is there.
bool can_run(const Target& target);

// The last host row of the target table that can run.
Result<std::string> best_target();

// Subnormal results are microcode on some processors; the softmax's tail makes many of them, and they do not matter.
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
  FlushSubnormals() {}  // no kernel of a processor runs on this one
#endif
};

}  // namespace flashjit::host

// How floats behave while a kernel runs.
#pragma once

#include <xmmintrin.h>

namespace flashjit::host {

// Subnormal results are microcode on some processors; the softmax's tail makes many of them, and they do not matter.
class FlushSubnormals {
 public:
  FlushSubnormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
  ~FlushSubnormals() { _mm_setcsr(saved_); }
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
  unsigned saved_;
};

}  // namespace flashjit::host

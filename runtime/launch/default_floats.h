// While code of the library runs, floating point is as it is when a program starts, whatever the program has set since:
// numbers round to the nearest, nothing traps, subnormals count. Texts of specs, constants in code and results depend
// on it.
#pragma once

#include <cfenv>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace flashjit {

// Sets these defaults for its thread while it lives. Afterwards all is as before, and no flag of an exception is
// raised.
class DefaultFloats {
 public:
  DefaultFloats(const DefaultFloats&) = delete;
  DefaultFloats& operator=(const DefaultFloats&) = delete;

#if defined(__x86_64__)
  // A launch is too short for fegetenv and fesetenv, which save all of the x87 unit: its control word is enough.
  DefaultFloats() : sse_(_mm_getcsr()) {
    asm volatile("fnstcw %0" : "=m"(x87_));
    set(kSseAtTheStart, kX87AtTheStart);
  }
  ~DefaultFloats() { set(sse_, x87_); }

 private:
  // All exceptions are masked, and numbers round to the nearest.
  static constexpr unsigned kSseAtTheStart = 0x1f80;
  static constexpr unsigned short kX87AtTheStart = 0x37f;
  static void set(unsigned sse, const unsigned short& x87) {
    _mm_setcsr(sse);
    asm volatile("fldcw %0" : : "m"(x87));
  }

  const unsigned sse_;
  unsigned short x87_;
#else
  DefaultFloats() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloats() { std::fesetenv(&saved_); }

 private:
  std::fenv_t saved_;
#endif
};

}  // namespace flashjit

// Floating point as it is when a program starts, whatever the program has set since: numbers round to the nearest,
// nothing traps, subnormals count. Texts of specs, constants in code and results depend on it.
#pragma once

#include <cfenv>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace flashjit {

// While it lives, for its thread. Afterwards all is as before, and no flag of an exception is raised.
class DefaultFloats {
 public:
  DefaultFloats(const DefaultFloats&) = delete;
  DefaultFloats& operator=(const DefaultFloats&) = delete;

#if defined(__x86_64__)
  // A launch is too short for fegetenv and fesetenv, which save the x87 unit as well. Nothing here computes on that.
  DefaultFloats() : saved_(_mm_getcsr()) { _mm_setcsr(kAtTheStart); }
  ~DefaultFloats() { _mm_setcsr(saved_); }

 private:
  static constexpr unsigned kAtTheStart = 0x1f80;  // all exceptions masked
  const unsigned saved_;
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

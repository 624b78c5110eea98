// Floating point as it is when a program starts, whatever the program has set since: numbers round to the nearest,
// nothing traps, subnormals count. Texts of specs, constants in code and results depend on it.
#pragma once

#include <cfenv>

namespace flashjit {

// While it lives, for its thread. Afterwards all is as before, and no flag of an exception is raised.
class DefaultFloats {
 public:
  DefaultFloats() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloats() { std::fesetenv(&saved_); }
  DefaultFloats(const DefaultFloats&) = delete;
  DefaultFloats& operator=(const DefaultFloats&) = delete;

 private:
  std::fenv_t saved_;
};

}  // namespace flashjit

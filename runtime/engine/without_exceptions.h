// Where a program calls the library: no exception comes out, and how the program computes does not come in.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "compiler/result.h"
#include "runtime/launch/default_floats.h"

namespace flashjit {

// What `function` gives, a Result, or an error for what it throws, which is lack of memory and the like. Floating point is
// as by default meanwhile: the caller's rounding would be in texts, keys and constants. "out of memory" is short enough to need none itself.
template <class Function>
auto without_exceptions(const char* place, const Function& function) -> decltype(function()) {
  const DefaultFloats floats;
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return Error{ErrorKind::Io, "out of memory", {}};
  } catch (const std::exception& exception) {
    return internal(std::string(place) + ": " + exception.what());
  }
}

}  // namespace flashjit

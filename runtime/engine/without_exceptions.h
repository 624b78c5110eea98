// Guards the entries of the library: no exception comes out, and the program's floating point modes do not come in.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "compiler/result.h"
#include "runtime/launch/default_floats.h"

namespace flashjit {

// Returns the Result of `function`, or an error if `function` throws, for lack of memory and the like. Floating point
// modes are the defaults meanwhile, because texts, keys and constants would otherwise depend on the caller's rounding.
// The text "out of memory" is short enough to need no memory itself.
template <class Function>
auto without_exceptions(const char* caller, const Function& function) -> decltype(function()) {
  const DefaultFloats floats;
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return Error{ErrorKind::Io, "out of memory", {}};
  } catch (const std::exception& exception) {
    return internal(std::string(caller) + ": " + exception.what());
  }
}

}  // namespace flashjit

// No exception may reach the caller of the library; what can be thrown in it is lack of memory and the like.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "compiler/result.h"

namespace flashjit {

// What `function` gives, a Result, or an error for what it throws. "out of memory" is short enough to need none itself.
template <class Function>
auto without_exceptions(const char* place, const Function& function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return Error{ErrorKind::Io, "out of memory", {}};
  } catch (const std::exception& exception) {
    return internal(std::string(place) + ": " + exception.what());
  }
}

}  // namespace flashjit

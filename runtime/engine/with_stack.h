// A stack that suffices for preparing: specs nest, every pass recurses over them, and so do NVRTC and LLVM, however small
// the stack of the caller is (that of a fiber, say).
#pragma once

#include <optional>
#include <utility>

#include "runtime/engine/without_exceptions.h"

namespace flashjit {

// Calls work(of), which throws nothing: here, where 1 MB of stack is left, or else on a thread with 8 MB, for which it
// waits. Where no thread can be started it is called here, too.
void run_with_stack(void (*work)(void*), void* of);

// Returns the Result of `function`, or an error if `function` throws.
template <class Function>
auto with_stack(const char* caller, const Function& function) -> decltype(function()) {
  struct Call {
    const char* caller;
    const Function& function;
    std::optional<decltype(function())> result;
  } call = {caller, function, {}};
  const auto work = [](void* of) {
    Call& call = *static_cast<Call*>(of);
    call.result = without_exceptions(call.caller, call.function);
  };
  run_with_stack(work, &call);
  return std::move(*call.result);
}

}  // namespace flashjit

// Provides a stack that suffices for preparing, however small the stack of the caller is (a fiber's, say). Specs nest,
// and every pass recurses over them, as NVRTC and LLVM do.
#pragma once

#include <optional>
#include <utility>

#include "runtime/engine/without_exceptions.h"

namespace flashjit {

// Calls work(of), which throws nothing. It is called here if 1 MB of stack is left, and otherwise on a thread with 8
// MB, for which this function waits. If no thread can be started, it is called here, too.
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

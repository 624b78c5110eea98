// Errors of an engine name its options, but users of the command know the options of the command.
#pragma once

#include <memory>

#include "autotune/search/session.h"
#include "compiler/result.h"
#include "tools/support/inputs.h"

namespace flashjit {

// "ordinal: there is no GPU 3" becomes "--device: there is no GPU 3". Other errors stay as they are.
Error as_option(Error error);
template <class T>
Result<T> as_option(Result<T> made) {
  return made ? std::move(made) : Result<T>(as_option(made.error()));
}

// Opens a session where the inputs ask for it, for `run` and `bench`.
Result<std::unique_ptr<Session>> open_session(const InputArgs& args, EnvironmentSettings settings);

// This is the error for an option that only code of GPUs has. A variable with that meaning serves other kernels, and is
// no error.
Error no_lines_of(std::string_view target);

}  // namespace flashjit

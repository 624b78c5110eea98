// Result<T>: a value, or an error that says what was asked, what is possible and the way out.
// Self-contained (standard library only): it is also installed as part of the public API.
#pragma once

#include <cstddef>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace flashjit {

enum class ErrorKind {
  Invalid,      // the input is wrong: names field, value, limit, way out
  Unsupported,  // legal, but no kernel of this build or target does it; names the field and the nearest thing that
                // works
  NotFound,     // a file, a library, a device or a kernel is missing
  Io,           // the operating system refused
  Compile,      // NVRTC or LLVM refused generated code; detail holds the log
  Driver,       // the CUDA driver returned an error
  Capture,      // prepare would have to compile or load while a stream captures
  Internal,     // our mistake; message names the function or the statement
  Timeout,      // prepare was not done in the time that its caller allowed
  Cancelled,    // prepare was called off by its caller
};

// In the order of ErrorKind.
inline constexpr const char* kErrorKindWords[] = {"invalid", "unsupported", "not_found", "io",      "compile",
                                                  "driver",  "capture",     "internal",  "timeout", "cancelled"};
static_assert(std::size(kErrorKindWords) == static_cast<std::size_t>(ErrorKind::Cancelled) + 1);

inline const char* name(ErrorKind kind) {
  const auto at = static_cast<std::size_t>(kind);
  return at < std::size(kErrorKindWords) ? kErrorKindWords[at] : "internal";
}

struct Error {
  ErrorKind kind = ErrorKind::Internal;
  std::string message;  // one line
  std::string detail;   // may have many lines: the text with a caret, a compiler log
};

inline Error invalid(std::string message, std::string detail = {}) {
  return {ErrorKind::Invalid, std::move(message), std::move(detail)};
}
inline Error unsupported(std::string message, std::string detail = {}) {
  return {ErrorKind::Unsupported, std::move(message), std::move(detail)};
}
inline Error internal(std::string message, std::string detail = {}) {
  return {ErrorKind::Internal, std::move(message), std::move(detail)};
}

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}
  Result(Error error) : state_(std::move(error)) {}

  explicit operator bool() const { return state_.index() == 0; }
  const T& operator*() const& { return std::get<0>(state_); }
  T& operator*() & { return std::get<0>(state_); }
  T&& operator*() && { return std::get<0>(std::move(state_)); }
  const T* operator->() const { return &std::get<0>(state_); }
  T* operator->() { return &std::get<0>(state_); }
  const Error& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}

  explicit operator bool() const { return !error_; }
  const Error& error() const { return *error_; }

 private:
  std::optional<Error> error_;
};

// Returns the error of `result` from the enclosing function, if there is one.
#define FLASHJIT_TRY(result) \
  if (auto&& flashjit_try_result = (result); !flashjit_try_result) return flashjit_try_result.error()

// Declares `name` with the value of `result`, or returns its error from the enclosing function.
#define FLASHJIT_ASSIGN(name, result)               \
  auto name##_result = (result);                    \
  if (!name##_result) return name##_result.error(); \
  auto& name = *name##_result

}  // namespace flashjit

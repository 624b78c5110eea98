// Result<T> is a value, or an error that names the input, the limits and the way out.
// The header needs the standard library only, because it is also installed as part of the public API.
#pragma once

#include <cstddef>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace flashjit {

enum class ErrorKind {
  Invalid,  // The input is wrong. The message names field, value, limit and way out.
  // The input is legal, but no kernel of this build or target computes it. The message names the field and the nearest
  // thing that works.
  Unsupported,
  NotFound,   // A file, a library, a device or a kernel is missing.
  Io,         // The operating system refused.
  Compile,    // NVRTC or LLVM refused generated code. The detail holds the log.
  Driver,     // The CUDA driver returned an error.
  Capture,    // prepare() would have to compile or load while a stream captures.
  Internal,   // This is a mistake of the library. The message names the function or the statement.
  Timeout,    // prepare() was not done in the time that its caller allowed.
  Cancelled,  // The caller of prepare() called it off.
};

// The words are in the order of ErrorKind.
inline constexpr const char* kErrorKindWords[] = {"invalid", "unsupported", "not_found", "io",      "compile",
                                                  "driver",  "capture",     "internal",  "timeout", "cancelled"};
static_assert(std::size(kErrorKindWords) == static_cast<std::size_t>(ErrorKind::Cancelled) + 1);

inline const char* name(ErrorKind kind) {
  const auto at = static_cast<std::size_t>(kind);
  return at < std::size(kErrorKindWords) ? kErrorKindWords[at] : "internal";
}

struct Error {
  ErrorKind kind = ErrorKind::Internal;
  std::string message;  // It is one line.
  std::string detail;   // It may have many lines: a text with a caret, or a compiler's log.
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

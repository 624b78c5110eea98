// Calls of any scalars and sizes, on tensors between memory that must not be touched: refused, or run without a fault.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "flashjit/flashjit.hpp"
#include "tests/random/random.h"

namespace flashjit::testing_random {

// Some bytes with memory before and behind them that cannot be read.
class Guarded {
 public:
  static constexpr std::size_t kSize = 1 << 16;
  virtual ~Guarded() = default;
  virtual char* begin() const = 0;  // of kSize bytes, at least
  virtual char* end() const = 0;
  virtual void write(void* to, const void* from, std::size_t bytes) const = 0;
};

// A spec that reads a tensor where scalars and positions say, and calls of it.
class GuardedCalls {
 public:
  static constexpr std::size_t kTensors = 8;  // of a call, at most

  GuardedCalls(std::uint64_t seed, bool gpu);
  const std::string& spec() const { return spec_; }
  // Tensors begin where their memory does, or end there.
  Arguments draw(const std::vector<const Guarded*>& memory);
  // What draw() gave, for messages.
  static std::string text(const Arguments& call);

 private:
  std::string integer(int depth);
  std::string index();
  std::int64_t extent();
  double value(double least, double most);
  Tensor tensor(const std::vector<const Guarded*>& memory, const char* dtype, std::vector<std::int64_t> shape);

  struct Scalar {
    const char *name, *type;
    double least, most;
  };
  Random random_;
  bool packed_, small_, by_batch_, wide_;  // `wide_`: indices of 64 bits
  std::vector<Scalar> scalars_;
  std::string spec_;
  std::size_t used_ = 0;
};

}  // namespace flashjit::testing_random

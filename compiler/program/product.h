// A matrix product as data: one issuer computes target (rows x columns) += a (rows x depth) * b (depth x columns).
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace flashjit {

enum class Issuer { Warp, Warpgroup };
constexpr int threads_of(Issuer issuer) { return issuer == Issuer::Warp ? 32 : 128; }

struct Product {
  std::string_view name;          // The name of its result; its function is multiply_<name>.
  std::string_view target, a, b;  // Buffers; a and b lie in the memory from which the instruction reads them.
  Issuer issuer = Issuer::Warp;
  int rows = 0, columns = 0, depth = 0;
  int m = 0, n = 0, k = 0;  // The sizes of one instruction.
  bool a_in_registers = false;
  bool b_transposed = false;     // The rows of b are contiguous along the columns of the target, as those of V are.
  bool accumulates = false;      // It adds to the target unless told to begin anew; otherwise it always begins anew.
  bool replaces = false;         // Nobody needs the target's old contents, so the target may lie elsewhere until then.
  bool b_in_rows = false;        // b is rows of 16 bytes one below the other, without a swizzle.
  int unroll = 0;                // The number of steps along the depth that are unrolled; 0 means all.
  std::string_view remark = {};  // A remark for readers of the generated code.
};

// An fp32 accumulator is spread evenly over the threads of its issuer.
constexpr int accumulator_registers(const Product& p) { return p.rows * p.columns / threads_of(p.issuer); }
constexpr int accumulator_registers(std::span<const Product> products) {
  int sum = 0;
  for (const Product& p : products) sum += accumulator_registers(p);
  return sum;
}

// Returns, for example, "m64n128k16 by a warpgroup, depth 128, a in registers, b transposed".
std::string print(const Product& product);

}  // namespace flashjit

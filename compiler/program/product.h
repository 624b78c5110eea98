// A matrix product as data: target (rows x columns) += a (rows x depth) * b (depth x columns), of one issuer.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace flashjit {

enum class Issuer { Warp, Warpgroup };
constexpr int threads_of(Issuer issuer) { return issuer == Issuer::Warp ? 32 : 128; }

struct Product {
  std::string_view name;          // of what it makes: its function is multiply_<name>
  std::string_view target, a, b;  // buffers; a and b in the memory that the instruction reads them from
  Issuer issuer = Issuer::Warp;
  int rows = 0, columns = 0, depth = 0;
  int m = 0, n = 0, k = 0;  // of one instruction
  bool a_in_registers = false;
  bool b_transposed = false;     // b's rows are contiguous along the columns of the target, as those of V
  bool accumulates = false;      // onto what is there, unless told to begin anew; else always anew
  bool replaces = false;         // nothing that was in the target is of interest, so it may lie elsewhere until then
  bool b_in_rows = false;        // b is rows of 16 bytes one below the other, not swizzled
  int unroll = 0;                // steps along the depth that are unrolled; 0: all
  std::string_view remark = {};  // for who reads the generated code
};

// An fp32 accumulator is spread evenly over the threads of its issuer.
constexpr int accumulator_registers(const Product& p) { return p.rows * p.columns / threads_of(p.issuer); }
constexpr int accumulator_registers(std::span<const Product> products) {
  int sum = 0;
  for (const Product& p : products) sum += accumulator_registers(p);
  return sum;
}

// "m64n128k16 by a warpgroup, depth 128, a in registers, b transposed"
std::string print(const Product& product);

}  // namespace flashjit

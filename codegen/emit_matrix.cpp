#include "codegen/emit_matrix.h"

#include <string_view>

#include <fmt/format.h>

namespace flashjit {
namespace {

constexpr int kOperandsPerLine = 8;

// `count` operands, eight to a line; `operand` is called with the number of each.
template <class Operand>
std::string operands(int count, std::string_view new_line, const Operand& operand) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    if (i > 0) text += i % kOperandsPerLine == 0 ? fmt::format(",{}", new_line) : ", ";
    text += operand(i);
  }
  return text;
}

struct Product {
  std::string_view comment;
  std::string_view name;       // of the function
  char sum;                    // its accumulator
  std::string_view arguments;  // between the accumulator and `accumulate`
  std::string_view inputs;     // constraints of these arguments
  int a_operands;              // 1: a descriptor, or 4 registers; B is a descriptor
  std::string_view immediates; // after the predicate
};

std::string function(const Product& product, int columns, std::string_view element) {
  const int sums = columns / 2, b = sums + product.a_operands;
  const std::string a = product.a_operands == 1
                            ? fmt::format("%{}", sums)
                            : fmt::format("{{%{}, %{}, %{}, %{}}}", sums, sums + 1, sums + 2, sums + 3);
  std::string text = fmt::format("{}\n__device__ inline void {}(float (&{})[{}], {}, int accumulate) {{\n", product.comment,
                                 product.name, product.sum, sums, product.arguments);
  text += "  asm volatile(\n      \"{\\n\"\n      \".reg .pred p;\\n\"\n";
  text += fmt::format("      \"setp.ne.b32 p, %{}, 0;\\n\"\n", b + 1);
  text += fmt::format("      \"wgmma.mma_async.sync.aligned.m64n{}k16.f32.{}.{}\\n\"\n", columns, element, element);
  text += fmt::format("      \"{{{}}},\\n\"\n", operands(sums, "\\n\"\n      \" ", [](int i) { return fmt::format("%{}", i); }));
  text += fmt::format("      \"{}, %{}, p, {};\\n\"\n      \"}}\\n\"\n", a, b, product.immediates);
  text += fmt::format("      : {}\n", operands(sums, "\n        ", [&](int i) { return fmt::format("\"+f\"({}[{}])", product.sum, i); }));
  text += fmt::format("      : {}, \"r\"(accumulate));\n}}\n", product.inputs);
  return text;
}

}  // namespace

std::string emit_matrix(const KernelConfig& c) {
  const std::string_view element = c.element == Element::f16 ? "f16" : "bf16";
  const int columns = output_columns(c);
  const std::string scores_comment =
      fmt::format("// S (64 x {0}) = or += Q (64 x 16) K^T (16 x {0}): both from shared memory.", c.tile_kv);
  const std::string output_comment = fmt::format(
      "// O (64 x {0}) = or += P (64 x 16, registers) V (16 x {0}).{1}", columns,
      c.sum_in_matrix ? "\n// The last eight columns are ones beside V: they sum the rows of P." : "");
  const Product scores = {scores_comment, "multiply_scores", 's', "u64 q, u64 k", "\"l\"(q), \"l\"(k)", 1, "1, 1, 0, 0"};
  const Product output = {output_comment, "multiply_output", 'o', "const u32 (&p)[4], u64 v",
                          "\"r\"(p[0]), \"r\"(p[1]), \"r\"(p[2]), \"r\"(p[3]), \"l\"(v)", 4, "1, 1, 1"};
  return "#pragma once\n\n#include \"templates/device.cuh\"\n\nnamespace flashjit {\n\n" + function(scores, c.tile_kv, element) +
         "\n" + function(output, columns, element) + "\n}  // namespace flashjit\n";
}

}  // namespace flashjit

#include "codegen/cuda/matrix.h"

#include <string>
#include <string_view>
#include <vector>

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

// A product as one asm statement: the compiler takes a tenth longer (70 of 700 ms at d=128) over a statement for each
// step, because of the operands, and makes the same machine code of it. `step` is the name of a macro of one step;
// `steps` its uses.
struct Product {
  std::string comment;
  std::string_view name;  // of the function
  char sum;               // its accumulator
  int columns;            // of that
  std::string arguments;  // after the accumulator
  std::string inputs;     // constraints of these arguments
  std::string registers;  // PTX: declarations
  std::string begin;      // PTX: before the first step
  std::string_view macro_arguments;
  std::string macro;     // PTX of a step, but for the accumulators
  std::string operands;  // of the instruction, after the accumulators
  std::vector<std::string> steps;
};

std::string function(const Product& product, std::string_view element) {
  const int sums = product.columns / 2;
  std::string text = product.comment + "\n";
  text += fmt::format("#define STEP({}) \\\n", product.macro_arguments);
  text += product.macro;
  text +=
      fmt::format("  \"wgmma.mma_async.sync.aligned.m64n{}k16.f32.{}.{}\\n\" \\\n", product.columns, element, element);
  text += fmt::format("  \"{{{}}},\\n\" \\\n",
                      operands(sums, "\\n\" \\\n  \" ", [](int i) { return fmt::format("%{}", i); }));
  text += fmt::format("  \"{};\\n\"\n", product.operands);
  text += fmt::format("__device__ inline void {}(float (&{})[{}], {}) {{\n", product.name, product.sum, sums,
                      product.arguments);
  text += fmt::format("  asm volatile(\n      \"{{\\n\"\n      \"{}\\n\"\n", product.registers);
  if (!product.begin.empty()) text += fmt::format("      \"{}\\n\"\n", product.begin);
  for (const std::string& step : product.steps) text += fmt::format("      STEP({})\n", step);
  text += "      \"}\"\n";
  text += fmt::format("      : {}\n", operands(sums, "\n        ",
                                               [&](int i) { return fmt::format("\"+f\"({}[{}])", product.sum, i); }));
  text += fmt::format("      : {});\n}}\n#undef STEP\n", product.inputs);
  return text;
}

// S (64 x tile_kv) = Q K^T. Operands: S, the low words of the descriptors of Q and K.
Product scores_of(const KernelConfig& c) {
  const HopperLayout layout = hopper_layout(c);
  const int sums = c.tile_kv / 2, steps = padded_dim_qk(c) / 16, panel_steps = kPanelWidth / 32;
  Product product;
  product.comment = fmt::format("// S (64 x {0}) = Q (64 x {1}) K^T (16 x {0} at a time): both from shared memory.",
                                c.tile_kv, 16 * steps);
  product.name = "multiply_scores";
  product.sum = 's';
  product.columns = c.tile_kv;
  product.arguments = "u32 q, u32 k";
  product.inputs = "\"r\"(q), \"r\"(k)";
  product.registers = ".reg .b32 low;\\n .reg .b64 q, k;";
  product.macro_arguments = "q_step, k_step, accumulate";
  product.macro = fmt::format(
      "  \"add.u32 low, %{}, \" #q_step \";\\n mov.b64 q, {{low, {:#x}}};\\n\" \\\n"
      "  \"add.u32 low, %{}, \" #k_step \";\\n mov.b64 k, {{low, {:#x}}};\\n\" \\\n",
      sums, kDescriptorHigh, sums + 1, kDescriptorHigh);
  product.operands = " q, k, \" #accumulate \", 1, 1, 0, 0";
  for (int step = 0; step < steps; ++step) {
    const int panel = step / panel_steps, within = step % panel_steps * 32;
    product.steps.push_back(fmt::format("{}, {}, {}", (panel * layout.q.panel_bytes() + within) / 16,
                                        (panel * layout.k.panel_bytes() + within) / 16, step > 0 ? 1 : 0));
  }
  return product;
}

// O (64 x columns) = or += P V. Operands: O, P, the low word of the descriptor of V, whether to accumulate.
Product output_of(const KernelConfig& c) {
  const int columns = output_columns(c), sums = columns / 2, steps = c.tile_kv / 16, v = sums + 4 * steps;
  Product product;
  product.comment =
      fmt::format("// O (64 x {}) = or += P (64 x {}, registers) V (16 rows at a time).{}", columns, c.tile_kv,
                  c.sum_in_matrix ? "\n// The last eight columns are ones beside V: they sum the rows of P." : "");
  product.name = "multiply_output";
  product.sum = 'o';
  product.columns = columns;
  product.arguments = fmt::format("const u32 (&p)[{}][4], u32 v, int accumulate", steps);
  product.inputs =
      operands(4 * steps, "\n        ", [](int i) { return fmt::format("\"r\"(p[{}][{}])", i / 4, i % 4); }) +
      ",\n        \"r\"(v), \"r\"(accumulate)";
  product.registers = ".reg .b32 low;\\n .reg .b64 v;\\n .reg .pred more;";
  product.begin = fmt::format("setp.ne.b32 more, %{}, 0;", v + 1);
  product.macro_arguments = "v_step, p0, p1, p2, p3, accumulate";
  product.macro =
      fmt::format("  \"add.u32 low, %{}, \" #v_step \";\\n mov.b64 v, {{low, {:#x}}};\\n\" \\\n", v, kDescriptorHigh);
  product.operands = " {\" #p0 \", \" #p1 \", \" #p2 \", \" #p3 \"}, v, \" #accumulate \", 1, 1, 1";
  for (int step = 0; step < steps; ++step) {
    const int p = sums + 4 * step;
    product.steps.push_back(fmt::format("{}, %{}, %{}, %{}, %{}, {}", step * 16 * kPanelWidth / 16, p, p + 1, p + 2,
                                        p + 3, step > 0 ? "1" : "more"));
  }
  return product;
}

}  // namespace

std::string emit_matrix(const KernelConfig& c) {
  const std::string_view element = c.element == Element::f16 ? "f16" : "bf16";
  return "#pragma once\n\n#include \"templates/device.cuh\"\n\nnamespace flashjit {\n\n" +
         function(scores_of(c), element) + "\n" + function(output_of(c), element) + "\n}  // namespace flashjit\n";
}

}  // namespace flashjit

#include "codegen/cuda/matrix.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "templates/tile_layouts.h"

namespace flashjit {
namespace {

constexpr int kOperandsPerLine = 8;

// Returns `count` operands, eight to a line; `operand` is called with the number of each.
template <class Operand>
std::string operands(int count, std::string_view new_line, const Operand& operand) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    if (i > 0) text += i % kOperandsPerLine == 0 ? fmt::format(",{}", new_line) : ", ";
    text += operand(i);
  }
  return text;
}

// A product is one asm statement. The compiler takes a tenth longer (70 of 700 ms at d=128) than over a statement for
// each step, because of the operands, and makes the same machine code of it.
struct Statement {
  std::string arguments;  // The arguments of the function, after the accumulator.
  std::string inputs;     // The constraints of these arguments.
  std::string registers;  // PTX: the declarations.
  std::string begin;      // PTX: the code before the first step.
  std::string step;       // The arguments of the macro of a step.
  std::string body;       // PTX: the macro's body, without the accumulators.
  std::string operands;   // The operands of the instruction, after the accumulators.
  std::vector<std::string> steps;
};

// Returns the code by which every step advances the low word of an operand's descriptor in shared memory.
std::string advance(std::string_view name, int operand, std::string_view high = "DESCRIPTOR_HIGH") {
  return fmt::format("  \"add.u32 low, %{0}, \" #{1}_step \";\\n mov.b64 {1}, {{low, \" {2} \"}};\\n\" \\\n", operand,
                     name, high);
}

// Returns where step `step` of an operand begins, in units of 16 bytes: along its rows, panel by panel, or, if it is
// read transposed, down its rows.
int step_offset(const Product& p, int step, bool transposed, int panel_bytes) {
  if (transposed) return step * p.k * kPanelWidth / 16;
  constexpr int kStepsOfPanel = kPanelWidth / kStepBytes;
  return (step / kStepsOfPanel * panel_bytes + step % kStepsOfPanel * kStepBytes) / 16;
}

// Instructions of 8 bits read no operand transposed, and have no word for it.
bool knows_transposed(const Product& p) { return p.k < kStepBytes; }
std::string_view transposed(const Product& p) { return !knows_transposed(p) ? "" : p.b_transposed ? ", 1" : ", 0"; }

// Takes both operands from shared memory: the function gets the low words of their descriptors.
Statement of_shared(const Product& p, char a, char b, int a_panel, int b_panel) {
  const int sums = accumulator_registers(p), steps = p.depth / p.k;
  Statement s;
  s.arguments = fmt::format("u32 {}, u32 {}", a, b);
  s.inputs = fmt::format("\"r\"({}), \"r\"({})", a, b);
  s.registers = fmt::format(".reg .b32 low;\\n .reg .b64 {}, {};", a, b);
  s.step = fmt::format("{}_step, {}_step, accumulate", a, b);
  s.body = advance(std::string_view(&a, 1), sums) + advance(std::string_view(&b, 1), sums + 1);
  s.operands =
      fmt::format(" {}, {}, \" #accumulate \", 1, 1{}{}", a, b, knows_transposed(p) ? ", 0" : "", transposed(p));
  for (int step = 0; step < steps; ++step) {
    s.steps.push_back(fmt::format("{}, {}, {}", step_offset(p, step, false, a_panel),
                                  step_offset(p, step, p.b_transposed, b_panel), step > 0 || p.accumulates ? 1 : 0));
  }
  return s;
}

// Takes the first operand from registers, four a step. If the product accumulates at all, a call decides whether its
// first step does.
Statement of_registers(const Product& p, char a, char b, int b_panel) {
  const int sums = accumulator_registers(p), steps = p.depth / p.k, low = sums + 4 * steps;
  Statement s;
  s.arguments = fmt::format("const u32 (&{})[{}][4], u32 {}{}", a, steps, b, p.accumulates ? ", int accumulate" : "");
  s.inputs =
      operands(4 * steps, "\n        ", [&](int i) { return fmt::format("\"r\"({}[{}][{}])", a, i / 4, i % 4); }) +
      fmt::format(",\n        \"r\"({}){}", b, p.accumulates ? ", \"r\"(accumulate)" : "");
  s.registers = fmt::format(".reg .b32 low;\\n .reg .b64 {};{}", b, p.accumulates ? "\\n .reg .pred more;" : "");
  if (p.accumulates) s.begin = fmt::format("setp.ne.b32 more, %{}, 0;", low + 1);
  s.step = fmt::format("{1}_step, {0}0, {0}1, {0}2, {0}3, accumulate", a, b);
  s.body = advance(std::string_view(&b, 1), low, p.b_in_rows ? "ROWS_DESCRIPTOR_HIGH" : "DESCRIPTOR_HIGH");
  s.operands = fmt::format(" {{\" #{0}0 \", \" #{0}1 \", \" #{0}2 \", \" #{0}3 \"}}, {1}, \" #accumulate \", 1, 1{2}",
                           a, b, transposed(p));
  for (int step = 0; step < steps; ++step) {
    const int r = sums + 4 * step;
    s.steps.push_back(fmt::format("{}, %{}, %{}, %{}, %{}, {}", step_offset(p, step, p.b_transposed, b_panel), r, r + 1,
                                  r + 2, r + 3,
                                  step > 0        ? "1"
                                  : p.accumulates ? "more"
                                                  : "0"));
  }
  return s;
}

std::string function_of(const Product& p, const Statement& s, char sum, std::string_view comment,
                        std::string_view elements) {
  const int sums = accumulator_registers(p);
  std::string text = fmt::format("{}\n#define STEP({}) \\\n{}", comment, s.step, s.body);
  text += fmt::format("  \"wgmma.mma_async.sync.aligned.m{}n{}k{}.f32.{}\\n\" \\\n", p.m, p.n, p.k, elements);
  text += fmt::format("  \"{{{}}},\\n\" \\\n",
                      operands(sums, "\\n\" \\\n  \" ", [](int i) { return fmt::format("%{}", i); }));
  text += fmt::format("  \"{};\\n\"\n", s.operands);
  text += fmt::format("__device__ inline void multiply_{}(float (&{})[{}], {}) {{\n", p.name, sum, sums, s.arguments);
  text += fmt::format("  asm volatile(\n      \"{{\\n\"\n      \"{}\\n\"\n", s.registers);
  if (!s.begin.empty()) text += fmt::format("      \"{}\\n\"\n", s.begin);
  for (const std::string& step : s.steps) text += fmt::format("      STEP({})\n", step);
  text += "      \"}\"\n";
  text += fmt::format("      : {}\n", operands(sums, "\n        ", [&](int i) {
                        return fmt::format("\"{}f\"({}[{}])", p.replaces ? '=' : '+', sum, i);
                      }));
  return text + fmt::format("      : {});\n}}\n#undef STEP\n", s.inputs);
}

// Returns the letter that a buffer goes by in PTX: "Qs" is q, "S" and "dS" are s.
char upper(std::string_view buffer) {
  return *std::ranges::find_if(buffer, [](char c) { return c >= 'A' && c <= 'Z'; });
}
char letter(std::string_view buffer) { return static_cast<char>(upper(buffer) - 'A' + 'a'); }

std::string emit(const Program& program, const Product& p) {
  const auto panel_bytes = [&](std::string_view name) {
    return std::stoi(program.buffers[static_cast<std::size_t>(program.buffer(name))].rows) * kPanelWidth;
  };
  const char sum = letter(p.target), a = letter(p.a), b = letter(p.b);
  const char name[3] = {upper(p.target), upper(p.a), upper(p.b)};
  const auto dtype = [&](std::string_view name) {
    return program.buffers[static_cast<std::size_t>(program.buffer(name))].dtype;
  };
  // An operand that comes from registers is converted to the type of the other operand; operands of 8 bits may differ.
  const std::string elements =
      fmt::format("{}.{}", code_name(dtype(size_of(dtype(p.b)) == 1 ? p.a : p.b)), code_name(dtype(p.b)));
  if (!p.a_in_registers) {
    const std::string comment = fmt::format(
        "// {0} ({1} x {2}) {7} {3} ({1} x {4}) {5}{8} ({6} x {2} at a time): both from shared memory.", name[0],
        p.rows, p.columns, name[1], p.depth, name[2], p.k, p.accumulates ? "+=" : "=", p.b_transposed ? "" : "^T");
    return function_of(p, of_shared(p, a, b, panel_bytes(p.a), panel_bytes(p.b)), sum, comment, elements);
  }
  std::string comment =
      fmt::format("// {0} ({1} x {2}) {7} {3} ({1} x {4}, registers) times {5}, in steps of {6}.", name[0], p.rows,
                  p.columns, name[1], p.depth, name[2], p.k, p.accumulates ? "= or +=" : "=");
  if (!p.remark.empty()) comment += fmt::format("\n// {}", p.remark);
  return function_of(p, of_registers(p, a, b, panel_bytes(p.b)), sum, comment, elements);
}

// Collects the products of the statements, those in a loop before those that follow the loop, and each function once.
void collect(const std::vector<flashjit::Statement>& body, std::vector<Product>& products) {
  for (const flashjit::Statement& s : body) {
    const auto known = [&](const Product& p) { return p.name == s.product.name; };
    if (s.kind == Kind::Mma && s.product.issuer == Issuer::Warpgroup && std::ranges::none_of(products, known))
      products.push_back(s.product);
    collect(s.body, products);
  }
}

}  // namespace

std::string emit_matrix(const Program& program) {
  std::vector<Product> products;
  collect(program.body, products);
  if (products.empty()) return {};
  std::string text = fmt::format(
      "#pragma once\n\n#include \"templates/device.cuh\"\n\nnamespace flashjit {{\n\n"
      "// A step adds to the low word of an operand's descriptor where it begins, in 16 bytes: {} bytes further in its\n"
      "// rows, panel by panel, or, where rows are what is multiplied, {} rows of {} bytes further down. The\n"
      "// immediates behind `accumulate` are the signs of both operands, and which of those in shared memory are transposed.\n"
      "#define DESCRIPTOR_HIGH \"{:#x}\"  // swizzled in {} bytes, {} from eight rows to the next\n",
      kStepBytes, products.front().k, kPanelWidth, kDescriptorHigh, kPanelWidth, 8 * kPanelWidth);
  const bool in_rows = std::ranges::any_of(products, &Product::b_in_rows);
  if (in_rows)
    text += fmt::format("#define ROWS_DESCRIPTOR_HIGH \"{:#x}\"  // rows of 16 bytes\n", kRowsDescriptorHigh);
  for (const Product& product : products) text += "\n" + emit(program, product);
  if (in_rows) text += "\n#undef ROWS_DESCRIPTOR_HIGH";
  return text + "\n#undef DESCRIPTOR_HIGH\n\n}  // namespace flashjit\n";
}

}  // namespace flashjit

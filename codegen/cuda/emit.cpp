#include "codegen/cuda/emit.h"

#include <algorithm>
#include <string_view>
#include <type_traits>

#include <fmt/format.h>

#include "codegen/cuda/expr.h"
#include "codegen/cuda/embedded_templates.h"
#include "codegen/cuda/matrix.h"
#include "compiler/analysis/score_inputs.h"
#include "compiler/families/family.h"
#include "compiler/spec/config_words.h"

namespace flashjit {
namespace {

// Text for a // comment. What a user wrote goes through here: nothing in it can end the line or continue it.
std::string comment_text(std::string_view text) {
  std::string clean;
  for (char c : text) clean += c >= ' ' && c <= '~' && c != '\\' ? c : ' ';
  return clean;
}

std::string header(const Plan& plan, std::string_view what) {
  const std::string spec = comment_text(print(plan.spec)), schedule = print(plan.schedule);
  return fmt::format(
      "// {}\n"
      "//   spec      {}\n"
      "//   schedule  {}\n"
      "//   target    {}\n"
      "// Generated; made again by: flashjit compile '{}' --arch {} --schedule {} --emit cuda --out DIR\n",
      what, spec, schedule, plan.target.name, spec, plan.target.name, schedule);
}

// A float literal that reads back as the same float.
std::string float_literal(float value) {
  std::string text = fmt::format("{:.9g}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text + "f";
}

template <class T>
std::string literal(T value) {
  if constexpr (std::is_enum_v<T>) return fmt::format("{}::{}", Words<T>::type, word(value));
  else if constexpr (std::is_same_v<T, float>) return float_literal(value);
  else return fmt::format("{}", value);
}

// What a KernelConfig says of the problem: the name, the field, and whether it is written down also where it is at its
// default, because a reader looks for it. What the schedule says, its own table writes down
// (compiler/spec/schedule.cpp).
template <class Visit>
void for_each_problem_field(const Visit& field) {
  field("element", &KernelConfig::element, true);
  field("output", &KernelConfig::output, true);
  field("head_dim_qk", &KernelConfig::head_dim_qk, true);
  field("head_dim_v", &KernelConfig::head_dim_v, true);
  field("heads_q", &KernelConfig::heads_q, true);
  field("heads_kv", &KernelConfig::heads_kv, true);
  field("sequences", &KernelConfig::sequences, false);
  field("lse", &KernelConfig::lse, false);
  field("max_logit", &KernelConfig::max_logit, false);
  field("sink", &KernelConfig::sink, false);
  field("scale", &KernelConfig::scale, true);
  field("has_score", &KernelConfig::has_score, false);
  field("score_has_tanh", &KernelConfig::score_has_tanh, false);
  field("score_cap", &KernelConfig::score_cap, false);
  field("score_factor", &KernelConfig::score_factor, false);
  field("score_loads", &KernelConfig::score_loads, false);
  field("inputs_16", &KernelConfig::inputs_16, false);
  field("inputs_32", &KernelConfig::inputs_32, false);
  field("inputs_q", &KernelConfig::inputs_q, false);
  field("inputs_of_batches", &KernelConfig::inputs_of_batches, false);
  field("has_mask", &KernelConfig::has_mask, false);
  field("mask_has_holes", &KernelConfig::mask_has_holes, false);
  field("mask_is_range", &KernelConfig::mask_is_range, false);
  field("copy_bytes", &KernelConfig::copy_bytes, false);
}

std::string emit_config(const Plan& plan) {
  const KernelConfig usual;
  std::string body;
  for_each_problem_field([&](std::string_view name, auto member, bool always) {
    const auto value = plan.config.*member;
    if (always || value != usual.*member) body += fmt::format("  c.{} = {};\n", name, literal(value));
  });
  body += "\n";
  for (const auto& [name, value] : config_text(plan.config)) body += fmt::format("  c.{} = {};\n", name, value);
  return header(plan, "What this kernel is; what is not named here is at its default in templates/kernel_config.h.") +
         "#pragma once\n\n#include \"templates/kernel_config.h\"\n\nnamespace flashjit {\n\n"
         "constexpr KernelConfig kernel_config() {\n  KernelConfig c;\n" +
         body + "  return c;\n}\nconstexpr KernelConfig config = kernel_config();\n\n}  // namespace flashjit\n";
}

// The leaves of `exprs` that live in seq, as locals.
std::string locals(const std::vector<Expr>& exprs, const CudaExprContext& context) {
  std::string text;
  for (const Variable v : {Variable::B, Variable::H, Variable::Hk, Variable::QLen, Variable::KLen}) {
    if (std::ranges::none_of(exprs, [&](const Expr& expr) { return uses(expr, v); })) continue;
    text += fmt::format("  const {0} {1} = seq.{1};\n", context.wide_ints ? "Int64" : "int", name(v));
  }
  return text;
}

// One function of variant.gen.cuh.
std::string function(std::string_view comment, std::string_view declaration, const Expr& expr,
                     const CudaExprContext& context) {
  return fmt::format("// {}\n__device__ inline {} {{\n{}{}}}\n\n", comment, declaration, locals({expr}, context),
                     cuda_function_body(expr, context));
}

std::string mask_function(const Plan& plan) {
  const CudaExprContext context{&plan.spec.params, plan.wide_ints, !plan.wide_ints};
  return function(plan.wide_ints ? "May query q see key k?" : "May query q see key k?\ntemplate <class Key>",
                  fmt::format("bool visible(const KernelParams& params, const Sequence& seq, {})",
                              plan.wide_ints ? "Int64 q, Int64 k" : "int q, Key k"),
                  plan.spec.mask ? plan.spec.mask : Expr::boolean(true), context);
}

std::string score_function(const Plan& plan) {
  const CudaExprContext context{&plan.spec.params, plan.wide_ints, true};
  // With 64-bit ints nothing may be computed from 32-bit operands alone: there the key is one of them, not a symbol.
  const std::string_view key = plan.wide_ints ? "" : ", class Key",
                         ends = plan.wide_ints ? "Int64 q, Int64 k" : "int q, Key k";
  return function(
      fmt::format(
          "The logit of query q and key k; s is scale * q.k. Numbers are plain ones, or those of templates/symbolic.cuh.\n"
          "template <class Math, class Params, class Number{}>",
          key),
      fmt::format("auto score(Math math, const Params& params, const Sequence& seq, Number s, {})", ends),
      plan.spec.score ? plan.spec.score : Expr::variable(Variable::S), context);
}

// For kernels whose producer copies what the score reads at every key.
std::string inputs_function(const Plan& plan) {
  const CudaExprContext context{&plan.spec.params, plan.wide_ints};
  const std::vector<Expr> inputs = score_inputs(plan.spec.score);
  return fmt::format(
      "// The tensors that score() reads at every key: their indices besides query and key.\n"
      "template <class Visit>\n"
      "__device__ inline void visit_inputs(const KernelParams& params, const Sequence& seq, const Visit& visit) {{\n"
      "{}{}}}\n\n",
      locals(inputs, context), cuda_visit_inputs(inputs, context));
}

std::string emit_variant(const Plan& plan) {
  const CudaExprContext context{&plan.spec.params, plan.wide_ints};
  const std::string_view integer = plan.wide_ints ? "Int64" : "int";
  const auto declared = [&](std::string_view name, std::initializer_list<std::string_view> ints) {
    std::string text = fmt::format("{}(const KernelParams& params, const Sequence& seq", name);
    for (const std::string_view argument : ints) text += fmt::format(", {} {}", integer, argument);
    return text + ")";
  };
  const Expr yes = Expr::boolean(true);
  const TileAnalysis& t = plan.tiles;

  std::string text = header(plan, "The mask and the score of this kernel.");
  text +=
      "#pragma once\n\n#include \"templates/extra_params.cuh\"\n#include \"templates/scalar_math.cuh\"\n"
      "#include \"templates/sequence.cuh\"\n\nnamespace flashjit {\n\n";
  text += mask_function(plan);
  text += score_function(plan);
  if (plan.config.inputs_16 | plan.config.inputs_32) text += inputs_function(plan);
  text += function("Queries q_lo..q_hi see nothing before this key ...", declared("int kv_begin", {"q_lo", "q_hi"}),
                   t.begin, context);
  text += function("... and nothing from this one on.", declared("int kv_end", {"q_lo", "q_hi"}), t.end, context);
  text += function("Keys from this one ...", declared("int full_begin", {"q_lo", "q_hi"}), t.full_begin, context);
  text += function("... to before this one are visible to all of them.", declared("int full_end", {"q_lo", "q_hi"}),
                   t.full_end, context);
  text += function("False only if no query of q_lo..q_hi sees any key of k_lo..k_hi.",
                   declared("bool may_see", {"q_lo", "q_hi", "k_lo", "k_hi"}), t.may_see ? t.may_see : yes, context);
  return text + "}  // namespace flashjit\n";
}

// The embedded templates that `text` includes, and those they include.
Result<void> collect_headers(std::string_view text, std::vector<SourceFile>& headers) {
  constexpr std::string_view kInclude = "#include \"templates/";
  for (std::size_t at = text.find(kInclude); at != std::string_view::npos; at = text.find(kInclude, at + 1)) {
    const std::size_t begin = at + std::string_view("#include \"").size();
    const std::string_view name = text.substr(begin, text.find('"', begin) - begin);
    const auto has_name = [&](const auto& file) { return file.name == name; };
    if (std::ranges::any_of(headers, has_name)) continue;
    const auto embedded = std::ranges::find_if(embedded_templates(), has_name);
    if (embedded == embedded_templates().end()) return internal(fmt::format("{} is included but not embedded", name));
    headers.push_back({std::string(name), std::string(embedded->text)});
    FLASHJIT_TRY(collect_headers(embedded->text, headers));
  }
  return {};
}

// One kernel: what it takes, and the function of the loop that it is.
std::string emit_entry(const Plan& plan, const KernelLaunch& launch) {
  std::string arguments = "const __grid_constant__ flashjit::KernelParams params";
  if (launch.tensor_maps) arguments += ",\n    const __grid_constant__ flashjit::TensorMaps maps";
  for (const int number : launch.buffers) {
    const WorkspaceBuffer& buffer = plan.workspace[static_cast<std::size_t>(number)];
    arguments += fmt::format(", {}* {}", buffer.type, buffer.name);
  }
  return fmt::format("\nextern \"C\" __global__ void __launch_bounds__({})\n{}({}) {{\n  flashjit::{};\n}}\n",
                     launch.bounds, launch.entry, arguments, launch.call);
}

}  // namespace

Result<KernelSource> emit_cuda(const Plan& plan) {
  if (!plan.target.gpu) return internal(fmt::format("emit_cuda: target {} is not a GPU", plan.target.name));
  const FamilyRow& family = *plan.schedule.family;
  KernelSource source;
  source.generated = {{"config.gen.cuh", emit_config(plan)}, {"variant.gen.cuh", emit_variant(plan)}};
  if (const std::string products = emit_matrix(plan.program); !products.empty()) {
    source.generated.push_back({"matrix.gen.cuh", header(plan, "The matrix products of this kernel.") + products});
  }
  std::string entry = header(plan, family.summary);
  entry += fmt::format("#include \"config.gen.cuh\"\n#include \"{}\"\n", family.loop_file);
  for (const KernelLaunch& launch : plan.launches) entry += emit_entry(plan, launch);
  source.generated.push_back({"entry.cu", std::move(entry)});  // last: it is the one to compile
  for (const SourceFile& file : source.generated) FLASHJIT_TRY(collect_headers(file.text, source.headers));
  return source;
}

}  // namespace flashjit

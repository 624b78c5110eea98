#include "codegen/cuda/emit.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "codegen/cuda/expr.h"
#include "codegen/cuda/embedded_templates.h"
#include "codegen/cuda/matrix.h"
#include "compiler/analysis/score_inputs.h"

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

std::string_view element_name(Element element) {
  switch (element) {
    case Element::f16: return "Element::f16";
    case Element::bf16: return "Element::bf16";
    case Element::f32: return "Element::f32";
  }
  return "";
}

std::string_view lse_name(LseBase base) {
  switch (base) {
    case LseBase::none: return "LseBase::none";
    case LseBase::natural: return "LseBase::natural";
    case LseBase::log2: return "LseBase::log2";
  }
  return "";
}

std::string_view reference_name(Reference reference) {
  switch (reference) {
    case Reference::lazy: return "Reference::lazy";
    case Reference::tile: return "Reference::tile";
    case Reference::previous: return "Reference::previous";
    case Reference::first: return "Reference::first";
  }
  return "";
}

std::string_view exclusive_name(Exclusive exclusive) {
  switch (exclusive) {
    case Exclusive::none: return "Exclusive::none";
    case Exclusive::issue: return "Exclusive::issue";
    case Exclusive::softmax: return "Exclusive::softmax";
  }
  return "";
}

// A float literal that reads back as the same float.
std::string float_literal(float value) {
  std::string text = fmt::format("{:.9g}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text + "f";
}

template <class Field>
void sync_fields(const KernelConfig& c, const Field& field) {
  field("tile_q", c.tile_q);
  field("tile_kv", c.tile_kv);
  field("warps", c.warps);
  field("stages", c.stages);
  field("q_in_registers", c.q_in_registers);
  field("blocks_per_sm", c.blocks_per_sm);
  field("longest_first", c.longest_first);
  field("unroll_d", c.unroll_d);
}

template <class Field>
void hopper_fields(const KernelConfig& c, const Field& field) {
  field("loop", "Loop::hopper");
  field("tile_q", c.tile_q);
  field("tile_kv", c.tile_kv);
  field("stages", c.stages);
  field("longest_first", c.longest_first);
  field("mask_is_range", c.mask_is_range);
  field("reference", reference_name(c.reference));
  field("warpgroups", c.warpgroups);
  field("q_stages", c.q_stages);
  field("overlap", c.overlap);
  field("exclusive", exclusive_name(c.exclusive));
  field("fma_exponentials", c.fma_exponentials);
  field("sum_in_matrix", c.sum_in_matrix);
  field("persistent", c.persistent);
  field("cluster", c.cluster);
  field("pack_heads", c.pack_heads);
  field("inputs_16", c.inputs_16);
  field("inputs_32", c.inputs_32);
  field("inputs_q", c.inputs_q);
  field("inputs_of_batches", c.inputs_of_batches);
}

std::string emit_config(const Plan& plan) {
  const KernelConfig& c = plan.config;
  std::string body;
  const auto field = [&](std::string_view name, auto value) { body += fmt::format("  c.{} = {};\n", name, value); };
  field("element", element_name(c.element));
  field("output", element_name(c.output));
  field("head_dim_qk", c.head_dim_qk);
  field("head_dim_v", c.head_dim_v);
  field("heads_q", c.heads_q);
  field("heads_kv", c.heads_kv);
  field("packed", c.packed);
  field("lse", lse_name(c.lse));
  field("max_logit", c.max_logit);
  field("sink", c.sink);
  field("scale", float_literal(c.scale));
  field("has_score", c.has_score);
  field("score_has_tanh", c.score_has_tanh);
  field("score_cap", float_literal(c.score_cap));
  field("score_factor", float_literal(c.score_factor));
  field("score_loads", c.score_loads);
  field("has_mask", c.has_mask);
  field("mask_has_holes", c.mask_has_holes);
  field("copy_bytes", c.copy_bytes);
  body += "\n";
  if (c.loop == Loop::hopper) hopper_fields(c, field);
  else sync_fields(c, field);
  return header(plan, "What this kernel is.") +
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
                   t.kv_begin, context);
  text += function("... and nothing from this one on.", declared("int kv_end", {"q_lo", "q_hi"}), t.kv_end, context);
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

// `entry` goes last: it is the one to compile.
Result<KernelSource> assemble(const Plan& plan, std::vector<SourceFile> extra, std::string entry,
                              std::vector<std::string> entries) {
  if (!plan.target.gpu) return internal(fmt::format("emit_cuda: target {} is not a GPU", plan.target.name));
  KernelSource source;
  source.generated = {{"config.gen.cuh", emit_config(plan)}, {"variant.gen.cuh", emit_variant(plan)}};
  for (SourceFile& file : extra) source.generated.push_back(std::move(file));
  source.generated.push_back({"entry.cu", std::move(entry)});
  source.entries = std::move(entries);
  for (const SourceFile& file : source.generated) FLASHJIT_TRY(collect_headers(file.text, source.headers));
  return source;
}

Result<KernelSource> emit_sync(const Plan& plan) {
  std::string entry = header(plan, "Forward attention, fused.") +
                      "#include \"config.gen.cuh\"\n#include \"templates/sync/forward.cuh\"\n\n"
                      "extern \"C\" __global__ void __launch_bounds__(flashjit::threads_of(flashjit::config), "
                      "flashjit::config.blocks_per_sm)\n"
                      "flashjit_forward(const __grid_constant__ flashjit::KernelParams params) {\n"
                      "  flashjit::sync_forward(params);\n}\n";
  return assemble(plan, {}, std::move(entry), {"flashjit_forward"});
}

Result<KernelSource> emit_hopper(const Plan& plan) {
  const std::string cluster =
      plan.config.cluster == 1 ? "" : fmt::format("__cluster_dims__({}, 1, 1) ", plan.config.cluster);
  std::string entry = header(plan, "Forward attention, fused, for Hopper: one warpgroup copies, the others compute.") +
                      "#include \"config.gen.cuh\"\n#include \"templates/hopper/forward.cuh\"\n\n"
                      "extern \"C\" __global__ void " +
                      cluster +
                      "__launch_bounds__(flashjit::hopper_threads(flashjit::config), 1)\n"
                      "flashjit_forward(const __grid_constant__ flashjit::KernelParams params,\n"
                      "                 const __grid_constant__ flashjit::TensorMaps maps) {\n"
                      "  flashjit::hopper_forward(params, maps);\n}\n";
  SourceFile matrix{"matrix.gen.cuh", header(plan, "The matrix products of this kernel.") + emit_matrix(plan.config)};
  return assemble(plan, {std::move(matrix)}, std::move(entry), {"flashjit_forward"});
}

}  // namespace

Result<KernelSource> emit_cuda(const Plan& plan) {
  return plan.config.loop == Loop::hopper ? emit_hopper(plan) : emit_sync(plan);
}

Result<KernelSource> emit_cuda_naive(const Plan& plan) {
  constexpr std::string_view kKernels[][2] = {{"scores", "naive_scores(params, scores)"},
                                              {"softmax", "naive_softmax(params, scores, probabilities)"},
                                              {"product", "naive_product(params, probabilities)"}};
  std::string entry = header(plan, "Forward attention, the textbook version: three kernels through memory.") +
                      "#include \"config.gen.cuh\"\n#include \"templates/naive/forward.cuh\"\n";
  std::vector<std::string> entries;
  for (const auto& [name, call] : kKernels) {
    entries.push_back(fmt::format("flashjit_naive_{}", name));
    entry += fmt::format(
        "\nextern \"C\" __global__ void __launch_bounds__(flashjit::kNaiveThreads)\n"
        "flashjit_naive_{}(const __grid_constant__ flashjit::KernelParams params, float* scores, flashjit::u16* probabilities) "
        "{{\n  flashjit::{};\n}}\n",
        name, call);
  }
  return assemble(plan, {}, std::move(entry), std::move(entries));
}

NaiveLaunch naive_launch(const KernelConfig& config, std::int64_t batch, int q_len, int k_len) {
  const std::int64_t heads = batch * config.heads_q;
  const std::int64_t tiles_q = (q_len + kNaiveTile - 1) / kNaiveTile, tiles_k = (k_len + kNaiveTile - 1) / kNaiveTile;
  NaiveLaunch launch;
  launch.grid[0] = heads * tiles_q * tiles_k;
  launch.grid[1] = heads * q_len;
  launch.grid[2] = heads * tiles_q;
  launch.smem[0] = naive_scores_smem(config);
  launch.smem[2] = naive_product_smem(config);
  launch.scores_bytes = heads * q_len * k_len * 4;
  launch.probabilities_bytes = heads * q_len * naive_probability_stride(k_len) * 2;
  return launch;
}

}  // namespace flashjit

#include "codegen/cuda/emit.h"

#include <algorithm>
#include <span>
#include <string_view>

#include <fmt/format.h>

#include "codegen/cuda/expr.h"
#include "codegen/cuda/embedded_templates.h"
#include "codegen/cuda/loop.h"
#include "codegen/cuda/matrix.h"
#include "codegen/cuda/text.h"
#include "codegen/cuda/tile_pairs.h"
#include "compiler/analysis/gradient_reads.h"
#include "compiler/analysis/read_axes.h"
#include "compiler/analysis/score_inputs.h"
#include "compiler/families/family.h"
#include "compiler/language/gradient.h"
#include "compiler/program/config_fields.h"
#include "compiler/spec/config_words.h"

namespace flashjit {
namespace {

// Returns "//   NAME  TEXT", with TEXT broken into lines behind `separator`.
std::string comment_lines(std::string_view name, std::string_view text, char separator) {
  constexpr std::size_t kColumns = 110;
  std::string lines, line = fmt::format("//   {:<10}", name);
  const std::string indent = "//" + std::string(line.size() - 2, ' ');
  while (!text.empty()) {
    const std::string_view piece = text.substr(0, std::min(text.find(separator), text.size() - 1) + 1);
    text.remove_prefix(piece.size());
    const std::size_t end = piece.find_last_not_of(' ') + 1;  // A space at the end of a line need not fit.
    if (line.size() > indent.size() && line.size() + end > kColumns) {
      lines += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
      line = indent;
    }
    line += piece;
  }
  return lines + line + "\n";
}

// Returns the header of the file that describes the kernel. The other files point to that file.
std::string header(const Plan& plan, std::string_view what) {
  return fmt::format("// {}\n", what) + comment_lines("spec", comment_text(print(plan.spec)), ' ') +
         comment_lines("schedule", print(plan.schedule), ',') + comment_lines("target", plan.target.name, ' ') +
         fmt::format(
             "// Generated; made again by: flashjit compile SPEC --arch {} --schedule SCHEDULE --emit cuda --out DIR\n",
             plan.target.name);
}

// Emits config.gen.cuh.
std::string emit_config(const Plan& plan) {
  std::string body;
  const auto add = [&](std::span<const ConfigField> fields) {
    for (const ConfigField& field : fields) {
      if ((field.always && field.always(plan.spec)) || !field.is_default(plan.config))
        body += fmt::format("  c.{} = {};\n", field.name, field.literal(plan.config));
    }
  };
  add(problem_fields());
  body += "\n";
  add(schedule_fields());
  return header(plan, "What this kernel is; what is not named here is at its default in templates/kernel_config.h.") +
         "#pragma once\n\n#include \"templates/kernel_config.h\"\n\nnamespace flashjit {\n\n"
         "constexpr KernelConfig kernel_config() {\n  KernelConfig c;\n" +
         body + "  return c;\n}\nconstexpr KernelConfig config = kernel_config();\n\n}  // namespace flashjit\n";
}

std::string mask_function(const Plan& plan) {
  const CudaExprContext context{&plan.spec.params, plan.wide_ints, !plan.wide_ints};
  return function(plan.wide_ints ? "May query q see key k?" : "May query q see key k?\ntemplate <class Key>",
                  fmt::format("bool visible(const KernelParams& params, const Sequence& seq, {})",
                              plan.wide_ints ? "Int64 q, Int64 k" : "int q, Key k"),
                  body_of(plan.spec.mask, context));
}

// Emits a mask that combines a condition on what has been read with a range.
std::string split_mask(const Plan& plan, const ReadsAndRange& split, const CudaExprContext& context) {
  const bool of_keys = split.range.along == Axis::Keys;
  const std::string limit = fmt::format("(const KernelParams& params, const Sequence& seq, {0} {1}_lo, {0} {1}_hi)",
                                        plan.wide_ints ? "Int64" : "int", of_keys ? "q" : "k");
  const std::string of = of_keys ? "keys that queries q_lo..q_hi see" : "queries that see keys k_lo..k_hi";
  return "\n  static constexpr bool kReadsAndRange = true;\n" +
         function("Does what has been read let a query see a key? Besides it sees those of a range.",
                  "bool sees_by_reads(const KernelParams& params, const Sequence& seq, const QueryReads& of_query,\n"
                  "                            const KeyReads& of_key)",
                  body_of(split.by_reads, context)) +
         function("Where the range begins of " + of + ".", "int range_begin" + limit,
                  body_of(split.range.begin, context)) +
         function("Where the range ends of " + of + ".", "int range_end" + limit, body_of(split.range.end, context));
}

// Emits the mask by which lists are cut, in positions of the real sequence.
std::string list_mask_function(const Plan& plan) {
  const CudaExprContext context{&plan.spec.params, plan.wide_ints};
  return function("May query q see key k of its list?",
                  fmt::format("bool list_shows(const KernelParams& params, const Sequence& seq, {0} q, {0} k)",
                              plan.wide_ints ? "Int64" : "int"),
                  body_of(plan.spec.list_mask, context));
}

// Emits functions for queries with lists, whose numbers may belong to no row or page. Every key of a list of keys is
// checked. Tiles of a page that does not exist are passed over, and all others are seen.
std::string functions_of_lists(const Plan& plan) {
  const std::string_view number = plan.wide_ints ? "Int64" : "int";
  const std::string none_full = fmt::format("int full_end(const KernelParams&, const Sequence&, {0}, {0})", number);
  if (plan.config.merged_queries > 0)
    return function("Each query may have chosen none of the pages.", none_full, "return 0;\n");
  const std::string visible =
      function("Does key k, an index into the list, have a row?\ntemplate <class Key>",
               fmt::format("bool visible(const KernelParams& params, const Sequence& seq, {}, Key k)", number),
               "return is_chosen(params, seq, static_cast<int>(k));\n");
  if (!plan.config.whole_pages) {
    return visible + (plan.spec.list_mask ? list_mask_function(plan) : "") +
           function("Any key may have none.", none_full, "return 0;\n");
  }
  return visible +
         function("Tiles in a page that is there are seen up to the end; in others any key may have none.",
                  fmt::format("int full_end(const KernelParams&, const Sequence& seq, {0}, {0})", number),
                  "return kTilesChosenWhole ? seq.k_len : 0;\n") +
         function("Is there a page for some of these keys?",
                  fmt::format("bool may_see(const KernelParams& params, const Sequence& seq, {0}, {0}, {0} k_lo, {0} "
                              "k_hi)",
                              number),
                  "return are_some_chosen(params, seq, k_lo, k_hi);\n");
}

// Emits the mask for loops over many queries and keys at a time: what it reads at each of them is read once.
std::string separated_mask(const Plan& plan) {
  const SeparatedMask mask = separate_reads(plan.spec.mask);
  std::vector<NamedScalar> scalars;
  const CudaExprContext context{.params = &plan.spec.params, .wide_ints = plan.wide_ints, .scalars = &scalars};
  const std::string_view number = plan.wide_ints ? "Int64" : "int";
  std::string text;
  for (const Axis axis : {Axis::Queries, Axis::Keys}) {
    const std::string_view one = axis == Axis::Keys ? "key" : "query", type = axis == Axis::Keys ? "Key" : "Query";
    std::vector<Expr> values;
    for (const SeparatedMask::Value& value : mask.values) {
      if (value.axis != axis) continue;
      scalars.push_back({value.scalar, fmt::format("of_{}.of[{}]", one, values.size())});
      values.push_back(value.value);
    }
    if (values.empty()) continue;
    text += fmt::format("\n  static constexpr int k{0}Reads = {1};\n  struct {0}Reads {{\n    {2} of[{1}];\n  }};\n",
                        type, values.size(), number);
    text += function(fmt::format("What the mask reads at a {}.", one),
                     fmt::format("{}Reads read_at_{}(const KernelParams& params, const Sequence& seq, {} {})", type,
                                 one, number, axis == Axis::Keys ? "k" : "q"),
                     locals(values, context) + cuda_function_body(values, context));
  }
  if (const auto split = reads_and_range(mask, plan.schedule.family->axis))
    return text + split_mask(plan, *split, context);
  if (uses(mask.visible, Op::Load)) text += "\n  static constexpr bool kReadsAtPairs = true;\n";
  return text +
         function("May query q see key k, for which this has been read?",
                  fmt::format("bool visible_with(const KernelParams& params, const Sequence& seq, const QueryReads& "
                              "of_query,\n                           const KeyReads& of_key, {0} q, {0} k)",
                              number),
                  body_of(mask.visible, context));
}

Result<std::string> score_function(const Plan& plan) {
  const CudaExprContext context{&plan.spec.params, plan.wide_ints, true};
  // With 64-bit ints nothing may be computed from 32-bit operands alone. So the key is a 64-bit int here, not a symbol.
  const std::string_view key = plan.wide_ints ? "" : ", class Key",
                         ends = plan.wide_ints ? "Int64 q, Int64 k" : "int q, Key k";
  return function(
      fmt::format(
          "The logit of query q and key k; s is scale * q.k.\ntemplate <class Math, class Params, class Number{}>",
          key),
      fmt::format("auto score(Math math, const Params& params, const Sequence& seq, Number s, {})", ends),
      body_of(plan.spec.score, context));
}

// Emits the score and its slope for kernels that go backward. Both are plain numbers, because nothing is multiplied
// into an exponent there.
Result<std::string> slope_function(const Plan& plan) {
  const CudaExprContext context{&plan.spec.params, plan.wide_ints};
  FLASHJIT_ASSIGN(gradients, gradients_of(plan.spec.score, plan.spec.mask, names_of_gradients(plan.spec)));
  FLASHJIT_ASSIGN(loads, loads_by_position(plan.spec, plan.config));
  const std::vector<Expr> values = {gradients.score, gradients.by_s};
  std::string text = fmt::format("\n  static constexpr bool kLoadsByPosition = {};\n", loads);
  return text + function(
                    "The logit of query q and key k, and its derivative by s, which is scale * q.k.\n"
                    "template <class Params>",
                    fmt::format("ScoreAndSlope score_and_slope(const Params& params, const Sequence& seq, float s, "
                                "{0} q, {0} k)",
                                plan.wide_ints ? "Int64" : "int"),
                    locals(values, context) + cuda_function_body(values, context));
}

// Emits a constexpr function of Variant that takes the number of a read.
template <class ValueOf>
std::string fact_of_reads(std::string_view type, std::string_view name, const std::vector<GradientRead>& reads,
                          const ValueOf& value_of) {
  std::string values;
  for (const GradientRead& read : reads) values += (values.empty() ? "" : ", ") + value_of(read);
  return fmt::format(
      "  static constexpr {0} {1}(int read) {{\n    constexpr {0} values[] = {{{2}}};\n    return values[read];\n  }}\n",
      type, name, values);
}

// Finds each load whose indices depend on query and key, once. Indices that are looked up take a load of their own.
void find_loads(const Expr& expr, std::vector<Expr>& loads) {
  const bool by_both = uses(expr, Variable::Q) && uses(expr, Variable::K);
  const auto is_same = [&](const Expr& other) { return same(other, expr); };
  const bool is_wanted = expr->op == Op::Load && by_both && std::ranges::none_of(expr->args, is_looked_up);
  if (is_wanted && std::ranges::none_of(loads, is_same)) loads.push_back(expr);
  for (const Expr& arg : expr->args) find_loads(arg, loads);
}

// Emits functions for kernels that write gradients of parameters.
Result<std::string> gradient_functions(const Plan& plan) {
  const CudaExprContext context{&plan.spec.params, plan.wide_ints};
  FLASHJIT_ASSIGN(gradients, gradients_of(plan.spec.score, plan.spec.mask, names_of_gradients(plan.spec)));
  FLASHJIT_ASSIGN(reads, gradient_reads(plan.spec));
  const std::string_view ends = plan.wide_ints ? "Int64 q, Int64 k" : "int q, int k";
  const auto heads = std::ranges::count(reads, GradientSum::heads, &GradientRead::sum);
  std::string text = fmt::format(
      "\n  // Parameters whose gradients are wanted are read so many times.\n"
      "  static constexpr int kReads = {}, kHeadReads = {};\n",
      reads.size(), heads);
  text +=
      fact_of_reads("int", "gradient_of", reads, [](const GradientRead& r) { return fmt::format("{}", r.gradient); });
  text += fact_of_reads("GradientSum", "gradient_sum", reads,
                        [](const GradientRead& r) { return fmt::format("GradientSum::{}", word(r.sum)); });
  if (heads > 0) {
    int number = 0;
    text += fact_of_reads("int", "head_number", reads, [&](const GradientRead& r) {
      return fmt::format("{}", r.sum == GradientSum::heads ? number++ : -1);
    });
    text += fact_of_reads("bool", "has_own_heads", reads, [](const GradientRead& r) {
      return std::string(r.alone && r.index.own_h ? "true" : "false");
    });
  }
  for (std::size_t i = 0; i < reads.size(); ++i) {
    text += function(
        fmt::format("Where the gradient of `{}` is.", comment_text(print(reads[i].read))),
        fmt::format("Int64 element(Parameter<{}>, const KernelParams& params, const Sequence& seq, {})", i, ends),
        locals(reads[i].read->args, context) + cuda_gradient_element_body(reads[i].read, reads[i].gradient, context));
  }
  const std::vector<Expr> inputs = copied_inputs(plan.spec, plan.config);
  text += fact_of_reads("bool", "in_tiles", reads,
                        [&](const GradientRead& r) { return std::string(is_in_tiles(r, inputs) ? "true" : "false"); });
  text += fact_of_reads("bool", "covers_all", reads, [](const GradientRead& r) {
    return std::string(r.sum == GradientSum::own && r.index.plain ? "true" : "false");
  });
  if (plan.config.hopper_backward.keeps_ds) {
    text += fact_of_reads("bool", "has_own_batches", reads,
                          [](const GradientRead& r) { return std::string(r.index.own_b ? "true" : "false"); });
    text += fact_of_reads("int", "heads_that_share", reads,
                          [&](const GradientRead& r) { return fmt::format("{}", heads_that_share(r, plan.spec)); });
  }
  std::vector<Expr> loads;
  find_loads(gradients.score, loads);
  if (!loads.empty()) {
    text += function("Asks for what is loaded for query q and key k.",
                     fmt::format("void prefetch(const KernelParams& params, const Sequence& seq, {})", ends),
                     locals(loads, context) + cuda_prefetch_body(loads, context));
  }
  text += fmt::format("\n  struct Derivatives {{\n    float score, slope, by_read[{}];\n  }};\n", reads.size());
  std::vector<Expr> values = {gradients.score, gradients.by_s};
  for (const ReadGradient& read : gradients.by_params) values.push_back(read.derivative);
  return text +
         function("The logit of query q and key k, and its derivatives by s and by what it reads there.",
                  fmt::format(
                      "Derivatives score_and_derivatives(const KernelParams& params, const Sequence& seq, float s, {})",
                      ends),
                  locals(values, context) + cuda_function_body(values, context));
}

// Emits the function for kernels whose producer copies what the score reads at every key.
std::string inputs_function(const Plan& plan) {
  const CudaExprContext context{&plan.spec.params, plan.wide_ints};
  const std::vector<Expr> inputs = copied_inputs(plan.spec, plan.config);
  std::string text = function(
      "The tensors that score() reads at every key: their indices besides query and key.\n"
      "template <class Visit>",
      "void visit_inputs(const KernelParams& params, const Sequence& seq, const Visit& visit)",
      locals(inputs, context) + cuda_visit_inputs(inputs, context));
  if (!is_backward(plan.spec)) return text;
  for (const Expr& input : inputs) {
    const auto number = std::ranges::find(plan.spec.params, input->param) - plan.spec.params.begin();
    const std::string_view end = plan.wide_ints ? "Int64" : "int";
    text += function(
        fmt::format("Where `{}` is.", comment_text(print(input))),
        fmt::format(
            "Int64 input_element(Parameter<{0}>, const KernelParams& params, const Sequence& seq, {1} q, {1} k)",
            number, end),
        locals(input->args, context) + cuda_input_element_body(input, context));
  }
  return text;
}

// Emits where the tiles of the mask begin and end, if this differs from Plain.
std::string limit_functions(const Plan& plan) {
  const CudaExprContext context{&plan.spec.params, plan.wide_ints};
  const TileAnalysis &t = plan.tiles, &of_keys = plan.query_tiles;
  const Expr none = Expr::integer(0), all = Expr::variable(Variable::KLen), yes = Expr::boolean(true),
             every = Expr::variable(Variable::QLen);
  const Expr& may_see = plan.config.list_heads == 0 && t.may_see_in_blocks ? t.may_see_in_blocks : t.may_see;
  constexpr std::string_view kQueries = "{0} q_lo, {0} q_hi", kKeys = "{0} k_lo, {0} k_hi",
                             kBoth = "{0} q_lo, {0} q_hi, {0} k_lo, {0} k_hi";
  struct Limit {
    std::string_view comment, declaration, ends;
    Expr expr, plain;
  };
  std::vector<Limit> limits = {
      {"Queries q_lo..q_hi see nothing before this key.", "int kv_begin", kQueries, t.begin, none},
      {"Queries q_lo..q_hi see nothing from this key on.", "int kv_end", kQueries, t.end, all},
      {"Keys before this one are not visible to all of q_lo..q_hi.", "int full_begin", kQueries, t.full_begin, none},
      {"Keys from this one on are not visible to all of q_lo..q_hi.", "int full_end", kQueries, t.full_end, all},
      {"False only if no query of q_lo..q_hi sees any key of k_lo..k_hi.", "bool may_see", kBoth,
       may_see ? may_see : yes, yes}};
  if (is_backward(plan.spec)) {
    // Behind the last query S is 0, and a score of it may be no number. Then the last tile is one with mask code.
    const bool is_hidden = plan.spec.score && !is_number_at_zero(plan.spec.score);
    const Expr full_end = is_hidden ? simplify(min(of_keys.full_end, every - Expr::integer(1))) : of_keys.full_end;
    limits.insert(
        limits.end(),
        {{"No query before this one sees any of k_lo..k_hi.", "int q_begin", kKeys, of_keys.begin, none},
         {"No query from this one on sees any of k_lo..k_hi.", "int q_end", kKeys, of_keys.end, every},
         {"Queries before this one do not see all of k_lo..k_hi.", "int full_q_begin", kKeys, of_keys.full_begin, none},
         {"Queries from this one on do not see all of k_lo..k_hi.", "int full_q_end", kKeys, full_end, every}});
  }
  std::string text;
  for (const Limit& limit : limits) {
    const std::string body = body_of(limit.expr, context);
    if (body == body_of(limit.plain, context)) continue;
    const std::string arguments = fmt::format(fmt::runtime(limit.ends), plan.wide_ints ? "Int64" : "int");
    text += function(
        limit.comment,
        fmt::format("{}(const KernelParams& params, const Sequence& seq, {})", limit.declaration, arguments), body);
  }
  return text;
}

Result<std::string> emit_variant(const Plan& plan) {
  const KernelConfig& c = plan.config;
  std::string text = short_header("The mask and the score of this kernel, where they are not those of Plain.");
  text += fmt::format("#pragma once\n\n#include \"templates/{}.cuh\"\n\nnamespace flashjit {{\n\n",
                      c.places ? "places/placed" : "variant");
  std::string functions;
  if (c.selected > 0) functions += functions_of_lists(plan);
  // Otherwise its limits are the whole mask.
  else if (c.has_mask && !c.mask_is_range) functions += mask_function(plan);
  if (c.mask_by_rows) functions += separated_mask(plan);
  if (c.has_score) {
    FLASHJIT_ASSIGN(score, is_backward(plan.spec) ? slope_function(plan) : score_function(plan));
    functions += score;
  }
  if (c.gradients > 0) {
    FLASHJIT_ASSIGN(of_parameters, gradient_functions(plan));
    functions += of_parameters;
  }
  if (c.inputs_16 | c.inputs_32) functions += inputs_function(plan);
  functions += limit_functions(plan);
  if (!functions.empty()) functions.erase(0, 1);  // This is the blank line before the first function.
  // With places these functions take positions of the whole sequence, which loops do not know.
  const std::string_view name = c.places ? "Whole" : "Variant";
  text += fmt::format("struct {} : Plain {{{}{}}};\n", name, functions.empty() ? "" : "\n", functions);
  if (c.places) text += "struct Variant : Placed<Whole> {};\n";
  return text + "\n}  // namespace flashjit\n";
}

// Collects the embedded templates that generated files include, and those that these include in turn.
class Headers {
 public:
  Result<void> add_included_by(std::string_view text) {
    constexpr std::string_view kInclude = "#include \"templates/";
    for (std::size_t at = text.find(kInclude); at != std::string_view::npos; at = text.find(kInclude, at + 1)) {
      const std::size_t begin = at + std::string_view("#include \"").size();
      const std::string_view name = text.substr(begin, text.find('"', begin) - begin);
      const auto found = std::ranges::find(files_, name, &EmbeddedFile::name);
      if (found == files_.end()) return internal(fmt::format("{} is included but not embedded", name));
      add(static_cast<std::size_t>(found - files_.begin()));
    }
    return {};
  }
  std::vector<SourceFile> take() { return std::move(headers_); }

 private:
  void add(std::size_t index) {
    if (added_[index]) return;
    added_[index] = true;
    const EmbeddedFile& file = files_[index];
    headers_.push_back({std::string(file.name), std::string(file.text)});
    for (const std::uint16_t included : file.includes) add(included);
  }

  std::span<const EmbeddedFile> files_ = embedded_templates();
  std::vector<bool> added_ = std::vector<bool>(files_.size());
  std::vector<SourceFile> headers_;
};

// Emits one kernel: its arguments, and a call of the loop's function.
std::string emit_entry(const Plan& plan, const KernelLaunch& launch, bool next_overlaps) {
  std::string arguments = "const __grid_constant__ flashjit::KernelParams params";
  if (launch.tensor_maps) arguments += ",\n    const __grid_constant__ flashjit::TensorMaps maps";
  for (const int number : launch.buffers) {
    const WorkspaceBuffer& buffer = plan.workspace[static_cast<std::size_t>(number)];
    arguments += fmt::format(", {}* {}", buffer.type, buffer.name);
  }
  const std::string cluster =
      launch.grid.cluster > 1 ? fmt::format(" __cluster_dims__({}, 1, 1)", launch.grid.cluster) : "";
  std::string body;
  if (launch.overlaps && !launch.adds_up) body += "  flashjit::wait_for_launch_before();\n";
  if (next_overlaps) body += "  flashjit::release_next_launch();\n";
  return fmt::format("\nextern \"C\" __global__ void __launch_bounds__({}){}\n{}({}) {{\n{}  flashjit::{};\n}}\n",
                     launch.bounds, cluster, launch.entry, arguments, body, launch.call);
}

}  // namespace

Result<KernelSource> emit_cuda(const Plan& plan) {
  if (!plan.target.gpu) return internal(fmt::format("emit_cuda: target {} is not a GPU", plan.target.name));
  const FamilyRow& family = *plan.schedule.family;
  KernelSource source;
  FLASHJIT_ASSIGN(variant, emit_variant(plan));
  source.generated = {{"config.gen.cuh", emit_config(plan)}, {"variant.gen.cuh", variant}};
  if (const std::string products = emit_matrix(plan.program); !products.empty()) {
    source.generated.push_back({"matrix.gen.cuh", short_header("The matrix products of this kernel.") + products});
  }
  if (std::string pairs = emit_tile_pairs(plan); !pairs.empty())
    source.generated.push_back({"tile_pairs.gen.cuh", std::move(pairs)});
  FLASHJIT_ASSIGN(loop, emit_loop(plan.program));
  if (!loop.empty())
    source.generated.push_back({std::string(kLoopFile), short_header("The loop of this kernel.") + loop});
  std::string entry = short_header(family.summary);
  entry += fmt::format("#include \"config.gen.cuh\"\n#include \"{}\"\n", loop.empty() ? family.loop_file : kLoopFile);
  for (const auto* launches : {&plan.before, &plan.launches})
    for (const KernelLaunch& launch : *launches)
      if (const std::string line = fmt::format("#include \"{}\"\n", launch.file);
          !launch.file.empty() && entry.find(line) == std::string::npos)
        entry += line;
  for (std::size_t i = 0; i < plan.before.size(); ++i) {
    const KernelLaunch& next = i + 1 < plan.before.size() ? plan.before[i + 1] : plan.launches.front();
    entry += emit_entry(plan, plan.before[i], next.overlaps);
  }
  for (std::size_t i = 0; i < plan.launches.size(); ++i) {
    const KernelLaunch* next = i + 1 < plan.launches.size() ? &plan.launches[i + 1] : nullptr;
    const bool follows = next && !next->of_teams;  // Otherwise it is another first launch.
    entry += emit_entry(plan, plan.launches[i], follows && next->overlaps && !next->adds_up);
  }
  source.generated.push_back({"entry.cu", std::move(entry)});  // It comes last, because it is the file to compile.
  Headers headers;
  for (const SourceFile& file : source.generated) FLASHJIT_TRY(headers.add_included_by(file.text));
  source.headers = headers.take();
  return source;
}

}  // namespace flashjit

// Builds the textbook form of an online softmax from the spec: without tiles, warps or copies.
#include <fmt/format.h>

#include "compiler/families/family.h"
#include "compiler/program/passes.h"

namespace flashjit {

namespace {

constexpr std::string_view kBuild = "build", kAnalyse = "analyse_mask";

std::string extent(int value) { return fmt::format("{}", value); }

void add_buffers(Program& p, const PassContext& context) {
  const AttentionSpec& spec = context.problem.spec;
  const Dtype weights = weights_of(spec, context.config);
  const std::string qk = extent(spec.d_qk), v = extent(spec.d_v);
  p.buffers = {
      {"q", Space::Global, spec.dtype, "q_len", qk},        {"k", Space::Global, spec.kv_dtype, "k_len", qk},
      {"v", Space::Global, spec.kv_dtype, "k_len", v},      {"o", Space::Global, spec.out_dtype, "q_len", v},
      {"S", Space::Register, Dtype::F32, "q_len", "k_len"}, {"P", Space::Register, weights, "q_len", "k_len"},
      {"O", Space::Register, Dtype::F32, "q_len", v},       {"rows", Space::Register, Dtype::F32, "q_len", "2"},
  };
  if (spec.lse != Lse::none) p.buffers.push_back({"lse", Space::Global, Dtype::F32, "q_len", "1"});
  if (spec.max_logit) p.buffers.push_back({"max_logit", Space::Global, Dtype::F32, "q_len", "1"});
  if (spec.sink) p.buffers.push_back({"sink", Space::Global, Dtype::F32, "heads", "1"});
}

Statement make(const Program& p, Kind kind, std::initializer_list<std::string_view> writes,
               std::initializer_list<std::string_view> reads) {
  Statement s;
  s.kind = kind;
  for (const std::string_view name : writes) s.writes.push_back(p.buffer(name));
  for (const std::string_view name : reads) s.reads.push_back(p.buffer(name));
  return s;
}

Result<std::vector<Statement>> make_scores(const Program& p, const PassContext& context) {
  std::vector<Statement> body = {make(p, Kind::Fill, {"S"}, {}), make(p, Kind::Mma, {"S"}, {"q", "k"})};
  if (context.problem.spec.score) {
    body.push_back(make(p, Kind::Score, {"S"}, {"S"}));
    FLASHJIT_TRY(body.back().attributes.set("fn", std::string("score"), kBuild));
  }
  // Without a mask the keys behind k_len must still be hidden.
  body.push_back(make(p, Kind::Mask, {"S"}, {"S"}));
  FLASHJIT_TRY(body.back().attributes.set("fn", std::string(context.config.has_mask ? "visible" : "inside"), kBuild));
  return body;
}

Result<Statement> make_loop(const Program& p, const PassContext& context) {
  Statement loop = make(p, Kind::Loop, {}, {});
  loop.along = context.schedule.family->axis;
  FLASHJIT_ASSIGN(scores, make_scores(p, context));
  loop.body = std::move(scores);
  loop.body.push_back(make(p, Kind::Rescale, {"O", "rows"}, {"S", "rows"}));
  loop.body.push_back(make(p, Kind::Softmax, {"S", "rows"}, {"S", "rows"}));
  loop.body.push_back(make(p, Kind::Convert, {"P"}, {"S"}));
  loop.body.push_back(make(p, Kind::Mma, {"O"}, {"P", "v"}));
  return loop;
}

void add_finish(Program& p, const AttentionSpec& spec) {
  p.body.push_back(make(p, Kind::Reduce, {"rows"}, {"rows"}));
  Statement finalize = make(p, Kind::Finalize, {"O", "rows"}, {"O", "rows"});
  if (spec.sink) finalize.reads.push_back(p.buffer("sink"));
  p.body.push_back(finalize);
  if (spec.lse != Lse::none) p.body.push_back(make(p, Kind::Store, {"lse"}, {"rows"}));
  if (spec.max_logit) p.body.push_back(make(p, Kind::Store, {"max_logit"}, {"rows"}));
  p.body.push_back(make(p, Kind::Store, {"o"}, {"O"}));
}

// Parts take the place of keys: each row of the result is a sum over them.
Result<Program> build_merge(Program p, const PassContext& context) {
  const AttentionSpec& spec = context.problem.spec;
  p.title = fmt::format("merge for {}: {}", context.problem.target.name, print(spec));
  p.schedule = print(context.schedule);
  const std::string v = extent(spec.d_v);
  p.buffers = {{"o_parts", Space::Global, spec.dtype, "parts", v},
               {"lse_parts", Space::Global, Dtype::F32, "parts", "1"},
               {"o", Space::Global, spec.out_dtype, "q_len", v},
               {"O", Space::Register, Dtype::F32, "q_len", v},
               {"rows", Space::Register, Dtype::F32, "q_len", "2"}};
  if (spec.lse != Lse::none) p.buffers.push_back({"lse", Space::Global, Dtype::F32, "q_len", "1"});
  p.body.push_back(make(p, Kind::Fill, {"O", "rows"}, {}));
  Statement loop = make(p, Kind::Loop, {}, {});
  loop.along = context.schedule.family->axis;
  loop.body.push_back(make(p, Kind::Rescale, {"O", "rows"}, {"lse_parts", "O", "rows"}));
  loop.body.push_back(make(p, Kind::Reduce, {"O"}, {"o_parts", "O", "rows"}));
  p.body.push_back(std::move(loop));
  p.body.push_back(make(p, Kind::Finalize, {"O", "rows"}, {"O", "rows"}));
  if (spec.lse != Lse::none) p.body.push_back(make(p, Kind::Store, {"lse"}, {"rows"}));
  p.body.push_back(make(p, Kind::Store, {"o"}, {"O"}));
  return p;
}

// Turns rows into elements of 8 bits. There are no keys, and no loop.
Result<Program> build_quantize(Program p, const PassContext& context) {
  const AttentionSpec& spec = context.problem.spec;
  p.title = fmt::format("quantize for {}: {}", context.problem.target.name, print(spec));
  p.schedule = print(context.schedule);
  const std::string d = extent(spec.d_qk);
  p.buffers = {{"x", Space::Global, spec.dtype, "q_len", d},
               {"y", Space::Global, spec.out_dtype, "q_len", d},
               {"rotation", Space::Register, spec.dtype, d, d},
               {"X", Space::Register, Dtype::F32, "q_len", d},
               {"largest", Space::Register, Dtype::F32, "q_len", "1"}};
  const bool has_scale = !has_latent_rows(spec);  // Otherwise scales are a part of y.
  if (has_scale)
    p.buffers.insert(p.buffers.begin() + 2,
                     {"scale", Space::Global, Dtype::F32, spec.scale_block > 0 ? "blocks" : "1", "1"});
  if (spec.rotate) {
    p.body.push_back(make(p, Kind::Fill, {"rotation"}, {}));
    p.body.push_back(make(p, Kind::Mma, {"X"}, {"x", "rotation"}));
  } else {
    p.body.push_back(make(p, Kind::Convert, {"X"}, {"x"}));
  }
  p.body.push_back(make(p, Kind::Reduce, {"largest"}, {"X"}));
  if (has_scale) p.body.push_back(make(p, Kind::Store, {"scale"}, {"largest"}));
  p.body.push_back(make(p, Kind::Store, {"y"}, {"X", "largest"}));
  return p;
}

// Positive products of a query's heads, times their weights, add up to a score for each key.
Result<Program> build_index(Program p, const PassContext& context) {
  const AttentionSpec& spec = context.problem.spec;
  p.title = fmt::format("index for {}: {}", context.problem.target.name, print(spec));
  p.schedule = print(context.schedule);
  const std::string d = extent(spec.d_qk);
  p.buffers = {{"q", Space::Global, spec.dtype, "q_len", d},
               {"k", Space::Global, spec.kv_dtype, "k_len", d},
               {"weights", Space::Global, Dtype::F32, "q_len", extent(spec.heads_q)},
               {"scores", Space::Global, Dtype::F32, "q_len", "k_len"},
               {"S", Space::Register, Dtype::F32, "q_len", "k_len"},
               {"sums", Space::Register, Dtype::F32, "q_len", "k_len"}};
  Statement loop = make(p, Kind::Loop, {}, {});
  loop.along = context.schedule.family->axis;
  loop.body = {make(p, Kind::Mma, {"S"}, {"k", "q"}), make(p, Kind::Reduce, {"sums"}, {"S", "weights"}),
               make(p, Kind::Mask, {"sums"}, {"sums"}), make(p, Kind::Store, {"scores"}, {"sums"})};
  FLASHJIT_TRY(loop.body[2].attributes.set("fn", std::string(context.config.has_mask ? "visible" : "inside"), kBuild));
  p.body.push_back(std::move(loop));
  if (!writes_lists(spec)) return p;
  p.buffers.push_back({"key_index", Space::Global, Dtype::I32, "q_len", extent(spec.selected)});
  p.buffers.push_back({"largest", Space::Register, Dtype::F32, "q_len", extent(spec.selected)});
  p.body.push_back(make(p, Kind::Reduce, {"largest"}, {"scores"}));
  p.body.push_back(make(p, Kind::Store, {"key_index"}, {"largest"}));
  return p;
}

// Each tile makes P again, from what forward has left of its rows.
Result<Program> build_backward(Program p, const PassContext& context) {
  const AttentionSpec& spec = context.problem.spec;
  p.title = fmt::format("backward for {}: {}", context.problem.target.name, print(spec));
  p.schedule = print(context.schedule);
  const std::string qk = extent(spec.d_qk), v = extent(spec.d_v);
  p.buffers = {
      {"q", Space::Global, spec.dtype, "q_len", qk},         {"k", Space::Global, spec.dtype, "k_len", qk},
      {"v", Space::Global, spec.dtype, "k_len", v},          {"given o", Space::Global, spec.dtype, "q_len", v},
      {"do", Space::Global, spec.dtype, "q_len", v},         {"given lse", Space::Global, Dtype::F32, "q_len", "1"},
      {"dq", Space::Global, spec.out_dq, "q_len", qk},       {"dk", Space::Global, spec.out_dk, "k_len", qk},
      {"dv", Space::Global, spec.out_dv, "k_len", v},        {"rows", Space::Register, Dtype::F32, "q_len", "2"},
      {"S", Space::Register, Dtype::F32, "q_len", "k_len"},  {"P", Space::Register, Dtype::F32, "q_len", "k_len"},
      {"dS", Space::Register, Dtype::F32, "q_len", "k_len"}, {"dQ", Space::Register, Dtype::F32, "q_len", qk},
      {"dK", Space::Register, Dtype::F32, "k_len", qk},      {"dV", Space::Register, Dtype::F32, "k_len", v},
  };
  p.body = {make(p, Kind::Reduce, {"rows"}, {"given o", "do", "given lse"}),
            make(p, Kind::Fill, {"dQ", "dK", "dV"}, {})};
  Statement loop = make(p, Kind::Loop, {}, {});
  loop.along = context.schedule.family->axis;
  FLASHJIT_ASSIGN(scores, make_scores(p, context));
  loop.body = std::move(scores);
  loop.body.push_back(make(p, Kind::Softmax, {"P"}, {"S", "rows"}));
  loop.body.push_back(make(p, Kind::Mma, {"dS"}, {"do", "v"}));
  loop.body.push_back(make(p, Kind::Gradient, {"dS"}, {"dS", "P", "S", "rows"}));
  loop.body.push_back(make(p, Kind::Mma, {"dV"}, {"P", "do"}));
  loop.body.push_back(make(p, Kind::Mma, {"dK"}, {"dS", "q"}));
  loop.body.push_back(make(p, Kind::Mma, {"dQ"}, {"dS", "k"}));
  p.body.push_back(std::move(loop));
  p.body.push_back(make(p, Kind::Store, {"dq"}, {"dQ"}));
  p.body.push_back(make(p, Kind::Store, {"dk"}, {"dK"}));
  p.body.push_back(make(p, Kind::Store, {"dv"}, {"dV"}));
  return p;
}

Result<Program> build_forward(Program p, const PassContext& context) {
  const AttentionSpec& spec = context.problem.spec;
  p.title = fmt::format("forward for {}: {}", context.problem.target.name, print(spec));
  p.schedule = print(context.schedule);
  add_buffers(p, context);
  p.body.push_back(make(p, Kind::Fill, {"O", "rows"}, {}));
  FLASHJIT_ASSIGN(loop, make_loop(p, context));
  p.body.push_back(std::move(loop));
  add_finish(p, spec);
  return p;
}

}  // namespace

Result<Program> build(Program p, const PassContext& context) {
  const FamilyRow& family = *context.schedule.family;
  p.picture_of = family.gpu ? family.loop_file : "codegen/host/emit";
  const AttentionSpec& spec = context.problem.spec;
  if (merges(spec)) return build_merge(std::move(p), context);
  if (quantizes(spec)) return build_quantize(std::move(p), context);
  if (indexes(spec)) return build_index(std::move(p), context);
  if (is_backward(spec)) return build_backward(std::move(p), context);
  return build_forward(std::move(p), context);
}

Result<Program> analyse_mask(Program p, const PassContext& context) {
  if (quantizes(context.problem.spec)) return p;  // No loop needs phases.
  const bool masked = context.config.has_mask;
  // The ends of the full range rarely fall on tiles, so a mixed phase stands on either side where the mask cuts;
  // without a mask only the tile that k_len cuts is mixed.
  const AxisNames range = names_of(context.schedule.family->axis);
  const std::string begin(range.begin), end(range.end), full_begin(range.full_begin), full_end(range.full_end);
  if (indexes(context.problem.spec)) {  // An index asks the mask for each score: there is one score for many products.
    p.phases.push_back({begin, end, false});
    return p;
  }
  if (masked) p.phases.push_back({begin, full_begin, true});
  p.phases.push_back({masked ? full_begin : begin, full_end, false});
  p.phases.push_back({full_end, end, true});
  FLASHJIT_TRY(for_each(p.body, [&](Statement& s) -> Result<void> {
    if (s.kind == Kind::Mask) {
      if (context.problem.tiles.line_is_range && context.config.selected == 0)
        FLASHJIT_TRY(s.attributes.set("row", std::string("range"), kAnalyse));
      return s.attributes.set("when", std::string("mixed"), kAnalyse);
    }
    if (s.kind != Kind::Loop) return {};
    // Most loops go from the last tile down: with a causal mask the mixed tiles come first, and the rest needs no mask.
    const bool from_first = context.schedule.family->from_first;
    FLASHJIT_TRY(s.attributes.set("direction", std::string(from_first ? "first_to_last" : "last_to_first"), kAnalyse));
    if (context.config.mask_has_holes) return s.attributes.set("holes", std::string("may_see"), kAnalyse);
    return {};
  }));
  return p;
}

}  // namespace flashjit

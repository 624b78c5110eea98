// From the spec to the textbook of an online softmax: no tiles, no warps, no copies yet.
#include <fmt/format.h>

#include "compiler/program/passes.h"
#include "compiler/spec/spec_names.h"

namespace flashjit {

namespace {

constexpr std::string_view kBuild = "build", kAnalyse = "analyse_mask";

std::string extent(int value) { return fmt::format("{}", value); }

bool masks_anything(const AttentionSpec& spec) {
  return spec.mask && !(spec.mask->op == Op::BoolConst && spec.mask->integer != 0);
}

void add_buffers(Program& p, const AttentionSpec& spec) {
  const std::string qk = extent(spec.d_qk), v = extent(spec.d_v);
  p.buffers = {
      {"q", Space::Global, spec.dtype, "q_len", qk},        {"k", Space::Global, spec.kv_dtype, "k_len", qk},
      {"v", Space::Global, spec.kv_dtype, "k_len", v},      {"o", Space::Global, spec.out_dtype, "q_len", v},
      {"S", Space::Register, Dtype::F32, "q_len", "k_len"}, {"P", Space::Register, spec.dtype, "q_len", "k_len"},
      {"O", Space::Register, Dtype::F32, "q_len", v},       {"rows", Space::Register, Dtype::F32, "q_len", "2"},
  };
  if (spec.lse != Lse::None) p.buffers.push_back({"lse", Space::Global, Dtype::F32, "q_len", "1"});
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

Result<Statement> make_loop(const Program& p, const AttentionSpec& spec) {
  Statement loop = make(p, Kind::Loop, {}, {});
  loop.body.push_back(make(p, Kind::Fill, {"S"}, {}));
  loop.body.push_back(make(p, Kind::Mma, {"S"}, {"q", "k"}));
  if (spec.score) {
    loop.body.push_back(make(p, Kind::Score, {"S"}, {"S"}));
    FLASHJIT_TRY(loop.body.back().attributes.set("fn", std::string("score"), kBuild));
  }
  // Without a mask the keys behind k_len must still be hidden.
  loop.body.push_back(make(p, Kind::Mask, {"S"}, {"S"}));
  FLASHJIT_TRY(loop.body.back().attributes.set("fn", std::string(masks_anything(spec) ? "visible" : "inside"), kBuild));
  loop.body.push_back(make(p, Kind::Rescale, {"O", "rows"}, {"S", "rows"}));
  loop.body.push_back(make(p, Kind::Softmax, {"S", "rows"}, {"S", "rows"}));
  loop.body.push_back(make(p, Kind::Convert, {"P"}, {"S"}));
  loop.body.push_back(make(p, Kind::Mma, {"O"}, {"P", "v"}));
  return loop;
}

Result<void> add_finish(Program& p, const AttentionSpec& spec) {
  p.body.push_back(make(p, Kind::Reduce, {"rows"}, {"rows"}));
  Statement finalize = make(p, Kind::Finalize, {"O", "rows"}, {"O", "rows"});
  if (spec.sink) {
    finalize.reads.push_back(p.buffer("sink"));
    FLASHJIT_TRY(finalize.attributes.set("sink", std::string("yes"), kBuild));
  }
  p.body.push_back(finalize);
  if (spec.lse != Lse::None) {
    p.body.push_back(make(p, Kind::Store, {"lse"}, {"rows"}));
    FLASHJIT_TRY(p.body.back().attributes.set("lse", std::string(kLseNames[static_cast<int>(spec.lse)]), kBuild));
  }
  if (spec.max_logit) {
    p.body.push_back(make(p, Kind::Store, {"max_logit"}, {"rows"}));
    FLASHJIT_TRY(p.body.back().attributes.set("max_logit", std::string("yes"), kBuild));
  }
  p.body.push_back(make(p, Kind::Store, {"o"}, {"O"}));
  return p.body.back().attributes.set("output", std::string(name(spec.out_dtype)), kBuild);
}

}  // namespace

Result<Program> build(Program p, const PassContext& context) {
  const AttentionSpec& spec = context.spec;
  p.title = fmt::format("forward for {}: {}", context.target.name, print(spec));
  FLASHJIT_TRY(p.attributes.set("head_dims", fmt::format("{}/{}", spec.d_qk, spec.d_v), kBuild));
  FLASHJIT_TRY(p.attributes.set("heads", fmt::format("{}/{}", spec.heads_q, spec.heads_kv), kBuild));
  FLASHJIT_TRY(p.attributes.set("sequences", std::string(spec.layout == Layout::Packed ? "packed" : "dense"), kBuild));
  FLASHJIT_TRY(p.attributes.set("scale", spec.effective_scale(), kBuild));
  add_buffers(p, spec);
  p.body.push_back(make(p, Kind::Fill, {"O", "rows"}, {}));
  FLASHJIT_ASSIGN(loop, make_loop(p, spec));
  p.body.push_back(std::move(loop));
  FLASHJIT_TRY(add_finish(p, spec));
  return p;
}

Result<Program> analyse_mask(Program p, const PassContext& context) {
  const bool masked = masks_anything(context.spec);
  // The ends of the full range rarely fall on tiles, so a mixed phase stands on either side where the mask cuts;
  // without a mask only the tile that k_len cuts is mixed.
  if (masked) p.phases.push_back({"kv_begin", "full_begin", true});
  p.phases.push_back({masked ? "full_begin" : "kv_begin", "full_end", false});
  p.phases.push_back({"full_end", "kv_end", true});
  FLASHJIT_TRY(for_each(p.body, [&](Statement& s) -> Result<void> {
    if (s.kind == Kind::Mask) {
      if (context.tiles.row_is_range) FLASHJIT_TRY(s.attributes.set("row", std::string("range"), kAnalyse));
      return s.attributes.set("when", std::string("mixed"), kAnalyse);
    }
    if (s.kind != Kind::Loop) return {};
    // From the last tile down: with a causal mask the mixed tiles come first and the rest of the loop is plain.
    FLASHJIT_TRY(s.attributes.set("direction", std::string("last_to_first"), kAnalyse));
    if (masked && context.tiles.may_see) return s.attributes.set("holes", std::string("may_see"), kAnalyse);
    return {};
  }));
  return p;
}

}  // namespace flashjit

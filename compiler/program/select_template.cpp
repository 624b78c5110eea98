#include "compiler/choice/candidates.h"
#include "compiler/program/select_template.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "compiler/spec/spec_names.h"
#include "compiler/spec/text_form.h"

namespace flashjit {

namespace {

// Where an attribute stands: on the program, or on a statement of a kind.
using Place = std::optional<Kind>;

// Takes one attribute over into the configuration; false when the loop cannot do what it says.
using Take = bool (*)(const AttributeValue& value, KernelConfig& config);

struct Honoured {
  std::string_view key;
  Place place;
  Take take;
};

const std::string* text(const AttributeValue& value) { return std::get_if<std::string>(&value); }

template <int KernelConfig::* field>
bool take_int(const AttributeValue& value, KernelConfig& config) {
  const auto* number = std::get_if<std::int64_t>(&value);
  if (!number) return false;
  config.*field = static_cast<int>(*number);
  return true;
}

template <int KernelConfig::* first, int KernelConfig::* second>
bool take_pair(const AttributeValue& value, KernelConfig& config) {
  const std::string* pair = text(value);
  const std::size_t slash = pair ? pair->find('/') : std::string::npos;
  if (slash == std::string::npos) return false;
  const auto a = parse_integer(std::string_view(*pair).substr(0, slash)),
             b = parse_integer(std::string_view(*pair).substr(slash + 1));
  if (!a || !b) return false;
  config.*first = static_cast<int>(*a);
  config.*second = static_cast<int>(*b);
  return true;
}

// One of two words sets the field.
template <bool KernelConfig::* field>
bool take_choice(const AttributeValue& value, KernelConfig& config, std::string_view no, std::string_view yes) {
  if (!text(value) || (*text(value) != no && *text(value) != yes)) return false;
  config.*field = *text(value) == yes;
  return true;
}

bool is(const AttributeValue& value, std::string_view expected) { return text(value) && *text(value) == expected; }

std::optional<Element> element_of(std::string_view dtype) {
  if (dtype == "fp16") return Element::f16;
  if (dtype == "bf16") return Element::bf16;
  if (dtype == "fp32") return Element::f32;
  return std::nullopt;
}

bool take_output(const AttributeValue& value, KernelConfig& c) {
  const auto element = text(value) ? element_of(*text(value)) : std::nullopt;
  if (element) c.output = *element;
  return element.has_value();
}
bool take_lse(const AttributeValue& value, KernelConfig& c) {
  c.lse = is(value, "ln") ? LseBase::natural : LseBase::log2;
  return is(value, "ln") || is(value, "log2");
}
bool take_scale(const AttributeValue& value, KernelConfig& c) {
  const auto* scale = std::get_if<double>(&value);
  if (scale) c.scale = static_cast<float>(*scale);
  return scale != nullptr;
}
bool take_visible(const AttributeValue& value, KernelConfig& c) {
  return take_choice<&KernelConfig::has_mask>(value, c, "inside", "visible");
}
bool take_sequences(const AttributeValue& value, KernelConfig& c) {
  return take_choice<&KernelConfig::packed>(value, c, "dense", "packed");
}
bool take_q_in(const AttributeValue& value, KernelConfig& c) {
  return take_choice<&KernelConfig::q_in_registers>(value, c, "shared", "registers");
}
bool take_order(const AttributeValue& value, KernelConfig& c) {
  return take_choice<&KernelConfig::longest_first>(value, c, "natural", "longest_first");
}
bool take_overlap(const AttributeValue& value, KernelConfig& c) {
  return take_choice<&KernelConfig::overlap>(value, c, "none", "qk_pv");
}
bool take_grid(const AttributeValue& value, KernelConfig& c) {
  return take_choice<&KernelConfig::persistent>(value, c, "tiles", "persistent");
}
bool take_head_tiles(const AttributeValue& value, KernelConfig& c) {
  return take_choice<&KernelConfig::pack_heads>(value, c, "single", "packed");
}
bool take_row_sum(const AttributeValue& value, KernelConfig& c) {
  return take_choice<&KernelConfig::sum_in_matrix>(value, c, "adds", "matrix");
}
bool take_family(const AttributeValue& value, KernelConfig& c) {
  c.loop = is(value, "hopper") ? Loop::hopper : Loop::sync;
  return text(value) != nullptr;
}
bool take_exclusive(const AttributeValue& value, KernelConfig& c) {
  c.exclusive = is(value, "issue") ? Exclusive::issue : is(value, "softmax") ? Exclusive::softmax : Exclusive::none;
  return c.exclusive != Exclusive::none || is(value, "none");
}
bool take_reference(const AttributeValue& value, KernelConfig& c) {
  c.reference = is(value, "tile")       ? Reference::tile
                : is(value, "previous") ? Reference::previous
                : is(value, "first")    ? Reference::first
                                        : Reference::lazy;
  return c.reference != Reference::lazy;
}
bool take_score(const AttributeValue& value, KernelConfig& c) { return c.has_score = is(value, "score"); }
bool take_sink(const AttributeValue& value, KernelConfig& c) { return c.sink = is(value, "yes"); }
bool take_max_logit(const AttributeValue& value, KernelConfig& c) { return c.max_logit = is(value, "yes"); }
bool take_holes(const AttributeValue& value, KernelConfig& c) { return c.mask_has_holes = is(value, "may_see"); }

bool take_row(const AttributeValue& value, KernelConfig& c) { return c.mask_is_range = is(value, "range"); }

// The loops derive how the exponential is taken from score and scale; what the pass chose must agree.
bool take_exp(const AttributeValue& value, KernelConfig& c) {
  return is(value, !c.has_score && c.scale > 0 ? "exp2_scale_folded" : "exp2");
}

template <std::size_t n>
struct Word {
  char value[n];
  constexpr Word(const char (&v)[n]) { std::copy_n(v, n, value); }
};
// What the loop always does: the attribute may say nothing else.
template <Word expected>
bool only(const AttributeValue& value, KernelConfig&) {
  return is(value, expected.value);
}
// Carries a figure for the reader, or one that other fields imply and finish_*() checks.
bool implied(const AttributeValue&, KernelConfig&) { return true; }

constexpr Honoured kProblem[] = {
    {"head_dims", {}, take_pair<&KernelConfig::head_dim_qk, &KernelConfig::head_dim_v>},
    {"heads", {}, take_pair<&KernelConfig::heads_q, &KernelConfig::heads_kv>},
    {"sequences", {}, take_sequences},
    {"scale", {}, take_scale},
    {"tile_q", {}, take_int<&KernelConfig::tile_q>},
    {"tile_kv", {}, take_int<&KernelConfig::tile_kv>},
    {"fn", Kind::Score, take_score},
    {"fn", Kind::Mask, take_visible},
    {"when", Kind::Mask, only<"mixed">},
    {"holes", Kind::Loop, take_holes},
    {"sink", Kind::Finalize, take_sink},
    {"lse", Kind::Store, take_lse},
    {"max_logit", Kind::Store, take_max_logit},
    {"output", Kind::Store, take_output},
    {"exp", Kind::Softmax, take_exp},
};

// templates/sync/forward.cuh
constexpr Honoured kSync[] = {
    {"family", {}, take_family},
    {"warps", {}, take_int<&KernelConfig::warps>},
    {"rows_per_warp", {}, implied},
    {"q_in", {}, take_q_in},
    {"smem_bytes", {}, implied},
    {"stages", {}, take_int<&KernelConfig::stages>},
    {"order", {}, take_order},
    {"blocks_per_sm", {}, take_int<&KernelConfig::blocks_per_sm>},
    {"registers", {}, implied},
    {"direction", Kind::Loop, only<"last_to_first">},
    {"row", Kind::Mask, implied},
    {"shape", Kind::Mma, only<"m16n8k16">},
    {"issuer", Kind::Mma, only<"warp">},
    {"accumulator", Kind::Mma, only<"registers">},
    {"a_in", Kind::Mma, only<"registers">},
    {"unroll_d", Kind::Mma, take_int<&KernelConfig::unroll_d>},
    {"row_owner", Kind::Softmax, only<"quad">},
    {"row_owner", Kind::Reduce, only<"quad">},
    {"rescaled_by", Kind::Rescale, only<"row_owner">},
    {"reference", Kind::Softmax, only<"lazy">},
    {"copy", Kind::Load, implied},
    {"copy_bytes", Kind::Load, take_int<&KernelConfig::copy_bytes>},
    {"copy_bytes", Kind::Store, take_int<&KernelConfig::copy_bytes>},
    {"tile", Kind::Load, implied},
    {"pending", Kind::Wait, implied},
};

// templates/hopper/forward.cuh
constexpr Honoured kHopper[] = {
    {"family", {}, take_family},
    {"head_tiles", {}, take_head_tiles},
    {"warpgroups", {}, take_int<&KernelConfig::warpgroups>},
    {"exclusive", {}, take_exclusive},
    {"q_in", {}, only<"shared">},
    {"smem_bytes", {}, implied},
    {"stages", {}, take_int<&KernelConfig::stages>},
    {"q_stages", {}, take_int<&KernelConfig::q_stages>},
    {"overlap", {}, take_overlap},
    {"order", {}, take_order},
    {"grid", {}, take_grid},
    {"cluster", {}, take_int<&KernelConfig::cluster>},
    {"registers", {}, implied},
    {"register_limit", Kind::Producer, implied},
    {"register_limit", Kind::Consumer, implied},
    {"row", Kind::Mask, take_row},
    {"direction", Kind::Loop, only<"last_to_first">},
    {"shape", Kind::Mma, implied},
    {"issuer", Kind::Mma, only<"warpgroup">},
    {"accumulator", Kind::Mma, only<"registers">},
    {"a_in", Kind::Mma, implied},
    {"row_owner", Kind::Softmax, only<"quad">},
    {"row_owner", Kind::Reduce, only<"quad">},
    {"rescaled_by", Kind::Rescale, only<"row_owner">},
    {"reference", Kind::Softmax, take_reference},
    {"exp_fma", Kind::Softmax, take_int<&KernelConfig::fma_exponentials>},
    {"row_sum", Kind::Softmax, take_row_sum},
    {"redo", Kind::Finalize, only<"tile">},
    {"copy", Kind::Load, implied},
    {"copy", Kind::Store, implied},  // follows from `q_stages` and the types: stages_output()
    {"copy_bytes", Kind::Store, take_int<&KernelConfig::copy_bytes>},
    {"barrier", Kind::Await, implied},
    {"pending", Kind::Wait, implied},
    // Where the statements of overlapping tiles stand follows from `overlap`.
    {"tile", Kind::Load, implied},
    {"tile", Kind::Await, implied},
    {"tile", Kind::Release, implied},
    {"tile", Kind::Commit, implied},
    {"tile", Kind::Wait, implied},
    {"tile", Kind::Mma, implied},
    {"tile", Kind::Score, implied},
    {"tile", Kind::Mask, implied},
    {"tile", Kind::Softmax, implied},
    {"tile", Kind::Rescale, implied},
    {"tile", Kind::Convert, implied},
};

// codegen/host_*.cpp
constexpr Honoured kHost[] = {
    {"family", {}, only<"host">},
    {"vector_bits", {}, implied},
    {"direction", Kind::Loop, only<"last_to_first">},
    {"row", Kind::Mask, implied},
    {"reference", Kind::Softmax, only<"tile">},
};

struct Matcher {
  std::string_view loop;
  std::span<const Honoured> rows;
  KernelConfig& config;

  const Honoured* find(std::string_view key, Place place) const {
    for (const std::span<const Honoured> table : {std::span<const Honoured>(kProblem), rows}) {
      const auto row =
          std::find_if(table.begin(), table.end(), [&](const Honoured& h) { return h.key == key && h.place == place; });
      if (row != table.end()) return &*row;
    }
    return nullptr;
  }

  Result<void> take(const Attributes& attributes, Place place) const {
    const std::string_view where = place ? name(*place) : "program";
    for (const Attribute& a : attributes.all()) {
      const Honoured* row = find(a.key, place);
      if (!row) {
        return unsupported(
            fmt::format("{} of {}: the attribute (written by pass {}) is honoured by no template of the {} family",
                        a.key, where, a.writer, loop));
      }
      if (!row->take(a.value, config)) {
        return unsupported(fmt::format("{} of {}: the {} family does not do `{}` (written by pass {})", a.key, where,
                                       loop, print(a.value), a.writer));
      }
    }
    return {};
  }
};

// What follows from other fields must say the same as the program.
Result<void> agrees(const Attributes& attributes, std::string_view key, const AttributeValue& value) {
  const Attribute* a = attributes.find(key);
  if (a && a->value == value) return {};
  return internal(
      fmt::format("{} of the program is {}, the template's is {}", key, a ? print(a->value) : "not set", print(value)));
}

// Takes constant factors off a product, a quotient or a negation.
Expr without_factors(Expr expr, double& factor) {
  while (true) {
    const auto constant = [&](std::size_t i) { return expr->args[i]->op == Op::FloatConst; };
    if (expr->op == Op::Neg) {
      factor = -factor;
    } else if (expr->op == Op::Mul && constant(0)) {
      factor *= expr->args[0]->real;
    } else if ((expr->op == Op::Mul || expr->op == Op::Div) && constant(1)) {
      factor = expr->op == Op::Mul ? factor * expr->args[1]->real : factor / expr->args[1]->real;
    } else {
      return expr;
    }
    expr = expr->args[expr->op == Op::Mul && constant(0) ? 1 : 0];
  }
}

// KernelConfig::score_cap and score_factor. Factors far from 1 are left alone: their powers must not leave the range of
// fp32.
void set_cap(const AttentionSpec& spec, KernelConfig& c) {
  const auto moderate = [](double factor) { return std::fabs(factor) > 0x1p-20 && std::fabs(factor) < 0x1p20; };
  if (!spec.score) return;
  double cap = 1, factor = spec.effective_scale();
  const Expr tanh = without_factors(simplify(spec.score), cap);
  if (tanh->op != Op::Tanh || !moderate(cap)) return;
  const Expr argument = without_factors(tanh->args[0], factor);
  if (argument->op != Op::Variable || argument->variable != Variable::S || !moderate(factor) || cap * factor < 0)
    return;
  c.score_cap = static_cast<float>(std::fabs(cap));
  c.score_factor = static_cast<float>(std::fabs(factor));
}

Result<void> finish_sync(const Program& program, Plan& plan) {
  plan.smem_bytes = sync_layout(plan.config).bytes;
  plan.threads = threads_of(plan.config);
  FLASHJIT_TRY(agrees(program.attributes, "smem_bytes", std::int64_t{plan.smem_bytes}));
  return agrees(program.attributes, "rows_per_warp", std::int64_t{rows_per_warp(plan.config)});
}

Result<void> finish_hopper(Program& program, Plan& plan) {
  set_inputs(plan.spec, plan.config);
  const KernelConfig& c = plan.config;
  plan.smem_bytes = hopper_layout(c).bytes;
  plan.threads = hopper_threads(c);
  FLASHJIT_TRY(agrees(program.attributes, "smem_bytes", std::int64_t{plan.smem_bytes}));
  FLASHJIT_TRY(agrees(program.attributes, "tile_q", std::int64_t{c.warpgroups * kRowsPerWarpgroup}));
  return for_each(program.body, [&](Statement& s) -> Result<void> {
    if (s.kind == Kind::Producer) return agrees(s.attributes, "register_limit", std::int64_t{producer_registers(c)});
    if (s.kind == Kind::Consumer) return agrees(s.attributes, "register_limit", std::int64_t{consumer_registers(c)});
    if (s.kind == Kind::Load) {
      const std::string& tile = program.buffers[s.writes[0]].name;
      const bool shared_by_blocks = c.cluster > 1 && tile != "Qs" && tile != "Is";
      return agrees(s.attributes, "copy", std::string(shared_by_blocks ? "tma_multicast" : "tma"));
    }
    if (s.kind != Kind::Mma) return {};
    const bool scores = s.writes[0] == program.buffer("S");
    FLASHJIT_TRY(agrees(s.attributes, "a_in", std::string(scores ? "shared" : "registers")));
    return agrees(s.attributes, "shape", fmt::format("m64n{}k16", scores ? c.tile_kv : output_columns(c)));
  });
}

std::span<const Honoured> honoured_by(std::string_view family) {
  if (family == name(Family::Sync)) return kSync;
  if (family == name(Family::Hopper)) return kHopper;
  return kHost;
}

}  // namespace

Result<void> select_template(Program& program, Plan& plan) {
  const Attribute* family = program.attributes.find("family");
  if (!family) return internal("the program has no family");
  const auto element = element_of(name(plan.spec.dtype));
  if (!element) return unsupported(fmt::format("dtype: {} is computed by no template", name(plan.spec.dtype)));
  plan.config = KernelConfig{};
  plan.config.element = *element;
  plan.config.score_has_tanh = plan.spec.score && uses(plan.spec.score, Op::Tanh);
  set_cap(plan.spec, plan.config);
  plan.config.score_loads = loads_per_key(plan.spec.score);
  const std::string loop = print(family->value);
  const Matcher matcher{loop, honoured_by(loop), plan.config};
  FLASHJIT_TRY(matcher.take(program.attributes, {}));
  FLASHJIT_TRY(for_each(program.body, [&](Statement& s) { return matcher.take(s.attributes, s.kind); }));
  if (loop == name(Family::Sync)) return finish_sync(program, plan);
  if (loop == name(Family::Hopper)) return finish_hopper(program, plan);
  return {};
}

}  // namespace flashjit

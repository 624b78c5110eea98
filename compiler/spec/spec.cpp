#include "compiler/spec/spec.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "compiler/analysis/interval.h"
#include "compiler/language/gradient.h"
#include "compiler/language/named.h"
#include "compiler/spec/config_words.h"
#include "compiler/spec/fields/accumulate.h"
#include "compiler/spec/fields/blocks.h"
#include "compiler/spec/fields/dropout.h"
#include "compiler/spec/flags.h"
#include "compiler/spec/fields/gradients.h"
#include "compiler/spec/fields/head_tables.h"
#include "compiler/spec/fields/latents.h"
#include "compiler/spec/fields/narrow.h"
#include "compiler/spec/operands.h"
#include "compiler/spec/fields/outputs.h"
#include "compiler/spec/fields/places.h"
#include "compiler/spec/fields/rope.h"
#include "compiler/spec/fields/select.h"
#include "compiler/spec/fields/shared_prefix.h"
#include "compiler/spec/spec_names.h"
#include "compiler/spec/text_form.h"
#include "compiler/spec/whole_numbers.h"
#include "compiler/spec/operations/other_operations.h"
#include "templates/dropout.h"
#include "templates/latents/rows.h"

namespace flashjit {

namespace {

constexpr int kHeadDimStep = 8;  // They are 16 bytes of a 16-bit type, the chunk of all copies.
constexpr std::size_t kMaxParamName = 32;

std::string print_pair(int first, int second) {
  return first == second ? fmt::format("{}", first) : fmt::format("{}/{}", first, second);
}

Result<void> check_head_dim(std::string_view which, int d, int most) {
  if (d > most) {
    return invalid(
        fmt::format("d: {}{} is above {}, the largest head dim; split the head or use d={}", which, d, most, most));
  }
  if (d < kHeadDimStep) {
    return invalid(fmt::format("d: {}{} is below {}, the smallest head dim; pad with zeros to d={}", which, d,
                               kHeadDimStep, kHeadDimStep));
  }
  if (d % kHeadDimStep != 0) {
    return invalid(fmt::format("d: {}{} is not a multiple of {}; pad with zeros to d={}", which, d, kHeadDimStep,
                               (d + kHeadDimStep - 1) / kHeadDimStep * kHeadDimStep));
  }
  return {};
}

Result<void> check_head_dims(const AttentionSpec& spec) {
  if (merges(spec)) return check_head_dim("", spec.d_v, kMaxLatentDimV);
  if (quantizes(spec)) return check_head_dim("", spec.d_qk, has_latent_rows(spec) ? kMaxLatentDimQk : kMaxHeadDim);
  if (!spec.v_in_k) {
    if (spec.d_v < spec.d_qk && spec.d_qk > kMaxHeadDim && spec.d_qk <= kMaxLatentDimQk) {
      return invalid(fmt::format(
          "d: QK dim {} is above {}, the largest head dim; where V is the first {} columns of K, write v_in_k, which "
          "has dims up to {}/{}",
          spec.d_qk, kMaxHeadDim, spec.d_v, kMaxLatentDimQk, kMaxLatentDimV));
    }
    const bool same = spec.d_qk == spec.d_v;
    FLASHJIT_TRY(check_head_dim(same ? "" : "QK dim ", spec.d_qk, kMaxHeadDim));
    return check_head_dim(same ? "" : "V dim ", spec.d_v, kMaxHeadDim);
  }
  FLASHJIT_TRY(check_head_dim("QK dim ", spec.d_qk, kMaxLatentDimQk));
  FLASHJIT_TRY(check_head_dim("V dim ", spec.d_v, kMaxLatentDimV));
  if (spec.d_v <= spec.d_qk) return {};
  return invalid(
      fmt::format("v_in_k: V is the first {} columns of K, and K has {}; write d={} with the larger number first, or "
                  "leave v_in_k out",
                  spec.d_v, spec.d_qk, print_pair(spec.d_v, spec.d_qk)));
}

Result<void> check_heads(const AttentionSpec& spec) {
  for (const int heads : {spec.heads_q, spec.heads_kv}) {
    if (heads < 1 || heads > kMaxHeads) {
      return invalid(fmt::format("heads: {} is outside 1..{}; {}", heads, kMaxHeads,
                                 heads < 1 ? "where there is none, there is nothing to compute"
                                           : "where there are more, split them over several calls"));
    }
  }
  if (spec.heads_q % spec.heads_kv != 0) {
    return invalid(
        fmt::format("heads: {} query heads are no multiple of {} KV heads; every KV head must serve the same number "
                    "of query heads",
                    spec.heads_q, spec.heads_kv));
  }
  return {};
}

Result<void> check_bound(std::string_view field, const SizeBound& bound) {
  if (bound.max < 1 || bound.max > SizeBound::kLargest) {
    return invalid(fmt::format("{}: the bound {} is outside 1..{}", field, bound.max, SizeBound::kLargest));
  }
  if (bound.min != 0 && !bound.pinned()) {
    return invalid(
        fmt::format("{}: the lower bound {} differs from the upper bound {}; pin the size or leave the lower bound 0",
                    field, bound.min, bound.max));
  }
  return {};
}

Result<void> check_scale(const AttentionSpec& spec) {
  if (spec.scale == 0) return {};
  const float scale = static_cast<float>(spec.scale);
  if (!std::isfinite(spec.scale) || !std::isfinite(scale) || scale == 0) {
    return invalid(
        fmt::format("scale: {} is not a finite, non-zero 32-bit number; leave it out for 1/sqrt(d)", spec.scale));
  }
  return {};
}

Result<void> check_dtypes(const AttentionSpec& spec) {
  if (!is_float(spec.dtype)) {
    return invalid(fmt::format("dtype: {} is no type of a tensor that is computed with; use one of {}",
                               name(spec.dtype), join(kTensorDtypeNames)));
  }
  if (!is_float(spec.kv_dtype) && spec.kv_dtype != Dtype::I8) {
    return invalid(fmt::format("kv: {} is no type of a tensor that is computed with; use one of {}",
                               name(spec.kv_dtype), join(kCacheNames)));
  }
  return check_out(spec);
}

Result<void> check_alignment(const AttentionSpec& spec) {
  const int bytes = spec.align_bytes;
  if (bytes != 16 && bytes != 8 && bytes != 4 && bytes != 2) {
    return invalid(fmt::format(
        "bytes: {} is none of 16, 8, 4, 2; give the largest that all pointers and strides are multiples of", bytes));
  }
  const int element = std::max(size_of(spec.dtype), size_of(spec.kv_dtype));
  if (bytes < element) {
    return invalid(fmt::format(
        "bytes: {} is below {}, the size of an element; tensors are at least aligned to their elements, so use bytes={}",
        bytes, element, element));
  }
  return {};
}

Result<void> check_layout(const AttentionSpec& spec) {
  if (spec.page_size < 0 || spec.page_size > kMaxPageSize) {
    return invalid(fmt::format("layout: {} tokens per page is outside 1..{}", spec.page_size, kMaxPageSize));
  }
  if (!is_paged(spec) || spec.layout != Layout::Bhsd) return {};
  return invalid(
      fmt::format("layout: with pages, Q is bshd or packed; write paged({0}) or packed/paged({0})", spec.page_size));
}

Result<void> check_append(const AttentionSpec& spec) {
  FLASHJIT_TRY(check_rope(spec));
  if (!spec.append || spec.alignment == Alignment::BottomRight) return {};
  return invalid(
      "append: new tokens are the last of their sequence, where align=bottom_right has the queries; leave "
      "align=top_left out");
}

Result<void> check_sizes(const AttentionSpec& spec) {
  FLASHJIT_TRY(check_head_dims(spec));
  FLASHJIT_TRY(check_heads(spec));
  FLASHJIT_TRY(check_layout(spec));
  FLASHJIT_TRY(check_append(spec));
  FLASHJIT_TRY(check_scales(spec));
  FLASHJIT_TRY(check_transposed(spec));
  FLASHJIT_TRY(check_latents(spec));
  FLASHJIT_TRY(check_scale(spec));
  FLASHJIT_TRY(check_dropout(spec));
  FLASHJIT_TRY(check_blocks(spec));
  FLASHJIT_TRY(check_selected(spec));
  FLASHJIT_TRY(check_bound("b", spec.batch));
  FLASHJIT_TRY(check_bound("q_len", spec.q_len));
  FLASHJIT_TRY(check_bound("k_len", spec.k_len));
  return check_alignment(spec);
}

// ---- parameters and expressions ----

bool is_identifier(std::string_view text) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  if (text.empty() || !letter(text[0])) return false;
  return std::all_of(text.begin(), text.end(), [&](char c) { return letter(c) || (c >= '0' && c <= '9'); });
}

// A parameter hides the operand of its name. If that operand has no field, a call could not give it.
Result<void> check_hides_nothing(const Param& param, const AttentionSpec& spec) {
  const std::size_t hidden = find_operand(param.name);
  if (hidden == kOperands.size() || kOperands[hidden].has_field || !kOperands[hidden].belongs_to(spec)) return {};
  return invalid(fmt::format("params: {} is a tensor that this spec reads itself; choose another name", param.name));
}

Result<void> check_param(const Param& param, const std::vector<Param>& earlier) {
  if (!is_identifier(param.name) || param.name.size() > kMaxParamName) {
    return invalid(fmt::format("params: {} is no name; use up to {} letters, digits and _, a letter first",
                               quoted(param.name), kMaxParamName));
  }
  if (is_reserved_name(param.name)) {
    return invalid(
        fmt::format("params: {} is a word of the language, so masks and scores could not read it; choose another name",
                    param.name));
  }
  if (param.rank < 0 || param.rank > kMaxParamRank) {
    return invalid(fmt::format("params: {} has {} dimensions, the limit is {}", param.name, param.rank, kMaxParamRank));
  }
  if (param.rank == 0 && (param.dtype == Dtype::F16 || param.dtype == Dtype::BF16)) {
    return invalid(fmt::format("params: {} is a {} scalar; a scalar costs nothing in fp32, use that", param.name,
                               name(param.dtype)));
  }
  if (std::ranges::find(kParamDtypeNames, name(param.dtype)) == kParamDtypeNames.end()) {
    return invalid(
        fmt::format("params: {} is {}; use one of {}", param.name, name(param.dtype), join(kParamDtypeNames)));
  }
  for (const Param& other : earlier) {
    if (other.name == param.name) return invalid(fmt::format("params: {} is declared twice", param.name));
  }
  return {};
}

// Parameters of expressions that were built in C++ count as declared.
Result<void> declare_params_of(const Expr& expr, std::vector<Param>& declared) {
  if (expr.get() == nullptr) return {};
  for (const Param& param : params_of(expr)) {
    const auto same_name =
        std::find_if(declared.begin(), declared.end(), [&](const Param& p) { return p.name == param.name; });
    if (same_name == declared.end()) {
      declared.push_back(param);
    } else if (!(*same_name == param)) {
      return invalid(fmt::format("params: {} is used as {} with {} dimensions, but declared as {} with {}", param.name,
                                 name(param.dtype), param.rank, name(same_name->dtype), same_name->rank));
    }
  }
  return {};
}

// Returns the expression that the text stands for, as it is written, and sets `given` to its simple form. An expression
// that is given already must agree with the text. Errors name the field.
Result<Expr> resolve(std::string_view field, Expr& given, std::string& text, std::vector<Param>& params,
                     const AttentionSpec& spec) {
  if (given.get() == nullptr && text.empty()) return Expr();
  if (text.empty()) text = print(given);
  const auto forbidden =
      std::find_if(text.begin(), text.end(), [](char c) { return c < 0x20 || c >= 0x7f || c == '"'; });
  if (forbidden != text.end()) {
    return invalid(fmt::format("{}: the text may hold printable ASCII characters without double quotes", field),
                   caret(text, forbidden - text.begin()));
  }
  const ParseContext context{&params, spec.alignment == Alignment::BottomRight, field == "score"};
  auto parsed = parse_expr(text, context);
  if (!parsed) {
    Error error = parsed.error();
    error.message = fmt::format("{}: {}", field, error.message);
    return error;
  }
  const Expr simple = simplify(*parsed);
  if (given && !same(given, simple) && !same(simplify(given), simple)) {
    return invalid(fmt::format(
        "{0}: the expression and {0}_text disagree; clear one of them (align changes what named rows mean)", field));
  }
  given = simple;
  return *parsed;
}

Result<void> check_expression_ranges(std::string_view field, const Expr& expr, const AttentionSpec& spec) {
  if (expr.get() == nullptr) return {};
  if (auto checked = check_ranges(expr, variable_ranges(spec)); !checked) {
    Error error = checked.error();
    error.message = fmt::format("{}: {}", field, error.message);
    return error;
  }
  return {};
}

// Returns true if the text has the name. A stage that no later one reads leaves nothing in the expression, so only the
// text has its name.
bool is_written(std::string_view name, std::string_view text) {
  const auto in_name = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  for (std::size_t at = text.find(name); at != text.npos; at = text.find(name, at + 1)) {
    const std::size_t end = at + name.size();
    if ((at == 0 || !in_name(text[at - 1])) && (end == text.size() || !in_name(text[end]))) return true;
  }
  return false;
}

Result<void> check_params_used(const AttentionSpec& spec, const Expr& mask, const Expr& score) {
  std::vector<Param> used = mask ? params_of(mask) : std::vector<Param>();
  if (score) {
    for (const Param& param : params_of(score)) used.push_back(param);
  }
  for (const Param& param : spec.declared) {
    if (std::find(used.begin(), used.end(), param) == used.end()) {
      if (is_written(param.name, spec.score_text)) {
        return invalid(
            fmt::format("params: {} is read only by stages of the score whose result the stage behind them does not "
                        "read; let that one read s, or remove {} and these stages",
                        param.name, param.name));
      }
      return invalid(fmt::format("params: {} is declared, but neither mask nor score uses it; remove it", param.name));
    }
  }
  return {};
}

Result<void> resolve_expressions(AttentionSpec& spec) {
  take_out_blocks(spec);
  if (spec.mask_text.empty()) FLASHJIT_TRY(declare_params_of(spec.mask, spec.declared));
  if (spec.score_text.empty()) FLASHJIT_TRY(declare_params_of(spec.score, spec.declared));
  std::vector<Param> params;
  for (const Param& param : spec.declared) {
    FLASHJIT_TRY(check_param(param, params));
    params.push_back(param);
  }
  FLASHJIT_ASSIGN(mask, resolve("mask", spec.mask, spec.mask_text, params, spec));
  FLASHJIT_ASSIGN(score, resolve("score", spec.score, spec.score_text, params, spec));
  FLASHJIT_TRY(put_in_blocks(spec, params));
  if (params.size() > kMaxParams) {
    return invalid(fmt::format(
        "params: {} parameters, with those of named masks and scores, are above the limit of {}; merge some into one tensor",
        params.size(), kMaxParams));
  }
  for (const Param& param : params) FLASHJIT_TRY(check_hides_nothing(param, spec));
  FLASHJIT_TRY(check_params_used(spec, mask, score));
  spec.params = std::move(params);
  FLASHJIT_TRY(check_expression_ranges("mask", spec.mask, spec));
  return check_expression_ranges("score", spec.score, spec);
}

// ---- printing ----

std::string print_layout(const AttentionSpec& spec) {
  const std::string_view name = kLayoutNames[static_cast<std::size_t>(spec.layout)];
  if (is_paged(spec))
    return fmt::format(" layout={}paged({})", spec.layout == Layout::Packed ? "packed/" : "", spec.page_size);
  return spec.layout == Layout::Bshd ? std::string() : fmt::format(" layout={}", name);
}

void print_bound(std::string& out, std::string_view field, const SizeBound& bound) {
  if (bound == SizeBound{}) return;
  out += fmt::format(" {}{}{}", field, bound.pinned() ? "=" : "<=", bound.max);
}

std::string print_params(const std::vector<Param>& params) {
  std::string out;
  for (const Param& param : params) {
    if (!out.empty()) out += ", ";
    out += fmt::format("{}: {}", param.name, name(param.dtype));
    if (param.rank > 0) out += fmt::format("[{}]", param.rank);
  }
  return out;
}

// Returns the LSE of a spec that does not name one. bwd has to read it, and so does a call that goes on from results.
Lse usual_lse(const AttentionSpec& spec) {
  return is_backward(spec) || goes_on_from_results(spec) ? Lse::ln : Lse::none;
}

}  // namespace

double AttentionSpec::effective_scale() const {
  return scale != 0 ? scale : 1.0 / std::sqrt(static_cast<double>(d_qk));
}

std::int64_t cached_bytes(const AttentionSpec& spec) {
  const int of_head =
      has_latent_rows(spec) ? latent_rows(spec.cache_format).row_bytes : cached_dims(spec) * size_of(spec.kv_dtype);
  return std::int64_t{spec.heads_kv} * of_head;
}

VariableRanges variable_ranges(const AttentionSpec& spec) {
  if (spec.places) {  // The spec bounds the rows of a call, which may stand anywhere in the longer sequence.
    constexpr std::int64_t kAny = SizeBound::kLargest;
    return default_ranges(spec.batch.max, spec.heads_q, spec.heads_kv, kAny, kAny);
  }
  VariableRanges ranges = default_ranges(spec.batch.max, spec.heads_q, spec.heads_kv, spec.q_len.max, spec.k_len.max);
  // Where lengths differ, a pin is the length of the longest sequence.
  if (!has_own_q_lens(spec)) ranges.of[static_cast<int>(Variable::QLen)].lo = spec.q_len.min;
  if (!has_own_k_lens(spec)) ranges.of[static_cast<int>(Variable::KLen)].lo = spec.k_len.min;
  return ranges;
}

VariableRanges variable_ranges(const AttentionSpec& spec, std::int64_t batch, std::int64_t q_len, std::int64_t k_len) {
  VariableRanges ranges = default_ranges(batch, spec.heads_q, spec.heads_kv, q_len, k_len);
  if (!has_own_q_lens(spec)) ranges.of[static_cast<int>(Variable::QLen)] = {q_len, q_len};
  if (!has_own_k_lens(spec)) ranges.of[static_cast<int>(Variable::KLen)] = {k_len, k_len};
  return ranges;
}

std::string print(const AttentionSpec& spec) {
  std::string out = fmt::format("{} {}", kOperationNames[static_cast<int>(spec.operation)], name(spec.dtype));
  if (spec.kv_dtype != spec.dtype) out += fmt::format(" kv={}", name(spec.kv_dtype));
  if (has_latent_rows(spec) && !quantizes(spec)) out += fmt::format(" kv={}", word(spec.cache_format));
  if (spec.compute) out += fmt::format(" compute={}", name(*spec.compute));
  if (const std::string dtypes = print_out(spec); dtypes != name(usual_out(spec))) out += " out=" + dtypes;
  out += fmt::format(" d={}", print_pair(spec.d_qk, spec.d_v));
  if (spec.heads_q != 1 || spec.heads_kv != 1) out += fmt::format(" heads={}", print_pair(spec.heads_q, spec.heads_kv));
  out += print_layout(spec);
  if (spec.selected != 0) out += fmt::format(" select={}({})", spec.whole_pages ? "pages" : "keys", spec.selected);
  if (has_blocks(spec)) out += " blocks=" + print_blocks(spec);
  if (!spec.mask_text.empty()) out += fmt::format(" mask=\"{}\"", spec.mask_text);
  if (!spec.score_text.empty()) out += fmt::format(" score=\"{}\"", spec.score_text);
  if (!spec.declared.empty()) out += fmt::format(" params=\"{}\"", print_params(spec.declared));
  if (!spec.grads.empty()) out += fmt::format(" grads=\"{}\"", fmt::join(spec.grads, ", "));
  if (spec.scale != 0) out += fmt::format(" scale={}", print_real(spec.scale));
  if (spec.alignment != Alignment::BottomRight)
    out += fmt::format(" align={}", kAlignmentNames[static_cast<int>(spec.alignment)]);
  if (spec.lse != usual_lse(spec)) out += fmt::format(" lse={}", word(spec.lse));
  for (const SpecFlag& flag : kSpecFlags) {
    if (spec.*flag.of_spec && !(flag.of_spec == &AttentionSpec::k_lens && implies_k_lens(spec)))
      out += fmt::format(" {}", flag.name);
  }
  if (spec.scale_block != 0) out += fmt::format(" scales=block({})", spec.scale_block);
  if (spec.rope != Rope::none) out += fmt::format(" rope={}({})", word(spec.rope), spec.rope_dims);
  if (spec.rope_from != 0) out += fmt::format(" rope_from={}", spec.rope_from);
  if (spec.rope_base != 0) out += fmt::format(" rope_base={}", print_real(spec.rope_base));
  if (spec.dropout != 0) out += fmt::format(" dropout={}", print_real(spec.dropout));
  print_bound(out, "b", spec.batch);
  print_bound(out, "q_len", spec.q_len);
  print_bound(out, "k_len", spec.k_len);
  if (spec.align_bytes != 16) out += fmt::format(" bytes={}", spec.align_bytes);
  if (spec.numerics != Numerics::Fast)
    out += fmt::format(" numerics={}", kNumericsNames[static_cast<int>(spec.numerics)]);
  return out;
}

std::string meaning(const AttentionSpec& spec) {
  AttentionSpec plain = spec;
  if (written_mask(spec)) plain.mask_text = print(written_mask(spec));
  if (spec.score) plain.score_text = print(spec.score);
  plain.declared = spec.params;
  plain.dropout = static_cast<double>(dropped_of(spec.dropout)) / kDropoutNumbers;
  return print(plain);
}

Result<void> validate(AttentionSpec& spec) {
  FLASHJIT_TRY(check_dtypes(spec));
  if (has_blocks(spec) && spec.blocks.heads == 0) spec.blocks.heads = spec.heads_q;
  FLASHJIT_TRY(check_sizes(spec));
  if (implies_k_lens(spec)) spec.k_lens = true;
  if (spec.lse == Lse::none) spec.lse = usual_lse(spec);
  FLASHJIT_TRY(check_backward(spec));
  if (attends(spec)) FLASHJIT_TRY(check_accumulate(spec));
  FLASHJIT_TRY(check_narrowing(spec));
  if (merges(spec)) return check_merge(spec);
  if (quantizes(spec)) return check_quantize(spec);
  FLASHJIT_TRY(resolve_expressions(spec));
  if (indexes(spec)) return check_index(spec);
  FLASHJIT_TRY(check_gradients(spec));
  FLASHJIT_TRY(resolve_expressions_of_selected(spec));
  FLASHJIT_TRY(check_places(spec));
  FLASHJIT_TRY(check_head_tables(spec));
  return spec.shared_prefix ? check_shared_prefix(spec) : Result<void>();
}

Result<void> check_supported(const AttentionSpec& spec) {
  if (has_scaled_queries(spec)) FLASHJIT_TRY(check_narrow_supported(spec));
  if (spec.kv_dtype != spec.dtype && !has_scaled_keys(spec)) {
    return unsupported(fmt::format(
        "kv: {} is neither the dtype {} nor one of 8 bits (e4m3, e5m2, int8), which kernels widen; convert K and V and "
        "use kv={}",
        name(spec.kv_dtype), name(spec.dtype), name(spec.dtype)));
  }
  FLASHJIT_TRY(check_out_supported(spec));
  if (is_backward(spec)) FLASHJIT_TRY(gradients_of(spec.score, spec.mask, {}));
  return drops(spec) ? check_dropout_supported(spec) : Result<void>();
}

}  // namespace flashjit

#include "compiler/spec/fields/gradients.h"

#include <algorithm>

#include <fmt/format.h>

#include "compiler/language/gradient.h"
#include "compiler/spec/operands.h"

namespace flashjit {

namespace {

constexpr std::string_view kSink = "sink";

Result<void> check_sink_gradient(const AttentionSpec& spec) {
  const auto named = std::ranges::find(spec.params, kSink, &Param::name);
  if (named != spec.params.end()) {
    return invalid("grads: `sink` is the sink of the spec, and a parameter has that name; choose another one for it");
  }
  if (!spec.sink) return invalid("grads: the spec has no `sink`; add the flag, or leave the name out");
  if (std::ranges::count(spec.grads, kSink) > 1) return invalid("grads: `sink` stands there twice; once is enough");
  return {};
}

// Every gradient is a tensor of the call, so its name must differ from all others.
Result<void> check_gradient_names(const AttentionSpec& spec) {
  for (const std::string& of : spec.grads) {
    if (of == kSink) continue;
    const std::string name = gradient_name(of);
    const std::size_t other = find_operand(name);
    const bool is_operand = other < kOperands.size() && kOperands[other].belongs_to(spec);
    if (!is_operand && std::ranges::find(spec.params, name, &Param::name) == spec.params.end()) continue;
    return invalid(
        fmt::format("grads: the gradient of `{}` is a tensor `{}`, and so is {}; choose another name for `{}`", of,
                    name, is_operand ? "one that bwd has anyway" : "a parameter", of));
  }
  return {};
}

}  // namespace

Result<void> check_gradients(AttentionSpec& spec) {
  if (spec.grads.empty()) return {};
  if (!is_backward(spec)) return invalid("grads: only bwd writes gradients; use bwd, or leave it out");
  if (std::ranges::count(spec.grads, kSink) > 0) FLASHJIT_TRY(check_sink_gradient(spec));
  std::vector<std::string> of_params = spec.grads;
  std::erase(of_params, kSink);
  FLASHJIT_TRY(gradients_of(spec.score, spec.mask, of_params));
  if (of_params.size() > kMaxGradients) {
    return invalid(fmt::format(
        "grads: {} parameters are above the limit of {}; merge some into one tensor, or call bwd for each half of them",
        of_params.size(), kMaxGradients));
  }
  // The order is the same however they were written, so that they share a kernel.
  const auto index = [&](const std::string& of) { return std::ranges::find(spec.params, of, &Param::name); };
  std::ranges::sort(spec.grads, {}, index);
  return check_gradient_names(spec);
}

bool has_sink_gradient(const AttentionSpec& spec) { return std::ranges::count(spec.grads, kSink) > 0; }

std::vector<int> params_with_gradients(const AttentionSpec& spec) {
  std::vector<int> numbers;
  for (std::size_t i = 0; i < spec.params.size(); ++i) {
    if (std::ranges::count(spec.grads, spec.params[i].name) > 0) numbers.push_back(static_cast<int>(i));
  }
  return numbers;
}

Result<void> check_backward(const AttentionSpec& spec) {
  if (spec.dlse && !is_backward(spec)) return invalid("dlse: only bwd reads gradients; use bwd, or leave it out");
  if (!is_backward(spec)) return {};
  const auto refuse = [](std::string_view field, std::string_view way_out) {
    return invalid(fmt::format("{}: bwd has no such thing; {}", field, way_out));
  };
  if (spec.max_logit) return refuse("max_logit", "it has no gradient, leave it out");
  if (spec.append) return refuse("append", "append in fwd, and give bwd all of k and v");
  if (spec.shared_prefix) return refuse("shared_prefix", "give every sequence its own keys");
  if (spec.v_in_k && spec.out_dk != spec.out_dv) {
    return invalid(
        fmt::format("out: {} for dk and {} for dv, which is added to the first columns of dk with v_in_k; write the "
                    "same for both",
                    name(spec.out_dk), name(spec.out_dv)));
  }
  if (is_paged(spec)) return refuse("layout", "keys in pages have no gradients, use layout=packed");
  if (spec.k_lens) return refuse("k_lens", "use layout=packed, whose offsets lie on the device");
  if (spec.kv_dtype != spec.dtype) return refuse("kv", "k and v are of the dtype, convert them");
  return {};
}

}  // namespace flashjit

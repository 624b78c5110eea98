#include "compiler/spec/fields/outputs.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "compiler/spec/config_words.h"
#include "compiler/spec/spec_names.h"
#include "compiler/spec/text_form.h"

namespace flashjit {

namespace {

constexpr OutField kOutFields[] = {{"o", &AttentionSpec::out_dtype},
                                   {"dq", &AttentionSpec::out_dq},
                                   {"dk", &AttentionSpec::out_dk},
                                   {"dv", &AttentionSpec::out_dv}};

}  // namespace

std::span<const OutField> out_fields(const AttentionSpec& spec) {
  const std::span<const OutField> all = kOutFields;
  return is_backward(spec) ? all.subspan(1) : all.first(1);
}

void set_out(AttentionSpec& spec, Dtype dtype) {
  for (const OutField& field : kOutFields) spec.*field.dtype = dtype;
}

std::string print_out(const AttentionSpec& spec) {
  if (quantizes(spec) && has_latent_rows(spec)) return std::string(word(spec.cache_format));
  std::vector<std::string_view> names;
  for (const OutField& field : out_fields(spec)) names.push_back(name(spec.*field.dtype));
  if (std::ranges::count(names, names.front()) == std::ssize(names)) return std::string(names.front());
  return fmt::format("{}", fmt::join(names, "/"));
}

Result<void> check_out(const AttentionSpec& spec) {
  if (quantizes(spec)) {
    if (is_float(spec.out_dtype) && size_of(spec.out_dtype) == 1) return {};
    return invalid(
        fmt::format("out: {} is no type of 8 bits, which quantize writes; use e4m3 or e5m2, or latent656 or latent584",
                    name(spec.out_dtype)));
  }
  if (indexes(spec)) {
    if (spec.out_dtype == Dtype::F32) return {};
    return invalid(
        fmt::format("out: {} is not fp32, which the scores of an index are; leave it out", name(spec.out_dtype)));
  }
  for (const OutField& field : out_fields(spec)) {
    const Dtype dtype = spec.*field.dtype;
    if (is_float(dtype)) continue;
    return invalid(fmt::format("out: {} is no type of a tensor that is computed with; use one of {} for {}",
                               name(dtype), join(kWideDtypeNames), field.tensor));
  }
  return {};
}

Result<void> check_out_supported(const AttentionSpec& spec) {
  if (quantizes(spec)) return {};
  for (const OutField& field : out_fields(spec)) {
    const Dtype dtype = spec.*field.dtype;
    if (dtype != Dtype::E4M3 && dtype != Dtype::E5M2) continue;
    return unsupported(fmt::format("out: {} has no kernel in this build; use one of {} for {}", name(dtype),
                                   join(kWideDtypeNames), field.tensor));
  }
  return {};
}

}  // namespace flashjit

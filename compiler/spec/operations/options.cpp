#include "compiler/spec/operations/options.h"

#include <algorithm>
#include <array>

namespace flashjit {

namespace {

struct Option {
  std::string_view name;   // Families list the option by this name.
  std::string_view words;  // A spec asks for the option by these words, because users know no names.
  bool (*is_asked)(const AttentionSpec& spec);
};

// These are the options besides the flags. A new field that changes the result, or where it is read or written, needs a
// row here.
constexpr std::array kOptions = {
    Option{"lse", "lse=", [](const AttentionSpec& s) { return s.lse != Lse::none; }},
    Option{"packed", "layout=packed", is_packed},
    Option{"paged", "layout=paged", is_paged},
    Option{"select", "select=", selects},
    Option{"narrow_q", "Q of 8 bits (e4m3, e5m2)", has_scaled_queries},
    Option{"narrow_kv", "K and V of 8 bits (kv=)",
           [](const AttentionSpec& s) { return has_scaled_keys(s) && !has_scaled_queries(s); }},
    Option{"latent_rows", "rows of latents (kv=latent656, kv=latent584)", has_latent_rows},
    Option{"scales", "scales=block", [](const AttentionSpec& s) { return s.scale_block > 0; }},
    Option{"rope", "rope=", [](const AttentionSpec& s) { return s.rope != Rope::none; }},
    Option{"dropout", "dropout=", drops},
    Option{"grads", "grads=", [](const AttentionSpec& s) { return !s.grads.empty(); }},
};

}  // namespace

std::vector<std::string_view> spec_options(std::span<const SpecFlag> flags) {
  std::vector<std::string_view> names;
  for (const SpecFlag& flag : flags) names.push_back(flag.name);
  for (const Option& option : kOptions) names.push_back(option.name);
  return names;
}

std::string_view first_unhonoured(const AttentionSpec& spec, std::span<const std::string_view> honoured,
                                  std::span<const SpecFlag> flags) {
  if (narrows(spec)) return {};
  const auto is_listed = [&](std::string_view name) { return std::ranges::find(honoured, name) != honoured.end(); };
  for (const SpecFlag& flag : flags) {
    if (spec.*flag.of_spec && !is_listed(flag.name)) return flag.name;
  }
  for (const Option& option : kOptions) {
    if (option.is_asked(spec) && !is_listed(option.name)) return option.words;
  }
  return {};
}

}  // namespace flashjit

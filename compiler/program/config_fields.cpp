#include "compiler/program/config_fields.h"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "compiler/spec/config_words.h"
#include "compiler/spec/flags.h"
#include "compiler/spec/fields/gradients.h"
#include "templates/dropout.h"

namespace flashjit {
namespace {

std::string float_literal(float value) {
  std::string text = fmt::format("{:.9g}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text + "f";
}

template <class T>
std::string literal_of(T value) {
  if constexpr (std::is_enum_v<T>) return fmt::format("{}::{}", Words<T>::type, word(value));
  else if constexpr (std::is_same_v<T, float>) return float_literal(value);
  else return fmt::format("{}", value);
}

// `path` names members one within the other, of which the first is a member of KernelConfig.
template <auto... path>
constexpr auto& get(auto& config) {
  return (config.*....*path);
}

using Set = void (*)(KernelConfig&, const AttentionSpec&);
using When = bool (*)(const AttentionSpec&);

template <auto... path>
constexpr ConfigField field(std::string_view name, Set set = nullptr, When always = nullptr) {
  return {.name = name,
          .set = set,
          .literal = [](const KernelConfig& config) { return literal_of(get<path...>(config)); },
          .is_default =
              [](const KernelConfig& config) {
                constexpr KernelConfig usual;
                return get<path...>(config) == get<path...>(usual);
              },
          .always = always};
}

bool writes_output(const AttentionSpec& spec) { return !is_backward(spec); }
bool in_every_spec(const AttentionSpec&) { return true; }

// Returns the elements from which products are computed. Halves hold every number of 8 bits, and P has more bits in
// them than in bf16. A family that multiplies 8 bits unchanged sets its own. (check_supported has refused what no loop
// computes.)
Element element_of(Dtype dtype) {
  if (size_of(dtype) == 1) return Element::f16;
  const auto& words = Words<Element>::values;
  const auto at = std::find(words.begin(), words.end(), code_name(dtype));
  return at == words.end() ? Element::f32 : static_cast<Element>(at - words.begin());
}

Narrow narrow_of(Dtype dtype) {
  if (size_of(dtype) > 1) return Narrow::none;
  const auto& words = Words<Narrow>::values;
  return static_cast<Narrow>(std::ranges::find(words, code_name(dtype)) - words.begin());
}

bool masks_anything(const AttentionSpec& spec) {
  return spec.mask && !(spec.mask->op == Op::BoolConst && spec.mask->integer != 0);
}

using C = KernelConfig;
using S = AttentionSpec;

template <std::size_t i>
constexpr ConfigField flag() {
  return field<kSpecFlags[i].of_kernel>(
      kSpecFlags[i].name, [](C& c, const S& s) { c.*kSpecFlags[i].of_kernel = s.*kSpecFlags[i].of_spec; });
}

// Returns the rows of `fields`, and one row for each flag.
template <std::size_t n>
constexpr auto with_flags(const std::array<ConfigField, n>& fields) {
  std::array<ConfigField, n + kSpecFlags.size()> all = {};
  std::ranges::copy(fields, all.begin());
  [&]<std::size_t... i>(std::index_sequence<i...>) {
    ((all[n + i] = flag<i>()), ...);
  }(std::make_index_sequence<kSpecFlags.size()>());
  return all;
}

// clang-format off
constexpr std::array kOfProblem = with_flags(std::array{
    field<&C::element>("element", [](C& c, const S& s) { c.element = element_of(s.dtype); }, in_every_spec),
    field<&C::queries>("queries", [](C& c, const S& s) { c.queries = narrow_of(s.dtype); }),
    field<&C::cache>("cache", [](C& c, const S& s) { c.cache = narrow_of(s.kv_dtype); }),
    field<&C::cache_format>("cache_format", [](C& c, const S& s) { c.cache_format = s.cache_format; }),
    field<&C::results>("results", [](C& c, const S& s) { c.results = narrow_of(s.out_dtype); }),
    field<&C::output>("output", [](C& c, const S& s) { if (!is_backward(s)) c.output = element_of(s.out_dtype); }, writes_output),
    field<&C::output_dq>("output_dq", [](C& c, const S& s) { if (is_backward(s)) c.output_dq = element_of(s.out_dq); }, is_backward),
    field<&C::output_dk>("output_dk", [](C& c, const S& s) { if (is_backward(s)) c.output_dk = element_of(s.out_dk); }, is_backward),
    field<&C::output_dv>("output_dv", [](C& c, const S& s) { if (is_backward(s)) c.output_dv = element_of(s.out_dv); }, is_backward),
    field<&C::head_dim_qk>("head_dim_qk", [](C& c, const S& s) { c.head_dim_qk = s.d_qk; }, in_every_spec),
    field<&C::head_dim_v>("head_dim_v", [](C& c, const S& s) { c.head_dim_v = s.d_v; }, in_every_spec),
    field<&C::heads_q>("heads_q", [](C& c, const S& s) { c.heads_q = s.heads_q; }, in_every_spec),
    field<&C::heads_kv>("heads_kv", [](C& c, const S& s) { c.heads_kv = s.heads_kv; }, in_every_spec),
    field<&C::sequences>("sequences", [](C& c, const S& s) { c.sequences = is_packed(s) ? Sequences::packed : Sequences::dense; }),
    field<&C::page_size>("page_size", [](C& c, const S& s) { c.page_size = s.page_size; }),
    field<&C::selected>("selected", [](C& c, const S& s) { c.selected = selects(s) ? read_entries(s) : 0; }),
    field<&C::listed>("listed", [](C& c, const S& s) { c.listed = writes_lists(s) ? s.selected : 0; }),
    field<&C::whole_pages>("whole_pages", [](C& c, const S& s) { c.whole_pages = reads_pages(s); }),
    field<&C::merged_queries>("merged_queries"),
    field<&C::keys_of_entry>("keys_of_entry", [](C& c, const S& s) { c.keys_of_entry = selects_pages(s) && s.list_mask ? s.page_size : 1; }),
    field<&C::lse>("lse", [](C& c, const S& s) { c.lse = s.lse; }),
    field<&C::scale_block>("scale_block", [](C& c, const S& s) { c.scale_block = s.scale_block; }),
    field<&C::sink_gradient>("sink_gradient", [](C& c, const S& s) { c.sink_gradient = has_sink_gradient(s); }),
    field<&C::gradients>("gradients", [](C& c, const S& s) { c.gradients = static_cast<int>(params_with_gradients(s).size()); }),
    field<&C::rope>("rope", [](C& c, const S& s) { c.rope = s.rope; }),
    field<&C::rope_dims>("rope_dims", [](C& c, const S& s) { c.rope_dims = s.rope_dims; }),
    field<&C::rope_from>("rope_from", [](C& c, const S& s) { c.rope_from = s.rope_from; }),
    field<&C::rope_base>("rope_base", [](C& c, const S& s) { c.rope_base = s.rope_base; }),
    field<&C::dropped>("dropped", [](C& c, const S& s) { c.dropped = dropped_of(s.dropout); }),
    field<&C::widened_rows>("widened_rows"),
    field<&C::scale>("scale", [](C& c, const S& s) { c.scale = static_cast<float>(s.effective_scale()); }, in_every_spec),
    field<&C::has_score>("has_score", [](C& c, const S& s) { c.has_score = static_cast<bool>(s.score); }),
    field<&C::score_has_tanh>("score_has_tanh"),
    field<&C::score_adds>("score_adds"),
    field<&C::score_cap>("score_cap"),
    field<&C::score_factor>("score_factor"),
    field<&C::score_loads>("score_loads"),
    field<&C::inputs_16>("inputs_16"),
    field<&C::inputs_32>("inputs_32"),
    field<&C::inputs_q>("inputs_q"),
    field<&C::inputs_of_batches>("inputs_of_batches"),
    field<&C::has_mask>("has_mask", [](C& c, const S& s) { c.has_mask = masks_anything(s) || selects(s); }),
    field<&C::mask_has_holes>("mask_has_holes"),
    field<&C::mask_is_range>("mask_is_range"),
    field<&C::queries_are_range>("queries_are_range"),
    field<&C::mask_by_rows>("mask_by_rows"),
    field<&C::mask_is_long>("mask_is_long"),
    field<&C::ranges_differ>("ranges_differ"),
    field<&C::copy_bytes>("copy_bytes", [](C& c, const S& s) { c.copy_bytes = s.align_bytes; }),
});

constexpr std::array kOfSchedule = {
    field<&C::tile_q>("tile_q"),
    field<&C::tile_kv>("tile_kv"),
    field<&C::stages>("stages"),
    field<&C::order>("order"),
    field<&C::reference>("reference"),
    field<&C::head_tiles>("head_tiles"),
    field<&C::list_heads>("list_heads"),
    field<&C::sync, &SyncConfig::warps>("sync.warps"),
    field<&C::sync, &SyncConfig::q_in>("sync.q_in"),
    field<&C::sync, &SyncConfig::blocks_per_sm>("sync.blocks_per_sm"),
    field<&C::sync, &SyncConfig::unroll_d>("sync.unroll_d"),
    field<&C::sync_backward, &SyncBackwardConfig::warps>("sync_backward.warps"),
    field<&C::sync_backward, &SyncBackwardConfig::blocks_per_sm>("sync_backward.blocks_per_sm"),
    field<&C::sync_backward, &SyncBackwardConfig::dq>("sync_backward.dq"),
    field<&C::hopper, &HopperConfig::warpgroups>("hopper.warpgroups"),
    field<&C::hopper, &HopperConfig::q_stages>("hopper.q_stages"),
    field<&C::hopper, &HopperConfig::overlap>("hopper.overlap"),
    field<&C::hopper, &HopperConfig::exclusive>("hopper.exclusive"),
    field<&C::hopper, &HopperConfig::row_sum>("hopper.row_sum"),
    field<&C::hopper, &HopperConfig::grid>("hopper.grid"),
    field<&C::hopper, &HopperConfig::transpose>("hopper.transpose"),
    field<&C::hopper, &HopperConfig::keys>("hopper.keys"),
    field<&C::hopper_backward, &HopperBackwardConfig::warpgroups>("hopper_backward.warpgroups"),
    field<&C::hopper_backward, &HopperBackwardConfig::cluster>("hopper_backward.cluster"),
    field<&C::hopper_backward, &HopperBackwardConfig::dq>("hopper_backward.dq"),
    field<&C::hopper_backward, &HopperBackwardConfig::keeps_ds>("hopper_backward.keeps_ds"),
    field<&C::decode, &DecodeConfig::warps>("decode.warps"),
    field<&C::decode, &DecodeConfig::blocks_per_sm>("decode.blocks_per_sm"),
    field<&C::decode, &DecodeConfig::copies>("decode.copies"),
    field<&C::decode, &DecodeConfig::evict_first_mb>("decode.evict_first_mb"),
    field<&C::decode, &DecodeConfig::side_by_side>("decode.side_by_side"),
    field<&C::decode, &DecodeConfig::row_tiles>("decode.row_tiles"),
    field<&C::decode, &DecodeConfig::team>("decode.team"),
    field<&C::decode, &DecodeConfig::cluster>("decode.cluster"),
    field<&C::decode, &DecodeConfig::fixed_parts>("decode.fixed_parts"),
};
// clang-format on

}  // namespace

std::span<const ConfigField> problem_fields() { return kOfProblem; }
std::span<const ConfigField> schedule_fields() { return kOfSchedule; }

}  // namespace flashjit

#include "compiler/spec/fields/select.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace flashjit {

namespace {

Error refused(std::string_view field, std::string_view why) {
  return invalid(fmt::format("{}: with select= each query has a list of its keys, {}", field, why));
}

Result<void> check_selected_pages(const AttentionSpec& spec) {
  if (!is_paged(spec)) {
    return invalid(
        fmt::format("select: pages({}) are pages of a pool, and the layout has none; use layout=paged(64), or keys(N)",
                    spec.selected));
  }
  if (std::int64_t{spec.selected} * spec.page_size <= SizeBound::kLargest) return {};
  return invalid(
      fmt::format("select: pages({}) of {} tokens have more than {} keys; split longer lists over calls with lse=ln, "
                  "and merge",
                  spec.selected, spec.page_size, SizeBound::kLargest));
}

// Is an element of a tensor found by a position, or by a length?
bool reads_by_position(const Expr& expr) {
  if (!uses(expr, Op::Load)) return false;
  if (expr->op != Op::Load) return std::ranges::any_of(expr->args, reads_by_position);
  constexpr Variable kPositions[] = {Variable::Q, Variable::K, Variable::QLen, Variable::KLen};
  return std::ranges::any_of(kPositions, [&](Variable variable) { return uses(expr, variable); });
}

Result<void> check_mask_of_pool(const AttentionSpec& spec) {
  if (reads_by_position(spec.mask)) {
    return refused("mask",
                   fmt::format("whose positions in a pool only the device knows, so that none may be an index of a "
                               "tensor; write -1 for {} that the query must not see",
                               selects_pages(spec) ? "pages" : "keys"));
  }
  if (!selects_pages(spec) || spec.selected <= kMostSelected / spec.page_size) return {};
  return refused(
      "mask",
      fmt::format("and one of pages becomes one of keys beside a mask: pages({}) of {} tokens have more than {}; "
                  "split longer lists over calls with lse=ln, and merge",
                  spec.selected, spec.page_size, kMostSelected));
}

Result<void> check_mask(const AttentionSpec& spec) {
  if (is_paged(spec)) FLASHJIT_TRY(check_mask_of_pool(spec));
  const int sharing = spec.heads_q / spec.heads_kv;
  if (sharing == 1 || !uses(spec.mask, Variable::H)) return {};
  return refused("mask", fmt::format("which {} query heads share, so that `h` has no place in it; use hk, or give each "
                                     "query head a KV head",
                                     sharing));
}

}  // namespace

int merged_queries(const AttentionSpec& spec) {
  constexpr std::int64_t kMostEntries = 512;  // The launch compares all entries with each other.
  const std::int64_t queries = spec.q_len.max;
  const bool are_of_sequence = reads_pages(spec) && spec.layout != Layout::Packed && queries > 1;
  if (!are_of_sequence || spec.numerics == Numerics::BatchInvariant || queries > kMostEntries / spec.selected) return 0;
  return static_cast<int>(queries);
}

std::int64_t merged_keys(const AttentionSpec& spec, std::int64_t queries) {
  constexpr std::int64_t kNewOf = 4;  // One page of this number is expected to be in no list of the queries before.
  return listed_keys(spec) + (queries - 1) * listed_keys(spec) / kNewOf;
}

Result<void> check_selected(const AttentionSpec& spec) {
  if (spec.selected == 0) return {};
  if (spec.selected < 1 || spec.selected > kMostSelected) {
    return invalid(fmt::format("select: {}({}) is outside 1..{}; split longer lists over calls with lse=ln, and merge",
                               spec.whole_pages ? "pages" : "keys", spec.selected, kMostSelected));
  }
  if (indexes(spec)) return {};
  if (!attends(spec)) {
    return invalid("select: lists of keys are those of fwd and bwd, and of index, which makes them; leave it out");
  }
  if (is_backward(spec) && selects_pages(spec)) {
    return invalid(
        fmt::format("select: pages({}) are those of fwd, as bwd has no pool of pages; use keys(N)", spec.selected));
  }
  if (selects_pages(spec)) FLASHJIT_TRY(check_selected_pages(spec));
  const struct {
    bool asked;
    std::string_view field, why;
  } without[] = {
      {has_blocks(spec), "blocks", "which says all; leave one of the two out"},
      {spec.shared_prefix, "shared_prefix", "and keys are read by these alone; leave one of the two out"},
      {spec.k_len != SizeBound{}, "k_len", "which any number of keys may be chosen for; leave it out"},
      {spec.layout == Layout::Packed && spec.q_len != SizeBound{}, "q_len",
       "so that packed ones are those of one sequence, of any length; leave it out"},
      {spec.layout == Layout::Packed && spec.batch != SizeBound{}, "b",
       "so that packed ones are those of one sequence; leave it out"},
      {spec.k_lens, "k_lens", "and nothing else ends it; give key_count, or write -1 for keys that are not there"},
      {spec.append, "append", "and new rows have no place in it; write them into k and v before the call"},
      {narrows(spec), "compute", "and of K only rows in lists are read; quantize K and V, and use fwd e4m3"},
      {drops(spec), "dropout", "and weights are drawn by positions of keys; leave one of the two out"},
      {spec.v_transposed, "v_transposed", "whose entries are rows of v; leave v_transposed out"},
  };
  for (const auto& [asked, field, why] : without) {
    if (asked) return refused(field, why);
  }
  return {};
}

Result<void> resolve_expressions_of_selected(AttentionSpec& spec) {
  spec.list_mask = Expr();
  if (!selects(spec)) return {};
  if (spec.mask) FLASHJIT_TRY(check_mask(spec));
  std::swap(spec.mask, spec.list_mask);
  if (!spec.score) return {};
  for (const Variable variable : {Variable::K, Variable::Q, Variable::KLen, Variable::QLen, Variable::B}) {
    if (!uses(spec.score, variable)) continue;
    return refused("score",
                   fmt::format("in which `{}` has no place; use a score of s, h and hk alone", name(variable)));
  }
  return {};
}

}  // namespace flashjit

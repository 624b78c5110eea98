#include "compiler/analysis/read_index.h"

#include <algorithm>
#include <vector>

#include "compiler/language/expr_linear.h"

namespace flashjit {
namespace {

bool is(const Expr& expr, Variable variable) { return expr->op == Op::Variable && expr->variable == variable; }

bool uses_any(const Expr& expr, const std::vector<Variable>& variables) {
  return std::ranges::any_of(variables, [&](Variable v) { return uses(expr, v); });
}

// Returns true if one index alone determines the variable: it is a multiple of the variable, plus a sum that is the
// same for all values of `unknown`.
bool tells(const Expr& read, Variable variable, const std::vector<Variable>& unknown) {
  return std::ranges::any_of(read->args, [&](const Expr& index) {
    const auto linear = linear_of(index);
    if (!linear || is_looked_up(index)) return false;  // Different values may be cut to the same element.
    const auto& terms = linear->terms;
    return std::ranges::any_of(terms, [&](const LinearTerm& t) { return is(t.atom, variable); }) &&
           std::ranges::none_of(
               terms, [&](const LinearTerm& t) { return !is(t.atom, variable) && uses_any(t.atom, unknown); });
  });
}

// Returns true if the indices determine the variables of `wanted`, one after the other, whatever the values of
// `others`.
bool told(const Expr& read, std::vector<Variable> wanted, const std::vector<Variable>& others = {}) {
  while (!wanted.empty()) {
    const auto next = std::ranges::find_if(wanted, [&](Variable v) {
      std::vector<Variable> unknown = wanted;
      unknown.insert(unknown.end(), others.begin(), others.end());
      return tells(read, v, unknown);
    });
    if (next == wanted.end()) return false;
    wanted.erase(next);
  }
  return true;
}

bool is_plain(const Expr& read) {
  return std::ranges::all_of(read->args, [&](const Expr& index) {
    const auto is_it = [&](const Expr& other) { return same(other, index); };
    return index->op == Op::Variable && std::ranges::count_if(read->args, is_it) == 1;
  });
}

}  // namespace

ReadIndex read_index(const Expr& read) {
  using enum Variable;
  // The lengths are those of the sequence, and hk is the KV head of h.
  const std::vector<Variable> positions = {Q, K}, lengths = {QLen, KLen};
  std::vector<Variable> of_pair;
  for (const Variable v : positions) {
    if (std::ranges::any_of(read->args, [&](const Expr& index) { return uses(index, v); })) of_pair.push_back(v);
  }
  ReadIndex index;
  index.by_q = std::ranges::find(of_pair, Q) != of_pair.end();
  index.by_k = std::ranges::find(of_pair, K) != of_pair.end();
  index.apart = told(read, of_pair);
  index.plain = is_plain(read);
  index.own_b = told(read, {B}, {Q, K, H, Hk, QLen, KLen});
  index.own_h = told(read, {H}, {Q, K, B, Hk, QLen, KLen});
  index.own_hk = index.own_h || told(read, {Hk}, {Q, K, B, H, QLen, KLen});
  return index;
}

}  // namespace flashjit

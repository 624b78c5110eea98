#include "compiler/analysis/block_probes.h"

#include <vector>

#include "compiler/analysis/interval.h"
#include "compiler/analysis/read_axes.h"

namespace flashjit {
namespace {

// Positions of a tile, one in each block that it overlaps. Where `fails` holds, the tile may overlap other blocks as
// well.
struct Probes {
  std::vector<Expr> positions;
  Expr fails;
};
Probes probes_of(const AxisVariables& axis, std::int64_t run, std::int64_t tile) {
  const Expr lo = Expr::variable(axis.lo), last = Expr::variable(axis.length) - Expr::integer(1),
             hi = min(Expr::variable(axis.hi), last);
  Probes probes = {{lo}, Expr::boolean(false)};
  if (run == 0) return probes;
  if (run % tile == 0) {  // Tiles begin mostly at multiples of their size.
    probes.fails = lo / Expr::integer(run) != hi / Expr::integer(run);
    return probes;
  }
  std::int64_t reached = run;
  for (; reached < tile; reached += run) probes.positions.push_back(min(lo + Expr::integer(reached), hi));
  probes.positions.push_back(hi);
  probes.fails = hi - lo > Expr::integer(reached);
  return probes;
}

}  // namespace

Expr seen_in_blocks(const Expr& condition, const TileSizes& sizes) {
  constexpr std::int64_t kLeastBlock = 64;
  const std::int64_t run_q = equal_run(condition, Variable::Q), run_k = equal_run(condition, Variable::K);
  const auto is_block = [](std::int64_t run) { return run == 0 || run >= kLeastBlock; };
  if (!is_block(run_q) || !is_block(run_k) || !reads_at(condition, Variable::Q, Variable::K)) return {};
  const Probes of_q = probes_of(variables_of(Axis::Queries), run_q, sizes.q),
               of_k = probes_of(variables_of(Axis::Keys), run_k, sizes.kv);
  Expr seen = of_q.fails | of_k.fails;
  for (const Expr& q : of_q.positions)
    for (const Expr& k : of_k.positions) seen = seen | at_positions(condition, q, k);
  return seen;
}

}  // namespace flashjit

#include "codegen/cuda/tile_pairs.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "codegen/cuda/expr.h"
#include "codegen/cuda/text.h"
#include "compiler/launches/tile_lists.h"

namespace flashjit {
namespace {

// Ints have 64 bits here, which costs these launches nothing, and no bound exceeds 64 bits.
struct PairPrinter {
  const Plan& plan;
  const PairAnalysis pairs = pairs_of(plan);
  std::vector<NamedScalar> scalars = {};
  CudaExprContext context = {.params = &plan.spec.params, .wide_ints = true, .scalars = &scalars};

  std::string values(Axis axis) {
    const bool keys = axis == Axis::Keys;
    std::string text;
    int number = 0;
    for (const TileValue& value : pairs.values) {
      if (value.axis != axis) continue;
      const std::string bounds = fmt::format("of_{}[{}]", keys ? "keys" : "queries", number);
      scalars.push_back({value.least, bounds + ".least"});
      scalars.push_back({value.most, bounds + ".most"});
      text +=
          function(fmt::format("`{}`.", comment_text(print(value.value))),
                   fmt::format("Int64 value(TileValue<Along::{}, {}>, const KernelParams& params, const Sequence& seq, "
                               "Int64 {})",
                               keys ? "keys" : "queries", number, keys ? "k" : "q"),
                   body_of(value.value, context));
      ++number;
    }
    return text;
  }

  std::string conditions() {
    std::string text;
    for (std::size_t i = 0; i < pairs.conditions.size(); ++i) {
      const TileCondition& asked = pairs.conditions[i];
      scalars.push_back({asked.some, fmt::format("Int64{{asked[{}] & kSomeHold}}", i)});
      scalars.push_back({asked.all, fmt::format("Int64{{asked[{}] & kAllHold}}", i)});
      text +=
          function("So many queries, from the first of a tile on, have the same answers.",
                   fmt::format("constexpr int step(Parameter<{}>)", i), fmt::format("  return {};\n", asked.step_q));
      text += function("Asked of queries and keys of two tiles.",
                       fmt::format("bool condition(Parameter<{}>, const KernelParams& params, const Sequence& seq, "
                                   "Int64 q, Int64 k, Int64 q_lo,\n                        Int64 k_lo)",
                                   i),
                       body_of(asked.condition, context));
    }
    return text;
  }

  std::string answer(std::string_view comment, std::string_view name, const Expr& expr) {
    return function(
        comment,
        fmt::format("bool {}(const KernelParams& params, const Sequence& seq, const ReadBounds* of_queries,\n"
                    "                           const ReadBounds* of_keys, const unsigned char* asked, "
                    "Int64 q_lo, Int64 q_hi,\n"
                    "                           Int64 k_lo, Int64 k_hi)",
                    name),
        body_of(expr, context));
  }
};

}  // namespace

std::string emit_tile_pairs(const Plan& plan) {
  if (plan.config.list_heads == 0) return {};
  PairPrinter printer{plan};
  const PairAnalysis& pairs = printer.pairs;
  std::string text = short_header("What the mask lets through of two tiles, by what its tensors hold in each of them.");
  text +=
      "#pragma once\n\n#include \"templates/extra_params.cuh\"\n#include \"templates/scalar_math.cuh\"\n"
      "#include \"templates/tile_lists/axis.cuh\"\n\nnamespace flashjit {\n\nstruct TilePairs : AnyPairs {\n";
  text += fmt::format("  static constexpr int kQueryValues = {}, kKeyValues = {}, kConditions = {};\n",
                      std::ranges::count(pairs.values, Axis::Queries, &TileValue::axis),
                      std::ranges::count(pairs.values, Axis::Keys, &TileValue::axis), pairs.conditions.size());
  text += printer.values(Axis::Queries) + printer.values(Axis::Keys) + printer.conditions();
  text += printer.answer("False only if no query of q_lo..q_hi sees any key of k_lo..k_hi.", "sees", pairs.sees);
  text += printer.answer("True only if each query of q_lo..q_hi sees all keys of k_lo..k_hi.", "full", pairs.full);
  return text + "};\n\n}  // namespace flashjit\n";
}

}  // namespace flashjit

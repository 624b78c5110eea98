#include "tools/support/narrow_errors.h"

#include <fmt/format.h>

#include "compiler/program/config.h"

namespace flashjit {

Json error_json(const NarrowError& error) { return {{"normal", error.normal}, {"outliers", error.outliers}}; }

std::string error_text(const NarrowError& error) {
  return fmt::format("{:.2g} of O on normal numbers, {:.2g} with outliers", error.normal, error.outliers);
}

std::string narrow_errors(const Plan& plan, Json& line) {
  if (!has_scaled_queries(plan.spec)) return {};
  const Dtype weights = weights_of(plan.spec, plan.config);
  const NarrowError plain = rounding_error(plan.spec, false), rotated = rounding_error(plan.spec, true),
                    own = weights_error(weights, plan.linear_weights);
  line["rounding_error"] = error_json(plain);
  line["rounding_error_rotated"] = error_json(rotated);
  line["weights_error"] = error_json(own);
  const auto both = [](const NarrowError& error) {
    return fmt::format("{:.2g}, {:.2g}", error.normal, error.outliers);
  };
  return fmt::format(
      "what 8 bits cost: relative error of O against float64, on normal numbers, and with outliers\n"
      "  rounding           {}; with Q and K rotated {} ({})\n"
      "  the kernel itself  {}, of Q, K and V of 8 bits as they are; weights in {}{} ({})\n\n",
      both(plain), both(rotated), kRoundingMeasured, both(own), name(weights),
      plan.linear_weights ? ", interpolated" : "", kWeightsMeasured);
}

}  // namespace flashjit

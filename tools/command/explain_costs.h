// These texts of `flashjit explain` say which time and memory a call takes.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "compiler/choice/cost_model.h"
#include "compiler/plan.h"
#include "tools/support/output.h"

namespace flashjit {

// Launches of a call, and the memory that they pass on.
struct Footprint {
  std::vector<std::string> launches;
  std::int64_t bytes = 0;
  std::vector<std::pair<std::string, std::int64_t>> buffers;
};
Footprint footprint(const Plan& plan, const Shape& shape);
CallSizes sizes_of(const Shape& shape);

// Explains a kernel that reads no keys: memory is all that it takes.
std::string traffic_text(const Plan& plan, const Shape& shape, const Roofline& r);
// Explains one that reads keys; `all`: with the figures of --all; `given`: there are values of what the mask reads, which
// these figures do not know.
std::string roofline_text(const Plan& plan, const Shape& shape, const Roofline& r, bool all, bool given);
Json roofline_json(const Roofline& r);

}  // namespace flashjit

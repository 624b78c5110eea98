// These texts of `flashjit explain` show the time and memory that a call takes.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "compiler/choice/cost_model.h"
#include "compiler/plan.h"
#include "tools/support/output.h"

namespace flashjit {

// The launches of a call pass on this memory.
struct Footprint {
  std::vector<std::string> launches;
  std::int64_t bytes = 0;
  std::vector<std::pair<std::string, std::int64_t>> buffers;
};
Footprint footprint(const Plan& plan, const Shape& shape);
CallSizes sizes_of(const Shape& shape);

// Explains a kernel that reads no keys: memory is all that it takes.
std::string traffic_text(const Plan& plan, const Shape& shape, const Roofline& r);
// Explains a kernel that reads keys. `all` adds the figures of --all. `given` means that there are values for what the
// mask reads, which these figures do not know.
std::string roofline_text(const Plan& plan, const Shape& shape, const Roofline& r, bool all, bool given);
Json roofline_json(const Roofline& r);

}  // namespace flashjit

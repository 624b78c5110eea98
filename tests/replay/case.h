// A case of cases.txt.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/result.h"
#include "compiler/spec/spec.h"
#include "flashjit/flashjit.hpp"

namespace flashjit::replay {

struct ReplayCase {
  std::string text;  // of the spec
  AttentionSpec spec;
  std::vector<std::int64_t> q_lens, k_lens;                 // of the sequences; dense: all alike
  std::map<std::string, std::vector<std::int64_t>> params;  // shapes; of a scalar its value
  std::vector<std::string> pins;
};

// A line of the file. The error is about the spec, or says what a shape looks like.
Result<ReplayCase> parse_case(std::string_view line);

// Where the tensors of a call lie. Nothing is at these addresses.
enum class Placement {
  Contiguous,  // aligned as an allocation is
  Padded,      // with gaps between rows, heads and sequences, and aligned no better than the spec says
};
Arguments arguments_of(const ReplayCase& c, Placement placement);

}  // namespace flashjit::replay

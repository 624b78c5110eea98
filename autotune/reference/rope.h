// This file says how rows turn by their positions (compiler/SPEC.md, `rope`), in float64.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/spec/spec.h"
#include "flashjit/flashjit.hpp"

namespace flashjit::reference {

// A row at this position, by the tables of the call if there are some. A spec without `rope` leaves it as it is.
std::vector<double> turned(const AttentionSpec& spec, const Arguments& arguments, std::vector<double> row,
                           std::int64_t position);

// Keys of one sequence and head, the first at position 0.
void turn_keys(const AttentionSpec& spec, const Arguments& arguments, std::vector<float>& keys);

// Returns the position of a query of a sequence. A query before the first key turns as that key.
std::int64_t query_position(const AttentionSpec& spec, std::int64_t q_len, std::int64_t k_len, std::int64_t q);

}  // namespace flashjit::reference

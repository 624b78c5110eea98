// Rows turn by their positions (compiler/SPEC.md, `rope`), computed in float64.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/spec/spec.h"
#include "flashjit/flashjit.hpp"

namespace flashjit::reference {

// Turns a row at this position, by the tables of the call if it has some. A spec without `rope` leaves the row as it
// is.
std::vector<double> turned(const AttentionSpec& spec, const Arguments& arguments, std::vector<double> row,
                           std::int64_t position);

// Turns the keys of one sequence and head, of which the first is at position 0.
void turn_keys(const AttentionSpec& spec, const Arguments& arguments, std::vector<float>& keys);

// Returns whether a cache holds what it may of a number that was turned. `size` is that of what was added up, or 0 if
// nothing was turned.
bool is_right(double held, double wanted, double size, Dtype dtype);

// Returns the position of a query of a sequence. A query before the first key turns like that key.
std::int64_t query_position(const AttentionSpec& spec, std::int64_t q_len, std::int64_t k_len, std::int64_t q);

}  // namespace flashjit::reference

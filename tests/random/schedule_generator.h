// Pins for a kernel, drawn from one 64-bit seed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace flashjit::testing_random {

// Is there a schedule for the spec on the target that honours the pins?
bool can_pin(std::string_view spec, std::string_view target, std::string_view pins);

// Pins of one family that the compiler accepts for the spec; empty, now and then and if none was found: what the cost
// model chooses.
std::string draw_schedule(std::uint64_t seed, std::string_view spec, std::string_view target);

}  // namespace flashjit::testing_random

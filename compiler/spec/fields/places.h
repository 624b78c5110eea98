// The rules for a spec with `places`, whose queries and keys are a part of a longer sequence: row i is at begin + i *
// step of that sequence. Masks and scores see these positions, and the length of the longer sequence.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "compiler/result.h"
#include "compiler/spec/spec.h"
#include "templates/kernel_params.h"

namespace flashjit {

// A number that a call gives by name.
struct PlaceNumber {
  std::string_view name;
  Places KernelParams::* of;
  int Places::* number;
};
inline constexpr std::array kPlaceNumbers = {
    PlaceNumber{"q_begin", &KernelParams::q_places, &Places::begin},
    PlaceNumber{"q_step", &KernelParams::q_places, &Places::step},
    PlaceNumber{"q_total", &KernelParams::q_places, &Places::total},
    PlaceNumber{"k_begin", &KernelParams::k_places, &Places::begin},
    PlaceNumber{"k_step", &KernelParams::k_places, &Places::step},
    PlaceNumber{"k_total", &KernelParams::k_places, &Places::total},
};
// A tile may reach behind the last row. With steps up to this, positions there fit 32 bits as well.
inline constexpr std::int64_t kMostPlaceStep = 1 << 16;

// Returns the number of this name; null: there is none.
const PlaceNumber* find_place_number(std::string_view name);

// A call that gives none of the numbers has these. The total is not known yet.
inline constexpr Places kUsualPlaces = {.begin = 0, .step = 1, .total = -1};

// Puts the length of the call's own rows in place of a total that was not given. Refuses rows outside of the longer
// sequence. `rows` is "q" or "k".
Result<void> complete_places(std::string_view rows, std::int64_t length, Places& places);

// Refuses rows for which dropout does not draw as it does for the longer sequence.
Result<void> check_drawn_places(std::string_view rows, const Places& places);

// Refuses specs whose other fields exclude `places`. The expressions of the spec are resolved.
Result<void> check_places(const AttentionSpec& spec);

}  // namespace flashjit

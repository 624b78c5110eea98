// These functions draw one explained kernel, as markup, which is empty if there is nothing to show.
#pragma once

#include <string>

#include "compiler/choice/cost_model.h"
#include "compiler/plan.h"
#include "tools/support/mask_map.h"

namespace flashjit {

// Draws tiles of keys to the right, and of queries down, with counts.
std::string map_picture(const MaskMap& map, const Shape& shape);

// Draws the slope of memory and the ceilings of the target, with the points of the fused kernel and of three steps.
std::string roofline_picture(const Plan& plan, const Roofline& roofline);

// Shows the predicted time of each unit by itself.
std::string units_picture(const Roofline& roofline);

// Draws a main step of each role, one statement after the other, for programs that are printed.
std::string roles_picture(const Program& program);

// Lists predicted times with bars, and refused schedules behind a fold.
std::string candidates_table(const Plan& plan, const Candidates& candidates);

}  // namespace flashjit

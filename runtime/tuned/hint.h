// A hint of the sizes (PrepareOptions::shape) selects a schedule. It may not be the fastest; these functions tell why.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "compiler/choice/cost_model.h"
#include "compiler/plan.h"

namespace flashjit {

// Returns the hint of PrepareOptions::shape as the text of its class, or an empty text if there is no hint.
Result<std::string> canonical_hint(std::string_view text);
// Returns the hint as sizes, or nothing if the text is empty.
Result<std::optional<Shape>> parse_hint(std::string_view text);

struct HintedChoice {
  std::optional<Schedule> schedule;  // If there is none, the schedule that is taken without a hint stays.
  // It describes a faster schedule that needs a workspace, which nobody brings. It goes into Facts::notes.
  std::string passed_over;
};

// Chooses a schedule for these sizes in place of `unhinted`, the schedule that is taken without a hint: the plan's own
// or that of a record. The cost model chooses by the class of the sizes (`rounded`), so that few kernels serve many
// calls. The choice has to be faster than `unhinted` by more than the model's error, for the class and for the sizes
// themselves. `workspace` means that the caller brings one. Without it only schedules that need none are chosen, unless
// `unhinted` needs one, too.
HintedChoice schedule_for(const Plan& plan, const Schedule& unhinted, const Shape& shape, bool workspace);

}  // namespace flashjit

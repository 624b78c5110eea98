#include "compiler/program/passes.h"

#include <array>

namespace flashjit {

// Order: the mask decides the phases before anything is sized; warps need tiles, shared memory needs warps' layouts,
// copies need places; softmax, grid and budget read all of it. verify() runs after each.
constexpr std::array kPasses = {
    Pass{"build", build},
    Pass{"analyse_mask", analyse_mask},
    Pass{"choose_tiling", choose_tiling},
    Pass{"assign_warps", assign_warps},
    Pass{"place_buffers", place_buffers},
    Pass{"pipeline_copies", pipeline_copies},
    Pass{"choose_softmax", choose_softmax},
    Pass{"choose_grid", choose_grid},
    Pass{"budget_registers", budget_registers},
};

std::span<const Pass> passes() { return kPasses; }

}  // namespace flashjit

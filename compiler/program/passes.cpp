#include "compiler/program/passes.h"

#include <array>

namespace flashjit {

constexpr std::array kPasses = {
    Pass{"build", build},
    Pass{"analyse_mask", analyse_mask},
};

std::span<const Pass> shared_passes() { return kPasses; }

}  // namespace flashjit

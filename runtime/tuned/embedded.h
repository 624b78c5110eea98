// The records of runtime/tuned/*.txt are embedded at build time.
#pragma once

#include <span>

#include "codegen/cuda/embedded_templates.h"

namespace flashjit {

std::span<const EmbeddedFile> embedded_tuned_records();

}  // namespace flashjit

// The files of the report's page are embedded at build time.
#pragma once

#include "codegen/cuda/embedded_templates.h"

namespace flashjit {

std::span<const EmbeddedFile> embedded_report();  // "report.html", "report.css", ...

}  // namespace flashjit

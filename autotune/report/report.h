// The tuning report is one self-contained page, drawn in the browser from the JSON of a tuning run.
#pragma once

#include <string>
#include <string_view>

#include "compiler/result.h"

namespace flashjit {

// `json` is one object {machine, command, specs: [{spec, ..., candidates: [{schedule, ...}]}]}; README.md lists the
// fields. Only `spec` and `schedule` must be there; the page shows a dash for a field that is missing or null. Text
// that is no JSON and fields of another type are refused, with the field's path.
Result<std::string> html_report(std::string_view json);

}  // namespace flashjit

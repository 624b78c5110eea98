// A request is what a caller asks for, parsed once where its texts come in: in Engine::prepare, a command, a manifest,
// a tuning.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan.h"
#include "compiler/result.h"
#include "compiler/spec/schedule.h"
#include "compiler/spec/spec.h"
#include "compiler/spec/target.h"

namespace flashjit {

struct Request {
  Request(AttentionSpec what, const Target& where, Schedule pinned = {});
  // `target` names a row of the table; `sm_count`: of the device, 0: that of the row. Error: of the first text that
  // does not parse.
  static Result<Request> parse(std::string_view spec, std::string_view target, std::string_view pins, int sm_count = 0);

  AttentionSpec spec;
  std::string text;  // of the spec, in canonical form: what keys, records and manifests hold
  Target target;
  Schedule pins;  // the caller's, or all that a record or a bundle says
};

// Do several kernels compute it, launched one after the other (compiler/cascade.h, compiler/narrowing.h)?
bool is_composite(const Request& request);
// Returns the kernels that the request takes: one, as it is, or its components.
Result<std::vector<Request>> kernels_of(const Request& request);

// The steps of a compile that need no compiler, for who may find the code in a store: verify_plan() is for who compiles.
// Also for host targets.
Result<Plan> plan_spec(const Request& request, const DumpSink& dump = {});

}  // namespace flashjit

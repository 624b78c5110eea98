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
  // `target` names a row of the table. `sm_count` is that of the device, or 0 for that of the row. The error is about
  // the first text that does not parse.
  static Result<Request> parse(std::string_view spec, std::string_view target, std::string_view pins, int sm_count = 0);

  AttentionSpec spec;
  // The spec in canonical form, as keys, records and manifests hold it.
  std::string text;
  Target target;
  Schedule pins;  // the caller's pins, or the whole schedule of a record or a bundle
};

// Returns whether several kernels compute the request, one after the other (compiler/cascade.h, compiler/narrowing.h).
bool is_composite(const Request& request);
// Returns the kernels that the request takes: the request itself, or its components.
Result<std::vector<Request>> kernels_of(const Request& request);

// Does the steps of a compile that need no compiler, because the code may be in a store. Whoever compiles calls
// verify_plan(), too. It works for host targets as well.
Result<Plan> plan_spec(const Request& request, const DumpSink& dump = {});

}  // namespace flashjit

#include "runtime/compile/request.h"

#include <utility>

#include "compiler/cascade.h"
#include "compiler/narrowing.h"

namespace flashjit {

Request::Request(AttentionSpec what, const Target& where, Schedule pinned)
    : spec(std::move(what)), text(print(spec)), target(where), pins(pinned) {}

Result<Request> Request::parse(std::string_view spec_text, std::string_view target_name, std::string_view pins_text,
                               int sm_count) {
  FLASHJIT_ASSIGN(spec, parse_spec(spec_text));
  FLASHJIT_ASSIGN(row, find_target(target_name));
  FLASHJIT_ASSIGN(pins, parse_schedule(pins_text));
  Request request(std::move(spec), *row, pins);
  if (sm_count > 0) request.target.sm_count = sm_count;
  return request;
}

bool is_composite(const Request& request) { return narrows(request.spec) || is_cascade(request.spec, request.target); }

Result<std::vector<Request>> kernels_of(const Request& request) {
  if (!is_composite(request)) return std::vector{request};
  FLASHJIT_TRY(check_supported(request.spec));
  if (narrows(request.spec)) {
    FLASHJIT_ASSIGN(components, narrowing_of(request.spec));
    return std::vector<Request>{{std::move(components.q), request.target},
                                {std::move(components.k), request.target},
                                {std::move(components.v), request.target},
                                {std::move(components.attention), request.target, request.pins}};
  }
  FLASHJIT_ASSIGN(cascade, cascade_of(request.spec, request.target, request.pins));
  std::vector<Request> requests;
  for (Cascade::Component* component : {&cascade.prefix, &cascade.own, &cascade.merge})
    requests.emplace_back(std::move(component->spec), request.target, component->pins);
  return requests;
}

Result<Plan> plan_spec(const Request& request, const DumpSink& dump) {
  FLASHJIT_TRY(check_supported(request.spec));
  return draft_plan(request.spec, request.target, request.pins, dump);
}

}  // namespace flashjit

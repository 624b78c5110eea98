// The cost model predicts steps by plans of specs that are like the given one, for a part of its heads and tokens.
#pragma once

#include <map>
#include <string>
#include <tuple>

#include "compiler/plan.h"
#include "runtime/compile/request.h"
#include "tools/ranks/ways.h"
#include "tools/support/device.h"

namespace flashjit {

// A GPU leaves this many SMs to exchanges that run beside its kernel.
inline constexpr int kSmsForExchanges = 8;

class Predictor {
 public:
  Predictor(const Request& request, const DeviceFigures& device) : request_(request), device_(device) {}
  Result<StepTime> operator()(const StepQuestion& question);

 private:
  using Key = std::tuple<Direction, int, bool, bool, std::string>;
  // The schedule is the one that prepare takes if it is told the sizes, unless the request pins one.
  Result<Plan> plan_for(const StepQuestion& question) const;

  const Request& request_;
  const DeviceFigures& device_;
  std::map<Key, Plan> plans_;
};

// Error Unsupported means that the spec is not for whole sequences of one length, or takes several kernels.
Result<void> check_ranks(const Request& request);

}  // namespace flashjit

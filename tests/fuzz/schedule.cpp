// Schedules: they print as they are read, and as pins of any spec and target they give schedules that can be judged;
// those that are legal have a plan.
#include <array>

#include "compiler/choice/candidates.h"
#include "compiler/plan.h"
#include "tests/fuzz/fuzz.h"

using namespace flashjit;
using fuzz::require;

namespace {

struct Case {
  AttentionSpec spec;
  const Target* target;
  TileAnalysis tiles = analyse_tiles(spec.mask);

  Problem problem() const { return {spec, *target, tiles}; }
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = [] {
    constexpr std::array<std::pair<const char*, const char*>, 6> kRows = {{
        {"fwd bf16 d=128 heads=32/8 mask=\"causal\"", "sm_90a"},
        {"fwd bf16 d=256/8 heads=4/2 q_len=1 k_len<=64 max_logit lse=ln", "sm_90a"},
        {"fwd fp16 d=8 layout=packed score=\"bias(extra)\" bytes=2", "sm_90a"},
        {"fwd bf16 d=72 heads=6/2 mask=\"window(128, 0)\"", "sm_80"},
        {"fwd fp32 d=64 heads=8/2", "x86-64-v3"},
        {"fwd bf16 d=64 heads=9/1 mask=\"k <= q + h\" numerics=batch_invariant out=fp32", "sm_90a"},
    }};
    std::vector<Case> made;
    for (const auto& [spec, target] : kRows) made.push_back({*parse_spec(spec), *find_target(target)});
    return made;
  }();
  return all;
}

void check_plan(const Case& asked, const Schedule& schedule) {
  const auto plan = make_plan(asked.spec, *asked.target, schedule);
  require(static_cast<bool>(plan), "a legal schedule has a plan", print(schedule), plan ? "" : plan.error().message);
  require(plan->schedule == schedule, "a complete schedule is kept", print(schedule), print(plan->schedule));
}

bool legal(const Case& asked, const Schedule& schedule) {
  const std::string why = why_illegal(asked.spec, *asked.target, schedule);
  require(is_legal(asked.problem(), schedule) == why.empty(), "legal is what no reason speaks against", print(schedule),
          why);
  return why.empty();
}

void check_pins(const Case& asked, const Schedule& pins) {
  const std::vector<Schedule> all = enumerate_schedules(asked.problem(), pins);
  require(!all.empty(), "pins give schedules", print(pins));
  bool planned = false;
  // Some of them: thousands differ in what has been judged before.
  for (std::size_t i = 0; i < all.size(); i += 1 + all.size() / 16) {
    const std::string text = print(all[i]);
    const auto again = parse_schedule(text);
    require(again && *again == all[i], "an enumerated schedule is read again", text);
    if (!legal(asked, all[i]) || planned) continue;
    planned = true;  // a plan takes longer than all the rest
    check_plan(asked, all[i]);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto schedule = parse_schedule(fuzz::text_of(data, size));
  if (!schedule) {
    require(schedule.error().kind == ErrorKind::Invalid, "a text is refused as invalid", schedule.error().message);
    return 0;
  }
  const std::string text = print(*schedule);
  const auto again = parse_schedule(text);
  require(again && *again == *schedule, "a printed schedule is read again", text);
  require(print(*again) == text, "a printed schedule prints the same", text, print(*again));
  require(outside_range(*schedule).empty(), "what is read is in range", text, outside_range(*schedule));
  for (const Case& asked : cases()) {
    if (legal(asked, *schedule)) check_plan(asked, *schedule);
  }
  check_pins(cases()[size % cases().size()], *schedule);  // one of them: this takes milliseconds
  return 0;
}

#include "compiler/families/hopper/tuned.h"

#include <algorithm>

#include <fmt/format.h>

#include "compiler/analysis/score_inputs.h"
#include "compiler/families/hopper/hopper.h"
#include "compiler/spec/config_words.h"

namespace flashjit {

namespace {

using Case = TunedCase;

constexpr std::string_view kOne = "H200, 2026-11-22", kTwo = "H200, 2026-11-25", kThree = "H200, 2026-11-28";

bool takes_first(const Case& c) { return *c.schedule.reference == Reference::first; }
bool adds(const Case& c) { return *c.schedule.row_sum == RowSum::adds; }
bool has_score(const Case& c) { return static_cast<bool>(c.problem.spec.score); }
int dims(const Case& c) { return c.problem.spec.d_v; }

// A column of ones beside V saves an addition for every score, and costs eight more columns of the product.
constexpr TunedRow kOnes[] = {
    {"weights are bits (linear_exp), three warpgroups, V dim above 128",
     [](const Case& c) {
       return c.narrow && c.problem.spec.linear_exp && *c.schedule.warpgroups >= 3 && dims(c) > 128;
     },
     false, "144 with 64 keys spills 8 bytes", "NVRTC 13.0"},
    {"weights are bits (linear_exp)", [](const Case& c) { return c.narrow && c.problem.spec.linear_exp; }, true,
     "with turns 1.07", kThree},
    {"products are waited for one by one (overlap=none)",
     [](const Case& c) { return *c.schedule.overlap != Overlap::qk_pv; }, false, "not measured", ""},
    {"8 bits, and a score that takes tanh or reads tensors, or maxima of tiles",
     [](const Case& c) { return c.narrow && (c.problem.score.has_tanh || c.inputs || !takes_first(c)); }, false,
     "softcap 0.97", kTwo},
    {"8 bits, V dim up to 80", [](const Case& c) { return c.narrow && dims(c) <= 80; }, true,
     "32: 1.05; 64: 1.08, causal 1.12, alibi 1.17; 80: 1.03", kTwo},
    {"8 bits, ones are a product by themselves, and no scales of blocks",
     [](const Case& c) { return c.narrow && c.apart && c.problem.spec.scale_block == 0; }, true,
     "128: 1.03, causal 1.00 to 1.05, window 1.00; 192/128: 1.05", kThree},
    {"8 bits, other V dims, or scales of blocks", [](const Case& c) { return c.narrow; }, false,
     "96: 0.99; 112: 0.97; 256: 1.00; scales of blocks 0.98", kThree},
    {"16 bits, and no two warpgroups beside two Q tiles, maxima of tiles, or keys in parts",
     [](const Case& c) {
       const Schedule& s = c.schedule;
       return *s.keys != Keys::whole || *s.warpgroups != 2 || *s.q_stages != 2 || !takes_first(c);
     },
     false, "memory and registers have no room", kOne},
    {"16 bits, V dim from 128 on", [](const Case& c) { return dims(c) >= 128; }, true,
     "1.00 to 1.06; alibi 1.03, softcap 1.07", kOne},
    {"16 bits, smaller V dims", [](const Case&) { return true; }, false, "64: 0.92", kOne},
};

// Turns at products let the softmax of one warpgroup run beside the products of the others.
constexpr TunedRow kTurns[] = {
    {"three warpgroups with dropout",
     [](const Case& c) { return drops(c.problem.spec) && *c.schedule.warpgroups == 3; }, false, "not measured", ""},
    {"8 bits, a window", [](const Case& c) { return c.narrow && begins_late(c.problem); }, false,
     "of 1024 at 128: 0.98, linear_exp 0.97", kThree},
    {"8 bits, weights are bits, ones are a product by themselves, no scales of blocks",
     [](const Case& c) { return c.narrow && c.apart && c.problem.spec.linear_exp && c.problem.spec.scale_block == 0; },
     true, "1.07", kThree},
    {"8 bits, ones are a product by themselves", [](const Case& c) { return c.narrow && c.apart; }, false,
     "0.95 to 1.02", kTwo},
    {"8 bits, V dim above 112", [](const Case& c) { return c.narrow && dims(c) > 112; }, true,
     "128: 1.00, alibi 1.05, softcap 1.03", kTwo},
    {"8 bits, V dim above 64, a score or ones",
     [](const Case& c) { return c.narrow && dims(c) > 64 && (!adds(c) || has_score(c)); }, true,
     "as at 128: alibi 1.05, softcap 1.03", kTwo},
    {"8 bits, smaller V dims, or sums by additions", [](const Case& c) { return c.narrow; }, false,
     "64: 0.94 to 1.00; additions at 96: 0.94 to 0.98, at 112: 0.91 to 1.00", kTwo},
    {"16 bits, sums by additions", [](const Case& c) { return adds(c); }, true,
     "64: 1.03; 128 and 256: 1.00; dropout at 128: 1.15, at 256: 1.11", kOne},
    {"16 bits, ones, V dim above 128", [](const Case& c) { return dims(c) > 128; }, true, "256: 1.00", kOne},
    {"16 bits, ones, a score", [](const Case& c) { return has_score(c); }, true, "alibi 1.01 to 1.02, softcap the same",
     kOne},
    {"16 bits, ones", [](const Case&) { return true; }, false, "128: 0.99", kOne},
};

template <std::size_t n>
const TunedRow& find(const TunedRow (&rows)[n], const Case& of) {
  return *std::ranges::find_if(rows, [&](const TunedRow& row) { return row.holds(of); });  // The last row always holds.
}

std::string line(std::string_view choice, std::string_view with, const TunedRow& row) {
  const std::string source = row.measured.empty() ? "" : fmt::format("; {}", row.measured);
  return fmt::format("  {}, as measured: {} (speed with {}: {}{})\n", choice, row.when, with, row.speed, source);
}

}  // namespace

bool begins_late(const Problem& problem) { return problem.tiles.full_begin->op != Op::IntConst; }

TunedCase::TunedCase(const Problem& p, const Schedule& s)
    : problem(p),
      schedule(s),
      narrow(has_scaled_queries(p.spec)),
      inputs(p.spec.score && !score_inputs(p.spec.score).empty()),
      apart(narrow && sums_apart(config_of(p, s))) {}

const TunedRow& find_ones_row(const Problem& problem, const Schedule& schedule) {
  Schedule ones = schedule;
  ones.row_sum = RowSum::matrix;
  return find(kOnes, Case(problem, ones));
}
const TunedRow& find_turns_row(const Problem& problem, const Schedule& schedule) {
  return find(kTurns, Case(problem, schedule));
}

std::string explain_tuned(const Problem& problem, const Schedule& schedule) {
  const TunedRow &ones = find_ones_row(problem, schedule), &turns = find_turns_row(problem, schedule);
  std::string text;
  // Where a limit, or a pin, has decided otherwise, the row has not decided.
  if (ones.pays == (*schedule.row_sum == RowSum::matrix))
    text += line(fmt::format("row_sum={}", word(*schedule.row_sum)), "ones", ones);
  if (*schedule.warpgroups > 1 && *schedule.overlap == Overlap::qk_pv &&
      turns.pays == (*schedule.exclusive == Exclusive::issue))
    text += line(fmt::format("exclusive={}", word(*schedule.exclusive)), "turns", turns);
  return text;
}

}  // namespace flashjit

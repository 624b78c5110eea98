// What append adds to the plans of all families, and angles without tables.
#include "compiler/launches/append.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "compiler/choice/cost_model.h"
#include "templates/append/rope.h"

namespace flashjit {
namespace {

Plan planned(const char* text, const char* target, const char* pins) {
  const auto spec = parse_spec(text);
  const auto row = find_target(target);
  const auto schedule = parse_schedule(pins);
  EXPECT_TRUE(spec && row && schedule) << text << target << pins;
  auto plan = make_plan(*spec, **row, *schedule);
  EXPECT_TRUE(plan) << plan.error().message;
  return plan ? *plan : Plan{};
}

TEST(Append, IsALaunchBeforeThoseOfTheFamily) {
  const struct {
    const char *target, *pins;
    bool overlaps;
  } rows[] = {{"sm_90a", "family=hopper", true}, {"sm_90a", "family=sync", true}, {"sm_90a", "family=decode", true},
              {"sm_90a", "family=naive", true},  {"sm_80", "family=sync", false}, {"sm_120a", "", true}};
  for (const auto& [target, pins, overlaps] : rows) {
    SCOPED_TRACE(std::string(target) + pins);
    const Plan without = planned("fwd bf16 d=64 heads=8/2 q_len=1", target, pins),
               plain = planned("fwd bf16 d=64 heads=8/2 q_len=1 append", target, pins),
               rotated = planned("fwd bf16 d=64 heads=8/2 q_len=1 append rope=half(64)", target, pins);
    EXPECT_TRUE(without.before.empty());
    ASSERT_FALSE(plain.before.empty() || rotated.before.empty());
    EXPECT_EQ(plain.launches.size(), without.launches.size());
    EXPECT_EQ(plain.workspace.size(), without.workspace.size()) << "Q is read where it is";
    EXPECT_EQ(plain.rotated_q, -1);
    EXPECT_FALSE(without.launches.front().overlaps);
    EXPECT_EQ(plain.launches.front().overlaps, overlaps);
    ASSERT_EQ(rotated.workspace.size(), without.workspace.size() + 1);
    EXPECT_EQ(rotated.rotated_q, static_cast<int>(without.workspace.size()));
    const CallSizes sizes = {.batch = 3, .q_len = 5, .k_len = 9, .q_tokens = 15};
    EXPECT_EQ(bytes_of(rotated.workspace.back(), sizes), 15 * 8 * 64 * 2);
    // 16 bytes for a thread: of two KV heads of K and V, and of eight of Q.
    EXPECT_EQ(items_of(plain.before.front().grid, sizes), (15 * 2 * 2 * 8 + 127) / 128);
    EXPECT_EQ(items_of(rotated.before.front().grid, sizes), (15 * (8 + 2 + 2) * 8 + 127) / 128);
    EXPECT_NE(describe_append(rotated).find("1024 bytes for a token"), std::string::npos) << describe_append(rotated);
  }
  EXPECT_TRUE(planned("fwd fp32 d=64 append rope=half(64)", "x86-64-v3", "").before.empty()) << "hosts launch nothing";
}

TEST(Append, IsPredicted) {
  const Plan without = planned("fwd bf16 d=64 heads=8/2 q_len=1", "sm_90a", "family=decode"),
             rotated = planned("fwd bf16 d=64 heads=8/2 q_len=1 append rope=half(64)", "sm_90a", "family=decode");
  const Shape shape = {2, 1, 4096};
  const Roofline with = roofline(rotated, shape), base = roofline(without, shape);
  // Q and the new rows are read and written again.
  EXPECT_DOUBLE_EQ(with.append_bytes, 2 * 2 * 64 * (2 * 8 + 2 * 2 * 2));
  EXPECT_DOUBLE_EQ(with.fused_bytes, base.fused_bytes + with.append_bytes);
  EXPECT_GT(with.predicted.total, base.predicted.total);
}

// The turns of a pair, times a position, are what is left of the angle without whole turns.
TEST(Append, AnglesWithoutTables) {
  constexpr RopeTurns usual = rope_turns(128, 10000);  // as kernels have them
  EXPECT_EQ(usual.of[0], rope_turns(128, 10000).of[0]);
  for (const double base : {1.0, 37.5, 10000.0, 500000.0, 1e12}) {
    for (const int dims : {2, 20, 64, 128, 256}) {
      const RopeTurns turns = rope_turns(dims, base);
      for (int pair = 0; pair < dims / 2; ++pair) {
        const long double frequency = std::pow(static_cast<long double>(base), -2.0L * pair / dims);
        for (const std::uint64_t position : {std::uint64_t{1}, std::uint64_t{1000003}, (std::uint64_t{1} << 30) - 1}) {
          const auto fraction = static_cast<std::int64_t>(turns.of[pair] * position);
          const long double radians = static_cast<long double>(fraction) * 0x1p-63L * std::numbers::pi_v<long double>;
          const long double off = std::remainder(radians - static_cast<long double>(position) * frequency,
                                                 2 * std::numbers::pi_v<long double>);
          EXPECT_LT(std::fabs(off), position < 2000000 ? 1e-9L : 1e-6L)
              << base << " " << dims << " " << pair << " " << position;
        }
      }
    }
  }
}

}  // namespace
}  // namespace flashjit

#include "tools/ranks/ways.h"

#include <algorithm>
#include <limits>

#include <gtest/gtest.h>

namespace flashjit {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
// Nothing takes time but bytes.
const Network kHost{{8, 100, 0}, {1, 0, 0}}, kHosts{{8, 100, 0}, {4, 10, 0}};

RankProblem problem_of(const char* spec, const Network& network, std::int64_t length = 65536) {
  const auto parsed = parse_spec(spec);
  EXPECT_TRUE(parsed) << spec;
  return {*parsed, {1, length, length}, network};
}

// A kernel that takes 1 us for a million scores that are seen, of 16 heads; of a masked one half are seen.
Result<StepTime> step_time(const StepQuestion& question) {
  const double scores = static_cast<double>(question.shape.q_len) * static_cast<double>(question.shape.k_len) * 1e-6;
  return StepTime{0, scores / question.head_shares * (question.masked ? 0.5 : 1) *
                         (question.direction == Direction::Forward ? 1 : 2.5)};
}

std::vector<Way> ways(const RankProblem& problem, bool gradients = true) {
  auto all = ways_of(problem, step_time, gradients);
  EXPECT_TRUE(all) << all.error().message;
  return *all;
}

const Way& find(const std::vector<Way>& all, const char* name, int heads_over = 0) {
  const auto found = std::ranges::find_if(
      all, [&](const Way& way) { return way.name == name && (!heads_over || way.heads_over == heads_over); });
  EXPECT_NE(found, all.end()) << name;
  return *found;
}

constexpr char kCausal[] = "fwd bf16 d=128 heads=16/8 mask=\"causal\"";
constexpr double kTokenBytes = 8 * 256 * 2;  // of K and V

TEST(Ways, WithInfiniteBandwidthThereIsOnlyComputing) {
  const auto all = ways(problem_of(kCausal, {{8, kInfinite, 0}, {4, kInfinite, 0}}));
  EXPECT_GE(all.size(), 4u);
  const double ideal = 65536.0 * 65536 * 1e-6 / 2 / 32;
  for (const Way& way : all) {
    if (!way.why_not.empty()) continue;
    EXPECT_DOUBLE_EQ(way.forward.waited_us(), 0) << way.name;
    EXPECT_DOUBLE_EQ(way.backward->waited_us(), 0) << way.name;
    EXPECT_NEAR(way.forward.total_us(), ideal, ideal * 0.001) << way.name << way.heads_over;
    EXPECT_NEAR(way.backward->total_us(), ideal * 2.5, ideal * 0.003) << way.name << way.heads_over;
  }
}

// The tiles that an edge cuts cost as much in steps as in one kernel: half of the scores are seen, and 0.75 computed.
TEST(Ways, StepsComputeWhatOneKernelDoes) {
  const StepTimes times = [](const StepQuestion& question) -> Result<StepTime> {
    const double scores = static_cast<double>(question.shape.q_len) * static_cast<double>(question.shape.k_len) * 1e-6;
    return StepTime{0, scores / question.head_shares * (question.masked ? 0.75 : 1)};
  };
  const RankProblem problem = problem_of(kCausal, {{8, kInfinite, 0}, {1, 0, 0}});
  const auto all = ways_of(problem, times, false);
  ASSERT_TRUE(all);
  const double whole = 65536.0 * 65536 * 1e-6 * 0.75;
  for (const Way& way : *all)
    EXPECT_NEAR(way.forward.total_us(), whole / 8, whole * 1e-4) << way.name << way.heads_over;
}

TEST(Ways, ARingSendsAllKeysButItsOwn) {
  for (const int ranks : {2, 4, 8}) {
    const auto all = ways(problem_of(kCausal, {{ranks, 100, 0}, {1, 0, 0}}));
    const double whole = kTokenBytes * 65536;
    const Way& ring = find(all, "ring");
    EXPECT_EQ(ring.order, TokenOrder::Zigzag);
    EXPECT_DOUBLE_EQ(ring.forward.bytes(), whole * (ranks - 1) / ranks / 1);
    EXPECT_DOUBLE_EQ(ring.backward->bytes(), (whole + 2 * whole) * (ranks - 1) / ranks) << "gradients are fp32";
    EXPECT_DOUBLE_EQ(find(all, "gather").forward.bytes(), whole * (ranks - 1) / ranks);
  }
}

TEST(Ways, HeadsForTokensSendsWhatOtherRanksTake) {
  const auto all = ways(problem_of("fwd bf16 d=128 heads=16/8", kHost));
  const Way& ulysses = find(all, "ulysses");
  const double q = 16 * 128 * 2 * 8192.0, kv = kTokenBytes * 8192;
  EXPECT_DOUBLE_EQ(ulysses.forward.before_bytes, (q + kv) * 7 / 8);
  EXPECT_DOUBLE_EQ(ulysses.forward.behind_bytes, q * 7 / 8);
  EXPECT_DOUBLE_EQ(ulysses.forward.before_us, (q + kv) * 7 / 8 / 100e3);
  EXPECT_DOUBLE_EQ(ulysses.backward->bytes(), ulysses.forward.bytes());
  EXPECT_FALSE(ulysses.order);
  // With more ranks than KV heads several ranks get the same one.
  const auto fewer = ways(problem_of("fwd bf16 d=128 heads=16/2", kHost));
  EXPECT_DOUBLE_EQ(find(fewer, "ulysses").forward.before_bytes, (q + 8 * 256 * 2 * 8192.0) * 7 / 8);
}

TEST(Ways, HeadsThatRanksDoNotDivideAreRefusedWithTheReason) {
  const auto all = ways(problem_of("fwd bf16 d=128 heads=12/4", kHost));
  EXPECT_EQ(find(all, "ulysses").why_not, "12 query heads cannot be divided among 8 ranks");
  EXPECT_TRUE(find(all, "mesh", 4).why_not.empty());
  const auto kv = problem_of("fwd bf16 d=128 heads=24/6", kHost);
  EXPECT_EQ(find(ways(kv), "ulysses").why_not, "6 KV heads and 8 ranks: neither is a multiple of the other");
  EXPECT_EQ(why_not_heads(kv.spec, 12), "");
}

TEST(Ways, AMeshKeepsTheHeadsInAHost) {
  const auto all = ways(problem_of("fwd bf16 d=128 heads=32/8 mask=\"causal\"", kHosts));
  const Way &ring = find(all, "ring"), &mesh = find(all, "mesh", 8);
  EXPECT_EQ(mesh.ring_of, 4);
  // A ring of all ranks brings all keys over the slow links; one of hosts brings each rank those of its heads.
  EXPECT_DOUBLE_EQ(ring.forward.bytes(), kTokenBytes * 65536 * 31 / 32);
  double between = 0;
  for (const CourseStep& step : mesh.forward.steps) between += step.bytes;
  EXPECT_DOUBLE_EQ(between, kTokenBytes * 65536 / 8 * 3 / 4);
  EXPECT_LT(mesh.forward.waited_us(), ring.forward.waited_us());
}

TEST(Ways, AWindowSendsToNeighboursAlone) {
  const auto all = ways(problem_of("fwd bf16 d=128 heads=16/8 mask=\"causal & window(1024, 0)\"", kHost));
  const Way& ring = find(all, "ring");
  EXPECT_EQ(ring.order, TokenOrder::Contiguous);
  EXPECT_NEAR(ring.forward.bytes(), kTokenBytes * 1024, kTokenBytes * 64);
}

TEST(Ways, LengthsMustBeShared) {
  const auto refused = ways_of(problem_of(kCausal, kHost, 65544), step_time, false);
  ASSERT_FALSE(refused);
  for (const char* says : {"--shape: q=65544", "multiple of 16", "8 ranks", "q=65536"})
    EXPECT_NE(refused.error().message.find(says), std::string::npos) << refused.error().message;
}

TEST(Ways, WithoutGradientsThereIsNoBackward) {
  for (const Way& way : ways(problem_of(kCausal, kHost), false)) EXPECT_FALSE(way.backward) << way.name;
  const auto alone = ways(problem_of(kCausal, {{1, 100, 0}, {1, 0, 0}}));
  EXPECT_DOUBLE_EQ(find(alone, "ring").forward.bytes(), 0);
}

}  // namespace
}  // namespace flashjit

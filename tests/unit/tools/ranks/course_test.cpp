#include "tools/ranks/course.h"

#include <gtest/gtest.h>

namespace flashjit {
namespace {

// By hand: 10 beside 4, 10 beside 4, 10 alone.
TEST(Course, ARingHidesTheKeysOfTheNextStep) {
  const Course course = ring_course({10, 10, 10}, {{}, {4, 100}, {4, 100}}, {});
  EXPECT_DOUBLE_EQ(course.total_us(), 30);
  EXPECT_DOUBLE_EQ(course.waited_us(), 0);
  EXPECT_DOUBLE_EQ(course.hidden(), 1);
  EXPECT_DOUBLE_EQ(course.bytes(), 200);
}

// 10 beside 25, 10 beside 25, 10 alone.
TEST(Course, ASlowRingWaits) {
  const Course course = ring_course({10, 10, 10}, {{}, {25, 1}, {25, 1}}, {});
  EXPECT_DOUBLE_EQ(course.total_us(), 60);
  EXPECT_DOUBLE_EQ(course.compute_us(), 30);
  EXPECT_DOUBLE_EQ(course.waited_us(), 30);
  EXPECT_DOUBLE_EQ(course.exchanged_us(), 50);
  EXPECT_DOUBLE_EQ(course.hidden(), 20.0 / 50);
}

// 10 beside 4 (keys 1), 10 beside 4 (keys 2), 10 beside 4 and 6 (keys 3, gradients 1), 10 beside 6 (gradients 2), 6 behind.
TEST(Course, GradientsOfKeysGoHomeOneStepLater) {
  const Exchange keys{4, 100}, gradients{6, 200};
  const Course course = ring_course({10, 10, 10, 10}, {{}, keys, keys, keys}, {{}, gradients, gradients, gradients});
  EXPECT_DOUBLE_EQ(course.total_us(), 46);
  EXPECT_DOUBLE_EQ(course.behind_us, 6);
  EXPECT_DOUBLE_EQ(course.steps[2].exchange_us, 10);
  EXPECT_DOUBLE_EQ(course.steps[3].exchange_us, 6);
  EXPECT_DOUBLE_EQ(course.bytes(), 3 * 100 + 3 * 200);
}

TEST(Course, OneRankSendsNothing) {
  for (const auto& gradients : {std::vector<Exchange>(), std::vector<Exchange>{{}}}) {
    const Course course = ring_course({10}, {{}}, gradients);
    EXPECT_DOUBLE_EQ(course.total_us(), 10);
    EXPECT_DOUBLE_EQ(course.bytes(), 0);
    EXPECT_DOUBLE_EQ(course.hidden(), 1);
  }
}

// 7 before, 10 beside 7, 10 alone; with sums: 10 beside 7, 10 beside 12, 12 behind.
TEST(Course, AGatherWaitsForItsFirstPieceAndItsLastSum) {
  const Exchange keys{7, 50}, sums{12, 80};
  EXPECT_DOUBLE_EQ(gather_course({10, 10}, {keys, keys}, {}).total_us(), 27);
  const Course backward = gather_course({10, 10}, {keys, keys}, {sums, sums});
  EXPECT_DOUBLE_EQ(backward.total_us(), 7 + 10 + 12 + 12);
  EXPECT_DOUBLE_EQ(backward.bytes(), 2 * 50 + 2 * 80);
}

// 1 before, 5 alone as the next one takes 4 of it, 20 alone.
TEST(Course, PiecesOfAGatherMayGrow) {
  const Course course = gather_course({5, 20}, {{1, 10}, {4, 40}}, {});
  EXPECT_DOUBLE_EQ(course.total_us(), 1 + 5 + 20);
  EXPECT_DOUBLE_EQ(course.bytes(), 50);
}

}  // namespace
}  // namespace flashjit

// A call over ranks is a course of steps that compute. Some exchanges go on beside the steps, and nothing hides the
// others.
#pragma once

#include <vector>

namespace flashjit {

struct CourseStep {
  double compute_us = 0;
  double exchange_us = 0;  // It goes on beside the step, which ends when both have.
  double bytes = 0;        // bytes that this rank sends in the step
};

struct Course {
  double before_us = 0, behind_us = 0;        // exchanges with nothing beside them
  double before_bytes = 0, behind_bytes = 0;  // bytes that this rank sends in these exchanges
  std::vector<CourseStep> steps;

  double total_us() const;
  double compute_us() const;
  double exchanged_us() const;
  // This is the time that exchanges are waited for.
  double waited_us() const { return total_us() - compute_us(); }
  // Returns the share of the exchanges' time that passes beside computing, or 1 if there are no exchanges.
  double hidden() const;
  double bytes() const;
};

// An exchange takes a time, and a rank sends this many bytes for it.
struct Exchange {
  double us = 0, bytes = 0;
};

// In a ring, while step t computes, the keys of step t + 1 come. In the backward direction gradients of the keys of
// step t - 1 go home, except for those of step 0, which are there. `keys` and `gradients` are by step, and those of
// step 0 are nothing. `gradients` is empty in the forward direction.
Course ring_course(const std::vector<double>& compute_us, const std::vector<Exchange>& keys,
                   const std::vector<Exchange>& gradients);
// An all-gather goes in pieces. The first piece comes with nothing beside it, and in the backward direction the sums of
// the last one go with nothing beside them. `gradients` is empty in the forward direction.
Course gather_course(const std::vector<double>& compute_us, const std::vector<Exchange>& keys,
                     const std::vector<Exchange>& gradients);

}  // namespace flashjit

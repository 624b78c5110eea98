// A call over ranks takes its course: steps compute, some exchanges go on beside them, and nothing hides the others.
#pragma once

#include <vector>

namespace flashjit {

struct CourseStep {
  double compute_us = 0;
  double exchange_us = 0;  // beside it: a step ends when both have
  double bytes = 0;        // that this rank sends in it
};

struct Course {
  double before_us = 0, behind_us = 0;        // exchanges with nothing beside them
  double before_bytes = 0, behind_bytes = 0;  // that this rank sends in these
  std::vector<CourseStep> steps;

  double total_us() const;
  double compute_us() const;
  double exchanged_us() const;
  double waited_us() const { return total_us() - compute_us(); }  // for what is not hidden
  double hidden() const;  // share of the time of exchanges that passes beside computing; 1 where there are none
  double bytes() const;
};

// An exchange takes a time, and a rank sends so many bytes for it.
struct Exchange {
  double us = 0, bytes = 0;
};

// In a ring, while step t computes, the keys of step t + 1 come, and in the backward direction gradients of the keys of step t - 1
// go home, but for those of step 0, which are there. `keys` and `gradients` are by step, that of step 0 is nothing; `gradients`
// is empty in the forward direction.
Course ring_course(const std::vector<double>& compute_us, const std::vector<Exchange>& keys,
                   const std::vector<Exchange>& gradients);
// An all-gather goes in pieces: the first one comes with nothing beside it, and in the backward direction the sums of the last one go with
// nothing beside them. `gradients` is empty in the forward direction.
Course gather_course(const std::vector<double>& compute_us, const std::vector<Exchange>& keys,
                     const std::vector<Exchange>& gradients);

}  // namespace flashjit

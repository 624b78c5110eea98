#include "tools/ranks/course.h"

#include <algorithm>

namespace flashjit {

double Course::total_us() const {
  double total = before_us + behind_us;
  for (const CourseStep& step : steps) total += std::max(step.compute_us, step.exchange_us);
  return total;
}

double Course::compute_us() const {
  double total = 0;
  for (const CourseStep& step : steps) total += step.compute_us;
  return total;
}

double Course::exchanged_us() const {
  double total = before_us + behind_us;
  for (const CourseStep& step : steps) total += step.exchange_us;
  return total;
}

double Course::hidden() const {
  const double all = exchanged_us();
  double beside = 0;
  for (const CourseStep& step : steps) beside += std::min(step.compute_us, step.exchange_us);
  return all > 0 ? beside / all : 1;
}

double Course::bytes() const {
  double total = before_bytes + behind_bytes;
  for (const CourseStep& step : steps) total += step.bytes;
  return total;
}

Course ring_course(const std::vector<double>& compute_us, const std::vector<Exchange>& keys,
                   const std::vector<Exchange>& gradients) {
  const std::size_t count = compute_us.size();
  Course course;
  for (std::size_t t = 0; t < count; ++t) {
    CourseStep& step = course.steps.emplace_back(CourseStep{.compute_us = compute_us[t]});
    const auto add = [&](const Exchange& exchange) {
      step.exchange_us += exchange.us;
      step.bytes += exchange.bytes;
    };
    if (t + 1 < count) add(keys[t + 1]);
    if (t >= 2 && !gradients.empty()) add(gradients[t - 1]);
  }
  if (count > 1 && !gradients.empty()) {
    course.behind_us = gradients.back().us;
    course.behind_bytes = gradients.back().bytes;
  }
  return course;
}

Course gather_course(const std::vector<double>& compute_us, const std::vector<Exchange>& keys,
                     const std::vector<Exchange>& gradients) {
  const std::size_t count = compute_us.size();
  Course course{.before_us = keys.front().us, .before_bytes = keys.front().bytes};
  if (!gradients.empty()) {
    course.behind_us = gradients.back().us;
    course.behind_bytes = gradients.back().bytes;
  }
  for (std::size_t t = 0; t < count; ++t) {
    CourseStep& step = course.steps.emplace_back(CourseStep{.compute_us = compute_us[t]});
    const auto add = [&](const Exchange& exchange) {
      step.exchange_us += exchange.us;
      step.bytes += exchange.bytes;
    };
    if (t + 1 < count) add(keys[t + 1]);
    if (t >= 1 && !gradients.empty()) add(gradients[t - 1]);
  }
  return course;
}

}  // namespace flashjit

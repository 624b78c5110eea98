#include "tools/ranks/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "tools/ranks/predictor.h"
#include "tools/ranks/ways.h"

namespace flashjit {
namespace {

constexpr std::size_t kShownRuns = 6;  // limit for runs of steps that are alike

struct Counted {
  RankProblem problem;
  std::vector<Way> ways;
  // These are times of a rank alone. The second one is 0 if there are no gradients.
  double one_forward_us = 0, one_backward_us = 0;
  std::string why_no_gradients;
  std::vector<std::string> assumptions;
};

double total_us(const Way& way) { return way.forward.total_us() + (way.backward ? way.backward->total_us() : 0); }

const Way* fastest(const std::vector<Way>& ways) {
  const Way* best = nullptr;
  for (const Way& way : ways)
    if (way.why_not.empty() && (!best || total_us(way) < total_us(*best))) best = &way;
  return best;
}

// There may be many meshes, of which a text has the fastest.
std::vector<const Way*> shown(const std::vector<Way>& ways) {
  const Way* mesh = nullptr;
  for (const Way& way : ways)
    if (way.name == "mesh" && (!mesh || total_us(way) < total_us(*mesh))) mesh = &way;
  std::vector<const Way*> all;
  for (const Way& way : ways)
    if (way.name != "mesh" || &way == mesh) all.push_back(&way);
  return all;
}

std::vector<std::string> assumptions_of(const RankProblem& problem, const Target& target) {
  std::vector<std::string> all = {
      "a step takes what the cost model predicts for its queries and keys, where prepare is told them, times the share",
      "that the mask leaves of them; together the steps compute as much as one kernel with the mask",
      "bandwidth is for each GPU, in each direction, all at once; nothing else uses the network",
      fmt::format(
          "a message takes {} us{} and its bytes over the bandwidth", kLatencyWithinUs,
          problem.network.has_hosts() ? fmt::format(" within a host, {} us between hosts,", kLatencyBetweenUs) : "")};
  if (target.gpu && problem.network.has_hosts())
    all.push_back(
        fmt::format("beside exchanges kernels have {} of {} SMs", target.sm_count - kSmsForExchanges, target.sm_count));
  all.emplace_back(
      "K and V travel as they are, gradients of K and V in fp32; O and dQ of a ring are fp32 sums in place");
  all.emplace_back("what a ring sums, and heads for tokens put in order, is counted as reads and writes of memory");
  all.emplace_back("rings wait for the slowest rank in every step; ranks of a host are numbered one after the other");
  const auto read = problem.spec.mask ? params_of(problem.spec.mask) : std::vector<Param>();
  if (!read.empty())
    all.push_back(fmt::format(
        "the mask reads {}, which is not known here: counted as if it was 0, and alike for all pairs of ranks",
        read.front().name));
  return all;
}

Result<Counted> counted(const std::string& ranks, const Request& request, const DeviceFigures& device,
                        const Shape& shape) {
  FLASHJIT_TRY(check_ranks(request));
  FLASHJIT_ASSIGN(network, parse_network(ranks));
  Counted all{.problem = {request.spec, shape, network, device.memory_tbs},
              .ways = {},
              .why_no_gradients = {},
              .assumptions = {}};
  Predictor predictor(request, device);
  const StepTimes times = [&](const StepQuestion& question) { return predictor(question); };
  FLASHJIT_ASSIGN(forward, times({Direction::Forward, 1, shape, true, false}));
  const auto backward = times({Direction::Backward, 1, shape, true, false});
  all.one_forward_us = forward.fixed_us + forward.work_us;
  if (backward) all.one_backward_us = backward->fixed_us + backward->work_us;
  else all.why_no_gradients = backward.error().message;
  FLASHJIT_ASSIGN(ways, ways_of(all.problem, times, bool(backward)));
  all.ways = std::move(ways);
  all.assumptions = assumptions_of(all.problem, request.target);
  return all;
}

bool alike(const CourseStep& a, const CourseStep& b) {
  const auto near = [](double x, double y) { return std::abs(x - y) <= 1e-3 * std::max(x, y); };
  return near(a.compute_us, b.compute_us) && near(a.exchange_us, b.exchange_us) && near(a.bytes, b.bytes);
}

struct StepRun {
  std::size_t first = 0, count = 0;
  CourseStep step;
};

std::vector<StepRun> runs_of(const Course& course) {
  std::vector<StepRun> runs;
  for (std::size_t t = 0; t < course.steps.size(); ++t) {
    if (runs.empty() || !alike(runs.back().step, course.steps[t])) runs.push_back({t, 0, course.steps[t]});
    ++runs.back().count;
  }
  return runs;
}

Json course_json(const Course& course, double one_us, int ranks) {
  Json json = {{"us", course.total_us()},
               {"compute_us", course.compute_us()},
               {"waited_us", course.waited_us()},
               {"exchanged_us", course.exchanged_us()},
               {"hidden", course.hidden()},
               {"bytes", course.bytes()},
               {"before_us", course.before_us},
               {"behind_us", course.behind_us},
               {"efficiency", one_us / ranks / course.total_us()}};
  json["steps"] = Json::array();
  for (const StepRun& run : runs_of(course))
    json["steps"].push_back({{"first", run.first},
                             {"count", run.count},
                             {"compute_us", run.step.compute_us},
                             {"exchange_us", run.step.exchange_us},
                             {"bytes", run.step.bytes}});
  return json;
}

Json json_of(const Counted& all, const Request& request) {
  const Network& network = all.problem.network;
  Json line = result_line(request.text, request.target.name, print(request.pins));
  line["shape"] = {{"b", all.problem.whole.b}, {"q", all.problem.whole.q_len}, {"k", all.problem.whole.k_len}};
  line["ranks"] = network.ranks();
  line["hosts"] = network.between.count;
  line["gb_per_s"] = {network.within.gb_per_s};
  if (network.has_hosts()) line["gb_per_s"].push_back(network.between.gb_per_s);
  line["one_rank"] = {{"forward_us", all.one_forward_us}, {"backward_us", all.one_backward_us}};
  line["ways"] = Json::array();
  for (const Way& way : all.ways) {
    Json one = {{"way", way.name}, {"heads_over", way.heads_over}, {"ring_of", way.ring_of}};
    one["order"] = way.order ? Json(std::string(name(*way.order))) : Json();
    one["refused"] = way.why_not.empty() ? Json() : Json(way.why_not);
    one["kv_bytes"] = way.most_kv_bytes;
    const bool counts = way.why_not.empty();
    one["forward"] = counts ? course_json(way.forward, all.one_forward_us, network.ranks()) : Json();
    one["backward"] =
        counts && way.backward ? course_json(*way.backward, all.one_backward_us, network.ranks()) : Json();
    line["ways"].push_back(std::move(one));
  }
  const Way* best = fastest(all.ways);
  line["fastest"] =
      best ? Json{{"way", best->name}, {"heads_over", best->heads_over}, {"ring_of", best->ring_of}} : Json();
  line["why_no_gradients"] = all.why_no_gradients.empty() ? Json() : Json(all.why_no_gradients);
  line["assumptions"] = all.assumptions;
  return line;
}

std::string words_of(const Way& way) {
  std::string words = way.name;
  if (way.name == "mesh") words += fmt::format(" {}x{}", way.heads_over, way.ring_of);
  return way.order ? fmt::format("{}, {}", words, name(*way.order)) : words;
}

std::string row_of(const Way& way, const Course& course, double one_us, int ranks) {
  return fmt::format("  {:24} {:>10.3f} {:>10.3f} {:>10.3f} {:>7.0f}% {:>10} {:>7.0f}%\n", words_of(way),
                     course.total_us() / 1e3, course.compute_us() / 1e3, course.waited_us() / 1e3,
                     course.hidden() * 100, bytes_text(course.bytes()), one_us / ranks / course.total_us() * 100);
}

std::string table_of(const Counted& all, Direction direction) {
  const bool forward = direction == Direction::Forward;
  const int ranks = all.problem.network.ranks();
  const double one = forward ? all.one_forward_us : all.one_backward_us;
  std::string text = fmt::format(
      "{}: one rank alone takes {:.3f} ms, of which each of {} would have {:.3f} ms\n"
      "  {:24} {:>10} {:>10} {:>10} {:>8} {:>10} {:>8}\n",
      forward ? "forward" : "backward", one / 1e3, ranks, one / ranks / 1e3, "way", "ms", "computing", "waiting",
      "hidden", "sent", "of ideal");
  for (const Way* way : shown(all.ways)) {
    if (!way->why_not.empty()) text += fmt::format("  {:24} refused: {}\n", way->name, way->why_not);
    else text += row_of(*way, forward ? way->forward : *way->backward, one, ranks);
  }
  return text;
}

std::string steps_text(const Way& way, const Course& course, const char* direction) {
  std::string text = fmt::format("steps of {}, {}\n", words_of(way), direction);
  const auto alone = [&](double us, double bytes, const char* what) {
    if (us > 0)
      text += fmt::format("  {:16} {:.3f} ms for {}, with nothing beside it\n", what, us / 1e3, bytes_text(bytes));
  };
  alone(course.before_us, course.before_bytes, "before");
  const std::vector<StepRun> runs = runs_of(course);
  for (std::size_t i = 0; i < std::min(runs.size(), kShownRuns); ++i) {
    const StepRun& run = runs[i];
    const std::string steps = run.count == 1 ? fmt::format("step {}", run.first)
                                             : fmt::format("steps {} to {}", run.first, run.first + run.count - 1);
    text +=
        fmt::format("  {:16} {:.3f} ms computing{}", steps, run.step.compute_us / 1e3, run.count > 1 ? " each" : "");
    if (run.step.exchange_us > 0)
      text += fmt::format(", beside {:.3f} ms for {}", run.step.exchange_us / 1e3, bytes_text(run.step.bytes));
    text += "\n";
  }
  if (runs.size() > kShownRuns) text += fmt::format("  and {} more kinds of steps\n", runs.size() - kShownRuns);
  alone(course.behind_us, course.behind_bytes, "behind");
  return text;
}

std::string text_of(const Counted& all, const Request& request, const DeviceFigures& device) {
  std::string text = fmt::format("{}\nfor {}\nat {} over {}\n\n", request.text, device_text(device, request.target.gpu),
                                 print(all.problem.whole), print(all.problem.network));
  text += table_of(all, Direction::Forward) + "\n";
  if (all.why_no_gradients.empty()) text += table_of(all, Direction::Backward) + "\n";
  else text += fmt::format("backward: not counted: {}\n\n", all.why_no_gradients);
  if (const Way* best = fastest(all.ways)) {
    text += fmt::format("fastest: {}; a rank holds {} of K and V at a time\n\n", words_of(*best),
                        bytes_text(best->most_kv_bytes));
    text += steps_text(*best, best->forward, "forward");
    if (best->backward) text += steps_text(*best, *best->backward, "backward");
  }
  text += "\nassumed\n";
  for (const std::string& assumption : all.assumptions) text += fmt::format("  {}\n", assumption);
  return text;
}

}  // namespace

Result<void> explain_ranks(const std::string& ranks, const Request& request, const DeviceFigures& device,
                           const Shape& shape, Output& output) {
  FLASHJIT_ASSIGN(all, counted(ranks, request, device, shape));
  output.result(json_of(all, request), text_of(all, request, device));
  return {};
}

}  // namespace flashjit

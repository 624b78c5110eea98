// Cases from seeds, or the fixed table of tests/device, through the public engine against the float64 reference.
//
//   differential --device host|gpu --count N --seed S     cases of seeds S, S+1, ... S+N-1
//   differential --device gpu --table                     the fixed table
//   differential --device host|gpu --pairs                of each family every pair of choices, or of one: --family NAME
//
// On a GPU seeds draw a schedule as well, and the table is run with the cost model's choice, with each family, and with
// every kind of softmax or grid where it is about these. --schedule TEXT is for all cases instead.
//
// --alone: with numerics=batch_invariant, and every sequence again in a call of its own, which must give the same bits.
//
// Exit code: 0 all passed, 1 something failed, 2 wrong usage, 77 there is no such device here.
#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "compiler/families/family.h"
#include "compiler/spec/operands.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "runtime/compile/request.h"
#include "tests/device/cases.h"
#include "codegen/cuda/emit.h"
#include "tests/random/pairs/pair_case.h"
#include "tests/random/pairs/pair_table.h"
#include "tests/random/runner.h"
#include "tests/random/schedule_generator.h"
#include "tests/random/spec_generator.h"

namespace flashjit::testing_random {
namespace {

constexpr int kSkipped = 77;  // what ctest is told to take for "skipped"
// From a case that is not asked for to the next one: a prime, so that all kinds of cases come, whatever their share, and
// more than there are cases, so that none comes twice.
constexpr std::uint64_t kSeedStep = 1'000'003;

constexpr char kUsage[] =
    "usage: differential [--device host|gpu] [--count N] [--seed S] [--table] [--pairs] [--family NAME] [--only TEXT] [--large]\n"
    "                    [--alone] [--jobs N] [--json]\n"
    "                    [--data KIND] [--target NAME] [--schedule TEXT] [--work MULTIPLY_ADDS] [--threads N] [--show]\n"
    "--only: rows of the table whose names have this in them, or drawn specs that have; there must be some. Given several "
    "times: all of them\n"
    "--pairs --count N: N specs of each family\n"
    "--plans sm_90a: specs are planned with their pins, drawn ones or those of --pairs, and sources are made; nothing runs\n"
    "--pairs --show: also every choice, and every pair of choices, that a family refuses, with its reason\n"
    "--data: drawn specs have such numbers: normal, sharp, equal, huge, zero, \"a few inf and nan\"\n";

struct Options {
  Runner::Options runner;
  std::optional<std::int64_t> count;
  std::int64_t jobs = 1;
  std::uint64_t seed = 1;
  bool table = false, pairs = false, large = false, json = false, show = false;
  std::optional<Data> data;
  std::vector<std::string> only;
  std::string family;
  // Has a text all that --only asks for?
  bool wants(std::string_view text) const {
    return std::ranges::all_of(only, [&](const std::string& part) { return text.find(part) != text.npos; });
  }
  std::string plans;  // the target of plans that nothing runs of
};

bool parse_number(std::string_view text, auto& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

bool parse_data(std::string_view text, std::optional<Data>& data) {
  const auto drawn = std::span(kDataNames).first<kDrawnKinds>();
  const auto found = std::ranges::find(drawn, text);
  if (found == drawn.end()) return false;
  data = static_cast<Data>(found - drawn.begin());
  return true;
}

bool parse_options(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--table") options.table = true;
    else if (flag == "--pairs") options.pairs = true;
    else if (flag == "--large") options.large = true;
    else if (flag == "--json") options.json = true;
    else if (flag == "--show") options.show = true;
    else if (flag == "--alone") options.runner.alone = true;
    else if (++i == argc) return false;
    else {
      const std::string_view value = argv[i];
      double work = 0;
      if (flag == "--device" && value == "host") options.runner.device = Device::Host;
      else if (flag == "--device" && value == "gpu") options.runner.device = Device::Gpu;
      else if (flag == "--target") options.runner.target = value;
      else if (flag == "--schedule") options.runner.schedule = value;
      else if (flag == "--only") options.only.emplace_back(value);
      else if (flag == "--family") options.family = value;
      else if (flag == "--plans") options.plans = value;
      else if (flag == "--data" && parse_data(value, options.data)) continue;
      else if (flag == "--count" && parse_number(value, options.count.emplace())) continue;
      else if (flag == "--seed" && parse_number(value, options.seed)) continue;
      else if (flag == "--jobs" && parse_number(value, options.jobs) && options.jobs > 0) continue;
      else if (flag == "--threads" && parse_number(value, options.runner.threads)) continue;
      else if (flag == "--work" && parse_number(value, work)) options.runner.work = work;
      else return false;
    }
  }
  return true;
}

std::string json_text(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    if (c == '\n') result += "\\n";
    else if (static_cast<unsigned char>(c) >= 0x20) result += c;
  }
  return result + '"';
}

std::string number(double value) { return std::isfinite(value) ? fmt::format("{:.4g}", value) : "null"; }

class Report {
 public:
  explicit Report(const Options& options) : options_(options) {}

  void add(const Case& c, const std::string& label, const Outcome& outcome) {
    const std::lock_guard lock(mutex_);
    ++done_;
    if (!outcome.ok) ++failed_;
    if (outcome.schedule.find("family=hopper") != std::string::npos) ++hopper_;
    if (!outcome.refused.empty()) ++refused_;
    const reference::Comparison& r = outcome.comparison;
    if (r.max_abs_limit > 0) worst_ = std::max(worst_, r.max_abs_err / r.max_abs_limit);
    worst_row_ = std::max(worst_row_, r.row_err);
    if (r.rel_limit > 0) worst_rel_ = std::max(worst_rel_, r.rel_err / r.rel_limit);
    if (options_.json) {
      fmt::print(
          "{{\"case\": {}, \"spec\": {}, \"shape\": {}, \"data\": {}, \"schedule\": {}, \"refused\": {}, \"ok\": {}, \"error\": {}, "
          "\"max_abs_err\": {}, \"limit\": {}, \"rel_err\": {}, \"rel_limit\": {}, \"rows\": {}, \"rows_checked\": {}}}\n",
          json_text(label), json_text(c.spec), json_text(c.shape), json_text(c.data), json_text(outcome.schedule),
          json_text(outcome.refused), outcome.ok, outcome.ok ? "null" : json_text(outcome.problem),
          number(r.max_abs_err), number(r.max_abs_limit), number(r.rel_err), number(r.rel_limit), r.rows,
          r.rows_checked);
    } else if (!outcome.ok || !outcome.refused.empty() || options_.show) {
      fmt::print("{} {}\n  {}\n  {}; data: {}; schedule: {}\n", outcome.ok ? "ok" : "FAILED", label, c.spec, c.shape,
                 c.data, outcome.schedule);
      if (!outcome.refused.empty()) fmt::print("  refused: {}\n", outcome.refused);
      if (!outcome.ok) fmt::print("  {}\n  again: {}\n", outcome.problem, command(c, label));
      for (const auto& [name, value] : c.scalars) fmt::print("  {} = {}\n", name, value);
    }
    std::fflush(stdout);
  }

  int finish(const std::string& target, double seconds) const {
    const std::string sentence = fmt::format(
        "{} cases on {}, {} of them hopper: {} failed; largest error {:.2f} of its limit, relative error {:.2f} of its limit{}; "
        "{} schedules refused; {:.1f} s",
        done_, target, hopper_, failed_, worst_, worst_rel_,
        worst_row_ > 0 ? fmt::format(", rows of gradients {:.2f}", worst_row_) : "", refused_, seconds);
    if (options_.json) {
      fmt::print(
          "{{\"target\": {}, \"cases\": {}, \"hopper\": {}, \"failed\": {}, \"worst_of_limit\": {:.4f}, "
          "\"worst_rel_of_limit\": {:.4f}, \"refused\": {}, \"seconds\": {:.1f}}}\n",
          json_text(target), done_, hopper_, failed_, worst_, worst_rel_, refused_, seconds);
    } else {
      fmt::print("{}\n", sentence);
    }
    return failed_ == 0 ? 0 : 1;
  }

 private:
  std::string command(const Case& c, const std::string& label) const {
    std::string text = fmt::format("differential --device {}", options_.runner.device == Device::Host ? "host" : "gpu");
    text += options_.pairs   ? fmt::format(" --pairs --{} --only '{}'", c.schedule, label)
            : options_.table ? fmt::format(" --table --only '{}'", label)
                             : fmt::format(" --seed {} --count 1", label);
    if (options_.large) text += " --large";
    if (options_.data) text += fmt::format(" --data '{}'", kDataNames[static_cast<std::size_t>(*options_.data)]);
    if (options_.runner.alone) text += " --alone";
    if (!options_.runner.target.empty()) text += " --target " + options_.runner.target;
    const std::string& schedule = c.schedule.empty() ? options_.runner.schedule : c.schedule;
    if (!schedule.empty() && !options_.pairs) text += fmt::format(" --schedule '{}'", schedule);
    return text;
  }

  const Options& options_;
  std::mutex mutex_;
  std::int64_t done_ = 0, failed_ = 0, hopper_ = 0, refused_ = 0;
  double worst_ = 0, worst_rel_ = 0, worst_row_ = 0;
};

// Calls work(0..count-1) from `jobs` threads.
void spread(std::int64_t count, std::int64_t jobs, const std::function<void(std::int64_t)>& work) {
  std::atomic<std::int64_t> next = 0;
  const auto loop = [&] {
    for (std::int64_t i; (i = next++) < count;) work(i);
  };
  std::vector<std::thread> threads;
  for (std::int64_t i = 1; i < jobs; ++i) threads.emplace_back(loop);
  loop();
  for (std::thread& thread : threads) thread.join();
}

// A row of the table, and the schedule it is run under; empty: the cost model's.
struct TableCase {
  const FixedCase* row;
  std::string_view schedule;
};

constexpr std::string_view kFamilies[] = {"family=sync_narrow",
                                          "family=sync_narrow,q_in=registers,stages=1",
                                          "family=sync",
                                          "family=sync_backward,dq=launch",
                                          "family=sync_backward,dq=atomics",
                                          "family=hopper_backward",
                                          "family=hopper",
                                          "family=hopper,keys=parts",
                                          "family=hopper,transpose=loop",
                                          "family=hopper,transpose=launch",
                                          "family=hopper,transpose=launch,overlap=none,tile_kv=96",
                                          "family=decode",
                                          "family=decode,stages=2,copies=rows",
                                          "family=decode,stages=2,copies=boxes"};
constexpr std::string_view kSoftmaxes[] = {
    "family=hopper,reference=tile",
    "family=hopper,reference=tile,warpgroups=1",
    "family=hopper,reference=tile,overlap=none",
    "family=hopper,reference=first,warpgroups=1,tile_kv=64",
    "family=hopper,reference=first,warpgroups=2,exclusive=issue,tile_kv=128",
    "family=hopper,reference=first,overlap=none",
    "family=hopper,reference=first,row_sum=matrix",
    "family=hopper,reference=first,head_tiles=grouped",
    "family=hopper,reference=first,grid=tiles",
    "family=hopper,reference=first,grid=persistent,q_stages=1",
    // warpgroups that leave out tiles which the others visit
    "family=hopper,reference=first,warpgroups=3,tile_kv=64",
    "family=hopper,reference=first,warpgroups=2,tile_kv=64,exclusive=none",
    "family=hopper,reference=first,warpgroups=2,tile_kv=48",
};

// One block after the other takes items, or each has one.
constexpr std::string_view kGrids[] = {
    "family=hopper,grid=persistent",
    "family=hopper,grid=persistent,reference=tile,warpgroups=1",
    "family=hopper,grid=tiles",
};

std::vector<TableCase> table_cases(const Options& options, std::string_view target) {
  const bool gpu = options.runner.device == Device::Gpu;
  std::vector<TableCase> cases;
  const auto add_row = [&](const FixedCase& row) {
    if ((row.gpu_only && !gpu) || !options.wants(row.name)) return;
    cases.push_back({&row, {}});
    if (!gpu || !options.runner.schedule.empty()) return;
    const auto add = [&](std::string_view schedule) {
      if (can_pin(row.spec, target, schedule)) cases.push_back({&row, schedule});
    };
    for (const std::string_view schedule : kFamilies) add(schedule);
    if (row.many_schedules) {
      for (const std::string_view schedule : kSoftmaxes) add(schedule);
    }
    if (row.side_by_side) {
      for (const std::string_view schedule : kGrids) add(schedule);
    }
  };
  std::ranges::for_each(forward_cases(), add_row);
  std::ranges::for_each(decode_cases(), add_row);
  std::ranges::for_each(narrow_cases(), add_row);
  std::ranges::for_each(backward_cases(), add_row);
  return cases;
}

// A plan that fails by a fault of the compiler is no refusal: the case is run, and fails.
std::string why_not(const std::string& spec, const std::string& target, const std::string& pins) {
  const auto request = Request::parse(spec, target, pins);
  if (!request) return request.error().message;
  const auto kernels = kernels_of(*request);
  if (!kernels) return kernels.error().message;
  for (const Request& kernel : *kernels) {
    const auto plan = plan_spec(kernel);
    if (!plan && plan.error().kind != ErrorKind::Internal) return plan.error().message;
  }
  return {};
}

// So many of them, evenly from the first to the last.
std::vector<std::string> spread_out(const std::vector<std::string>& all, std::size_t count) {
  std::vector<std::string> chosen;
  for (std::size_t i = 0; i < std::min(count, all.size()); ++i)
    chosen.push_back(all[i * all.size() / std::min(count, all.size())]);
  return chosen;
}

// A kernel that the compiler of the GPU spoils takes its spec out of the table, and other specs take over its pairs.
void run_pairs(const Options& options, const Runner& runner, const SpecKind& kind, Report& report,
               std::set<std::string, std::less<>>& given) {
  const std::string pins = fmt::format("family={}", kind.family->name);
  PairTable table(kind, [&](const std::string& spec) { return why_not(spec, runner.target(), pins); });
  std::mutex mutex;
  std::size_t specs = 0;
  while (true) {
    std::vector<std::string> added = table.cover();
    if (!options.only.empty()) std::erase_if(added, [&](const std::string& spec) { return !options.wants(spec); });
    if (options.count) added = spread_out(added, static_cast<std::size_t>(*options.count));
    if (added.empty()) break;
    specs += added.size();
    bool withdrawn = false;
    spread(static_cast<std::int64_t>(added.size()), options.jobs, [&](std::int64_t i) {
      const std::string& spec = added[static_cast<std::size_t>(i)];
      Case c = make_pair_case(spec);
      c.schedule = pins;
      const Outcome outcome = runner.run(c);
      report.add(c, spec, outcome);
      const std::lock_guard lock(mutex);
      c.each([&](const std::string& name, CaseTensor&) { given.insert(name); });
      for (const auto& [name, value] : c.scalars) given.insert(name);
      if (outcome.refused.empty()) return;
      table.withdraw(spec, outcome.refused);
      withdrawn = true;
    });
    if (!withdrawn || options.count) break;
  }
  const std::vector<std::string> impossible = table.impossible();
  fmt::print("{}: {} pairs in {} specs; {} choices or pairs are impossible\n", kind.name(), table.covered(), specs,
             impossible.size());
  if (!options.show) return;
  for (const std::string& line : impossible) fmt::print("  {}\n", line);
}

// Whether the table is what it says: there is a family of that name, and the whole table gives every operand that there is.
bool run_all_pairs(const Options& options, const Runner& runner, Report& report) {
  const auto target = find_target(runner.target());
  std::set<std::string, std::less<>> given;
  bool found = false;
  for (const SpecKind& kind : spec_kinds(target && (*target)->gpu)) {
    if (!options.family.empty() && options.family != kind.family->name) continue;
    found = true;
    run_pairs(options, runner, kind, report, given);
  }
  if (!found) fmt::print(stderr, "--family {}: no family of this device has that name\n", options.family);
  if (!options.family.empty() || !options.only.empty() || options.count) return found;
  for (const Operand& operand : kOperands) {
    if (given.contains(operand.name)) continue;
    fmt::print(stderr,
               "{}: no spec of the table has this operand; add the choice that asks for it (pairs/factors.cpp)\n",
               operand.name);
    found = false;
  }
  return found;
}

// The first thing that is wrong on the way from a spec to its source; empty: nothing is.
std::string plan_fault(const std::string& spec, const std::string& target, const std::string& pins) {
  const auto request = Request::parse(spec, target, pins);
  if (!request) return request.error().message;
  const auto kernels = kernels_of(*request);
  if (!kernels) return kernels.error().message;
  for (const Request& kernel : *kernels) {
    const auto plan = make_plan(kernel.spec, kernel.target, kernel.pins);
    if (!plan) return plan.error().message;
    if (const auto source = emit_cuda(*plan); !source) return source.error().message;
  }
  return {};
}

// Counts specs and those that no kernel can be made for.
class PlanChecks {
 public:
  explicit PlanChecks(std::string target) : target_(std::move(target)) {}

  void add(const std::string& spec, const std::string& pins) {
    const std::string fault = plan_fault(spec, target_, pins);
    const std::lock_guard lock(mutex_);
    ++specs_;
    if (fault.empty()) return;
    ++wrong_;
    fmt::print("FAILED {} // {}\n  {}\n", spec, pins, fault);
  }

  int finish() const {
    fmt::print("{} specs are planned for {}: {} failed\n", specs_, target_, wrong_);
    return specs_ == 0 || wrong_ > 0 ? 1 : 0;
  }

 private:
  const std::string target_;
  std::mutex mutex_;
  std::size_t specs_ = 0, wrong_ = 0;
};

void check_plans_of_pairs(const Options& options, PlanChecks& checks) {
  for (const SpecKind& kind : spec_kinds(true)) {
    if (!options.family.empty() && options.family != kind.family->name) continue;
    const std::string pins = fmt::format("family={}", kind.family->name);
    PairTable table(kind, [&](const std::string& spec) { return why_not(spec, options.plans, pins); });
    for (const std::string& spec : table.cover()) checks.add(spec, pins);
  }
}

// Calls work(case) for specs that --only is part of.
void draw_cases(const Options& options, const GeneratorOptions& generator, const std::function<void(Case&)>& work) {
  constexpr std::int64_t kUsualCount = 50;
  spread(options.count.value_or(kUsualCount), options.jobs, [&](std::int64_t i) {
    std::uint64_t seed = options.seed + static_cast<std::uint64_t>(i);
    GeneratorOptions without_numbers = generator;
    without_numbers.numbers = false;
    if (!options.only.empty())
      while (!options.wants(draw_case(seed, without_numbers).spec)) seed += kSeedStep;
    Case c = draw_case(seed, generator);
    work(c);
  });
}

int check_plans(const Options& options) {
  PlanChecks checks(options.plans);
  if (options.pairs) {
    check_plans_of_pairs(options, checks);
  } else {
    draw_cases(options, {Device::Gpu, options.large, options.data}, [&](const Case& c) {
      checks.add(c.spec, c.any_schedule ? draw_schedule(c.seed, c.spec, options.plans) : c.schedule);
    });
  }
  return checks.finish();
}

int run(const Options& options) {
  if (!options.plans.empty()) return check_plans(options);
  auto runner = Runner::create(options.runner);
  if (!runner) {
    fmt::print(stderr, "{}\n", runner.error().message);
    if (runner.error().kind != ErrorKind::NotFound) return 1;
    fmt::print(stderr, "skipped: there is no {} to run on\n",
               options.runner.device == Device::Gpu ? "GPU" : "host backend");
    return kSkipped;
  }
  Report report(options);
  const auto start = std::chrono::steady_clock::now();
  if (options.pairs) {
    if (!run_all_pairs(options, **runner, report)) return 2;
  } else if (options.table) {
    const std::vector<TableCase> cases = table_cases(options, (*runner)->target());
    if (cases.empty()) {
      fmt::print(stderr, "--only {}: no row of the table for this device has that in its name\n", options.only);
      return 2;
    }
    spread(static_cast<std::int64_t>(cases.size()), options.jobs, [&](std::int64_t i) {
      Case c = make_case(*cases[i].row);
      c.schedule = cases[i].schedule;
      const Outcome outcome = (*runner)->run(c);
      report.add(c, std::string(cases[i].row->name), outcome);
    });
  } else {
    draw_cases(options, {options.runner.device, options.large, options.data}, [&](Case& c) {
      const Outcome outcome = (*runner)->run(c);
      report.add(c, std::to_string(c.seed), outcome);
    });
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  return report.finish((*runner)->target(), elapsed.count());
}

}  // namespace
}  // namespace flashjit::testing_random

int main(int argc, char** argv) {
  flashjit::testing_random::Options options;
  if (!flashjit::testing_random::parse_options(argc, argv, options)) {
    fmt::print(stderr, "{}", flashjit::testing_random::kUsage);
    return 2;
  }
  return flashjit::testing_random::run(options);
}

#include "autotune/search/tune.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <future>
#include <optional>
#include <thread>
#include <tuple>

#include <fmt/format.h>

#include "compiler/choice/candidates.h"
#include "runtime/compile/request.h"
#include "runtime/launch/library_thread.h"
#include "runtime/launch/thread_pool.h"

namespace flashjit {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kShortlist = 8;  // The number of schedules of a batch.
// Schedules whose predicted time is more than this multiple of the first choice's are never measured.
constexpr double kExhaustiveReach = 1.5;
constexpr double kBusyNoise = 0.1;     // With more noise it is not known that the default is the fastest.
constexpr double kLeastSeconds = 0.3;  // Measuring gets at least this time, however long compiling took.
// No further batch begins with schedules whose predicted time is more than this multiple of the first choice's.
constexpr double kGiveUp = 1.5;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Entry {
  TunedCandidate candidate;
  std::shared_ptr<Kernel> kernel;  // It is null if the entry is not to be measured.
  bool enumerated = true;          // It is false for a neighbour, or a schedule that was given from outside.
};

bool in_model_order(const Entry& a, const Entry& b) {
  const auto rank = [](const Entry& e) {
    return std::tuple(e.candidate.predicted_us, !e.enumerated, print(e.candidate.schedule));
  };
  return rank(a) < rank(b);
}

void parallel(int threads, std::size_t count, const std::function<void(std::size_t)>& body) {
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) body(i);
  };
  std::vector<std::jthread> others;
  for (std::size_t t = 1; t < std::min<std::size_t>(count, static_cast<std::size_t>(threads)); ++t)
    others.push_back(library_thread(work));
  work();
}

}  // namespace

class Tuning::State {
 public:
  State(Session& session, TuneJob job, const TuneOptions& options)
      : session_(session), job_(std::move(job)), options_(options) {}

  Result<void> compile() {
    const auto start = Clock::now();
    shape_ = shape_of(job_.shape);
    if (shape_.b < 1 || shape_.q_len < 1 || shape_.k_len < 1)
      return invalid("shape: there is nothing to measure; every size must be at least 1");
    FLASHJIT_ASSIGN(row, find_target(session_.target()));
    Request request(job_.spec, *row, job_.pins);
    request.target.sm_count = session_.machine().units;
    text_ = request.text;
    if (is_composite(request)) {
      return unsupported(fmt::format(
          "{}: several kernels compute this spec, which `flashjit explain` shows; tune their specs, and give "
          "prepare this one",
          narrows(request.spec) ? "compute" : "shared_prefix"));
    }
    FLASHJIT_ASSIGN(plan, plan_spec(request));
    plan_ = std::move(plan);
    auto drawing = [this] {
      const SignalsHeldOff held_off;
      return std::async(std::launch::async,
                        [this] { return ProblemData::create(job_.spec, job_.shape, job_.inputs, options_.seed); });
    }();
    // The engine may pass over the model's choice. The schedule that it took instead is the default, and its numerics
    // are kept.
    auto tried = prepare(job_.pins, options_.verify);
    // A kernel that cannot be tried is measured all the same. One that was found wrong is refused here, too, because
    // the store knows of it.
    if (!tried && options_.verify && tried.error().kind == ErrorKind::Unsupported) tried = prepare(job_.pins);
    FLASHJIT_ASSIGN(untuned, std::move(tried));
    untuned_ = untuned->facts().schedule;
    FLASHJIT_ASSIGN(schedule, parse_schedule(untuned_));
    space_ = space_of(job_.spec, plan_.target, job_.pins, plan_.tiles, shape_, schedule);
    compile_batch(first_batch(schedule), true);
    FLASHJIT_ASSIGN(data, drawing.get());
    data_ = std::make_unique<ProblemData>(std::move(data));
    compile_seconds_ = seconds_since(start);
    return {};
  }

  Result<TuneOutcome> measure() {
    begun_ = Clock::now();
    outcome_.before = session_.state();
    FLASHJIT_TRY(place_data());
    FLASHJIT_ASSIGN(sampler, session_.sampler());
    sampler_ = sampler;
    FLASHJIT_TRY(check_default());
    FLASHJIT_TRY(search_entries());
    last_batch_seconds_ = spent();
    while (!options_.exhaustive && spent() + last_batch_seconds_ < options_.seconds) {
      const auto batch_begun = Clock::now();
      const std::vector<Candidate> batch = next_batch();
      if (batch.empty()) break;
      compile_batch(batch, false);
      FLASHJIT_TRY(search_entries());
      last_batch_seconds_ = seconds_since(batch_begun);
    }
    outcome_.after = session_.state();
    outcome_.measure_seconds = seconds_since(begun_);
    return conclude();
  }

 private:
  // Returns the time spent on the job. The time between compiling and measuring, when another job had the device, does
  // not count.
  double spent() const { return compile_seconds_ + seconds_since(begun_); }
  void say(const std::string& what) const {
    if (options_.progress) options_.progress(what);
  }

  Result<std::shared_ptr<Kernel>> prepare(const Schedule& schedule, bool verify = false) {
    PrepareOptions options;
    options.schedule = print(schedule);
    options.verify = verify;
    return session_.engine().prepare(text_, options);
  }

  std::vector<Schedule> taken() const {
    std::vector<Schedule> schedules;
    for (const Entry& entry : entries_) schedules.push_back(entry.candidate.schedule);
    return schedules;
  }

  std::vector<Candidate> first_batch(const Schedule& untuned) {
    std::vector<Candidate> batch;
    if (options_.exhaustive) {
      const double reach = kExhaustiveReach * space_.schedules.front().predicted_us;
      std::size_t within = 0;
      while (within < space_.schedules.size() && space_.schedules[within].predicted_us <= reach) ++within;
      batch.assign(space_.schedules.begin(), space_.schedules.begin() + static_cast<std::ptrdiff_t>(within));
      if (within < space_.schedules.size()) {
        space_.cut.push_back({"predicted to take more than 1.5 times as long as the first choice",
                              static_cast<int>(space_.schedules.size() - within)});
      }
    } else {
      for (const std::size_t i : shortlist(space_.schedules, kShortlist, {})) batch.push_back(space_.schedules[i]);
    }
    std::vector<Schedule> wanted = job_.also;
    wanted.push_back(untuned);
    for (const Schedule& schedule : wanted) {
      const auto same = [&](const Candidate& c) { return c.schedule == schedule; };
      if (std::ranges::any_of(batch, same) || !is_legal(job_.spec, plan_.target, schedule)) continue;
      if (job_.spec.numerics != Numerics::Fast && !changed_numerics(untuned, schedule).empty()) continue;
      const auto known = std::ranges::find_if(space_.schedules, same);
      if (known != space_.schedules.end()) {
        batch.push_back(*known);
      } else {
        const Problem problem(job_.spec, plan_.target, plan_.tiles);
        const Work work = work_of(problem, shape_, schedule);
        batch.push_back({.schedule = schedule, .predicted_us = predict(problem, schedule, shape_, work).total});
      }
    }
    return batch;
  }

  // Returns candidates that differ in one field from the best so far, and then the model's next ones.
  std::vector<Candidate> next_batch() {
    const std::vector<Schedule> tried = taken();
    std::vector<Candidate> batch;
    const double limit = kGiveUp * space_.schedules.front().predicted_us;
    const auto add = [&](const std::vector<Candidate>& from, const std::vector<std::size_t>& chosen) {
      for (const std::size_t i : chosen) {
        if (batch.size() < kShortlist && from[i].predicted_us <= limit) batch.push_back(from[i]);
      }
    };
    std::vector<Candidate> near =
        neighbours(job_.spec, plan_.target, job_.pins, plan_.tiles, shape_, entries_[best_].candidate.schedule);
    std::erase_if(near, [&](const Candidate& c) { return std::ranges::find(tried, c.schedule) != tried.end(); });
    std::vector<std::size_t> all(near.size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
    add(near, all);
    std::vector<Schedule> out = tried;
    for (const Candidate& c : batch) out.push_back(c.schedule);
    add(space_.schedules, shortlist(space_.schedules, kShortlist, out));
    return batch;
  }

  void compile_batch(const std::vector<Candidate>& batch, bool first) {
    std::vector<Entry> made(batch.size());
    std::atomic<int> done = 0;
    const int threads = options_.jobs > 0 ? options_.jobs : usable_cores();
    parallel(threads, batch.size(), [&](std::size_t i) {
      made[i] = compile_one(batch[i], first);
      say(fmt::format("compiled {}/{}", ++done, batch.size()));
    });
    const std::optional<Schedule> best =
        entries_.empty() ? std::nullopt : std::optional(entries_[best_].candidate.schedule);
    for (Entry& entry : made) entries_.push_back(std::move(entry));
    std::stable_sort(entries_.begin(), entries_.end(), in_model_order);
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      if (print(entries_[i].candidate.schedule) == untuned_) untuned_index_ = i;
      if (best && entries_[i].candidate.schedule == *best) best_ = i;
    }
  }

  Entry compile_one(const Candidate& candidate, bool first) {
    const auto listed = [&](const Candidate& c) { return c.schedule == candidate.schedule; };
    Entry entry;
    TunedCandidate& c = entry.candidate;
    c.schedule = candidate.schedule;
    c.predicted_us = candidate.predicted_us;
    c.listed = std::ranges::any_of(space_.schedules, listed);
    entry.enumerated = first && c.listed;
    auto kernel = prepare(candidate.schedule);
    if (!kernel) {
      const bool spills =
          kernel.error().kind == ErrorKind::Unsupported;  // The engine says this of kernels that the compiler spoiled.
      c.status = spills ? "spills" : "failed";
      c.why = kernel.error().message;
      return entry;
    }
    const Facts& facts = (*kernel)->facts();
    c.registers = facts.registers;
    c.smem_bytes = facts.smem_bytes;
    if (facts.spill_bytes > 0 && facts.schedule != untuned_) {
      c.status = "spills";
      c.why = fmt::format("{} bytes of registers go to memory", facts.spill_bytes);
      return entry;
    }
    entry.kernel = *kernel;
    return entry;
  }

  Result<void> place_data() {
    if (!session_.on_gpu()) {
      host_arguments_ = data_->host_arguments();
      return {};
    }
    FLASHJIT_ASSIGN(device, DeviceProblem::create(session_.gpu(), *data_));
    device_ = std::move(device);
    return {};
  }

  const Arguments& arguments() const { return device_ ? device_->arguments() : host_arguments_; }
  void* stream() const { return session_.on_gpu() ? session_.stream().get() : nullptr; }

  // Every kernel is run by this function before it is timed: from then on there is enough workspace for it.
  Result<void> run_once(const Entry& entry) {
    if (!device_) {
      data_->poison();
      return entry.kernel->run(arguments(), nullptr);
    }
    FLASHJIT_TRY(device_->make_workspace(session_.gpu(), *entry.kernel));
    FLASHJIT_TRY(device_->poison(session_.stream()));
    FLASHJIT_TRY(entry.kernel->run(arguments(), stream()));
    FLASHJIT_TRY(session_.stream().synchronize());
    return device_->download_outputs(*data_);
  }

  Result<void> check_default() {
    FLASHJIT_TRY(run_once(entries_[untuned_index_]));
    expected_ = outputs_of(*data_);
    if (options_.check) FLASHJIT_TRY(options_.check(job_.spec, entries_[untuned_index_].kernel->facts(), *data_));
    return {};
  }

  // Checks kernels that were not run before against the default's results.
  Result<void> check_entries() {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      Entry& entry = entries_[i];
      if (!entry.kernel || i == untuned_index_ || entry.candidate.timed()) continue;
      if (auto ran = run_once(entry); !ran) {
        entry.candidate.status = "failed";
        entry.candidate.why = ran.error().message;
        entry.kernel = nullptr;
      } else if (std::string unlike = compare_outputs(expected_, *data_, unit_between(entry)); !unlike.empty()) {
        entry.candidate.status = "wrong";
        entry.candidate.why = std::move(unlike);
        entry.kernel = nullptr;
      }
    }
    return {};
  }

  // Returns the unit of results that two kernels may differ in.
  double unit_between(const Entry& entry) const {
    return std::max(unit_of_weights(entry.kernel->facts()), unit_of_weights(entries_[untuned_index_].kernel->facts()));
  }

  // Times the new entries, beside the default and the best so far.
  Result<void> search_entries() {
    FLASHJIT_TRY(check_entries());
    std::vector<std::size_t> subjects;
    std::size_t baseline = 0;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const bool again = i == untuned_index_ || (searched_ && i == best_);
      if (!entries_[i].kernel || (entries_[i].candidate.timed() && !again)) continue;
      if (i == untuned_index_) baseline = subjects.size();
      subjects.push_back(i);
    }
    SearchOptions options;
    options.seed = options_.seed;
    options.seconds = std::max(kLeastSeconds, options_.exhaustive ? options_.seconds : options_.seconds - spent());
    SearchBench bench;
    bench.seconds = [begun = Clock::now()] { return seconds_since(begun); };
    bench.sample = [&](std::size_t subject, int starts) {
      return sampler_([&] { return entries_[subjects[subject]].kernel->run(arguments(), stream()); }, starts);
    };
    bench.round_done = [&](std::size_t best, double us) {
      say(fmt::format("{} schedules, best so far {:.1f} us: {}", subjects.size(), us,
                      print(entries_[subjects[best]].candidate.schedule)));
    };
    FLASHJIT_ASSIGN(found, search(subjects.size(), baseline, bench, options));
    if (searched_) keep_ratios(subjects, found.subjects);
    for (std::size_t i = 0; i < subjects.size(); ++i) {
      Entry& entry = entries_[subjects[i]];
      const SearchSubject& timed = found.subjects[i];
      entry.candidate.status = timed.state == SearchSubject::State::Measured  ? "measured"
                               : timed.state == SearchSubject::State::Stopped ? "stopped"
                                                                              : "failed";
      entry.candidate.why = timed.why;
      entry.candidate.faster = timed.faster;
      if (timed.state == SearchSubject::State::Failed) {
        entry.kernel = nullptr;
        continue;
      }
      entry.candidate.us = timed.us, entry.candidate.us_low = timed.us_low, entry.candidate.us_high = timed.us_high;
    }
    searched_ = true;
    outcome_.noise = std::max(outcome_.noise, found.noise);
    outcome_.rounds = found.rounds;
    list_candidates();
    choose_best(outcome_);
    best_ = outcome_.best;
    return {};
  }

  // Clocks move between the searches of a job. An entry that only an earlier search timed stays as much slower than
  // that search's best, which was timed again, or, if the best failed this time, than the default.
  void keep_ratios(const std::vector<std::size_t>& subjects, const std::vector<SearchSubject>& timed) {
    const auto of = [&](std::size_t entry) -> double {
      return timed[static_cast<std::size_t>(std::ranges::find(subjects, entry) - subjects.begin())].us;
    };
    const std::size_t known = of(best_) > 0 ? best_ : untuned_index_;
    const double factor = of(known) / entries_[known].candidate.us;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      TunedCandidate& c = entries_[i].candidate;
      if (std::ranges::find(subjects, i) != subjects.end()) continue;
      c.us *= factor, c.us_low *= factor, c.us_high *= factor;
    }
  }

  void list_candidates() {
    outcome_.candidates.clear();
    for (const Entry& entry : entries_) outcome_.candidates.push_back(entry.candidate);
    outcome_.untuned = untuned_index_;
  }

  // Returns the model's first choice among the entries that could be timed. The space is in the model's order, but
  // entries that are equal are not.
  std::size_t first_choice() const {
    for (const Candidate& choice : space_.schedules) {
      for (std::size_t i = 0; i < entries_.size(); ++i) {
        const TunedCandidate& c = entries_[i].candidate;
        if (entries_[i].enumerated && c.timed() && c.schedule == choice.schedule) return i;
      }
    }
    return untuned_index_;
  }

  TuneOutcome conclude() {
    outcome_.spec = job_.spec;
    outcome_.shape = job_.shape;
    outcome_.first_choice = first_choice();
    outcome_.space = space_.size;
    outcome_.legal = static_cast<int>(space_.schedules.size());
    outcome_.cut = space_.cut;
    outcome_.compile_seconds = compile_seconds_;
    count_work();
    return std::move(outcome_);
  }

  void count_work() {
    const bool differ = has_own_q_lens(job_.spec) || has_own_k_lens(job_.spec);
    for (std::size_t i = 0; i < (differ ? job_.shape.q.size() : 1); ++i) {
      if (job_.shape.q[i] == 0) continue;
      const Roofline one = roofline(plan_, Shape{differ ? 1 : job_.shape.batch, job_.shape.q[i], job_.shape.k[i]});
      outcome_.flops += one.flops;
      outcome_.bytes += one.fused_bytes;
    }
  }

  Session& session_;
  const TuneJob job_;
  const TuneOptions options_;
  Clock::time_point begun_;  // The time at which measuring began.
  Shape shape_;
  Plan plan_;
  SearchSpace space_;
  std::string text_;            // The text of the spec.
  std::string untuned_;         // The schedule of the default.
  std::vector<Entry> entries_;  // Entries in the model's order.
  std::size_t untuned_index_ = 0, best_ = 0;
  bool searched_ = false;
  std::unique_ptr<ProblemData> data_;
  std::optional<DeviceProblem> device_;
  Arguments host_arguments_;
  std::vector<NamedTensor> expected_;
  Sampler sampler_;
  double compile_seconds_ = 0, last_batch_seconds_ = 0;
  TuneOutcome outcome_;
};

Tuning::Tuning(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tuning::~Tuning() = default;

Result<std::unique_ptr<Tuning>> Tuning::compile(Session& session, TuneJob job, const TuneOptions& options) {
  auto state = std::make_unique<State>(session, std::move(job), options);
  FLASHJIT_TRY(state->compile());
  return std::unique_ptr<Tuning>(new Tuning(std::move(state)));
}

Result<TuneOutcome> Tuning::measure() { return state_->measure(); }

void choose_best(TuneOutcome& outcome) {
  std::vector<double> all, certain;
  for (std::size_t i = 0; i < outcome.candidates.size(); ++i) {
    const TunedCandidate& c = outcome.of(i);
    all.push_back(c.status == "measured" ? c.us : 0);
    certain.push_back(c.faster || i == outcome.untuned ? all.back() : 0);
  }
  outcome.best = first_of_fastest(certain, tie_of(outcome.noise));
  outcome.fastest = first_of_fastest(all, 0);
}

bool TuneOutcome::decided() const {
  if (best != untuned) return true;
  return noise <= kBusyNoise && of(fastest).us * (1 + tie_of(noise)) >= of(untuned).us;
}

std::string TuneOutcome::why_best() const {
  if (!decided()) {
    return fmt::format(
        "undecided, so the default stays: {} was measured {:.2f} times as fast, but within {} rounds the default "
        "differs from itself by {:.1f} %; the machine is busy, or the time too short: try again when it is idle, or with a "
        "larger budget",
        print(of(fastest).schedule), gain_of(fastest), rounds, 100 * noise);
  }
  if (best == fastest) return "the fastest of those that were measured";
  if (!of(fastest).faster && of(fastest).us * (1 + tie_of(noise)) < of(best).us) {
    return fmt::format(
        "the fastest of those that are faster than the default for certain; {} was measured {:.1f} % faster",
        print(of(fastest).schedule), 100 * (of(best).us / of(fastest).us - 1));
  }
  return fmt::format(
      "{} was {:.1f} % faster, which is a tie (up to {:.1f} %{}): of such the first in the model's order is taken",
      print(of(fastest).schedule), 100 * (1 - of(fastest).us / of(best).us), 100 * tie_of(noise),
      tie_of(noise) < noise ? ", however large the noise" : ", the noise");
}

Result<TuneOutcome> tune(Session& session, TuneJob job, const TuneOptions& options) {
  FLASHJIT_ASSIGN(tuning, Tuning::compile(session, std::move(job), options));
  return tuning->measure();
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday);
}

TunedRecord record_of(const TuneOutcome& outcome, const Machine& machine, const std::string& date) {
  const TunedCandidate& best = outcome.of(outcome.best);
  return {print(outcome.spec),
          machine,
          version(),
          shape_of(outcome.shape),
          best.schedule,
          best.us,
          best.us_low,
          best.us_high,
          outcome.of(outcome.untuned).us,
          date};
}

}  // namespace flashjit

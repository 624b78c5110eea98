// flashjit tune measures the fastest schedules for specs and shapes, and remembers them.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <sstream>

#include <fmt/format.h>

#include "autotune/report/report.h"
#include "autotune/search/sweep.h"
#include "compiler/spec/spec.h"
#include "compiler/spec/text_form.h"
#include "runtime/engine/environment.h"
#include "runtime/store/key.h"
#include "runtime/store/input_file.h"
#include "runtime/store/output_file.h"
#include "runtime/launch/thread_pool.h"
#include "autotune/reference/compare.h"
#include "tools/command/commands.h"
#include "tools/support/engine_options.h"
#include "tools/support/files.h"
#include "tools/support/inputs.h"
#include "tools/support/output.h"
#include "tools/command/tune_journal.h"
#include "tools/command/tune_records.h"
#include "tools/command/tune_report.h"
#include "tools/fleet/tune_shard.h"

namespace flashjit {
namespace {

constexpr double kSecondsPerSpec = 10;  // default of --budget
constexpr double kLeastSeconds = 0.5;
constexpr std::size_t kMostSweepBytes = std::size_t{16} << 20;

struct TuneArgs {
  InputArgs inputs;
  std::vector<std::string> specs, shapes;
  std::vector<int> devices;
  std::string sweep, budget, report, report_json, records, export_to, command;
  std::vector<std::string> merge_from;
  std::optional<std::string> shard;
  int jobs = 0;
  bool exhaustive = false, check = false, unverified = false, partial = false, json = false;
};

// This class shows what is being measured. Threads that compile use it, too.
class TuneProgress {
 public:
  void set(std::string prefix) {
    const std::lock_guard lock(mutex_);
    prefix_ = std::move(prefix);
  }
  void say(const std::string& what) {
    const std::lock_guard lock(mutex_);
    line_.show(prefix_ + " " + what);
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    line_.clear();
  }

 private:
  std::mutex mutex_;
  std::string prefix_ = "tuning";
  StatusLine line_;
};

// Parses times such as "60s", "2m", "500ms" and "90".
Result<double> parse_seconds(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const std::string unit = end;
  const double factor = unit.empty() || unit == "s" ? 1
                        : unit == "ms"              ? 1e-3
                        : unit == "m"               ? 60
                        : unit == "h"               ? 3600
                                                    : 0;
  const double seconds = value * factor;
  if (end == text.c_str() || factor == 0 || !(seconds >= 0.1 && seconds <= 7 * 86400.0)) {
    return invalid(fmt::format("--budget: '{}' is not a time from 100ms to 168h; write 60s, 10m or 500ms", text));
  }
  return seconds;
}

struct Problem {
  std::string spec, shape;
};

// Reads lines "SPEC" or "SHAPE SPEC"; '#' begins a comment.
Result<std::vector<Problem>> read_sweep(const std::string& path) {
  constexpr std::string_view kExpected = "a sweep is a file with SPEC, or SHAPE SPEC, on a line each";
  FLASHJIT_ASSIGN(file, of_option("--sweep", open_input(path, kExpected)));
  FLASHJIT_ASSIGN(text, of_option("--sweep", read_input(file.get(), path, kMostSweepBytes, kExpected)));
  std::istringstream lines(std::move(text));
  std::vector<Problem> problems;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t begin = line.find_first_not_of(" \t");
    if (begin == std::string::npos || line[begin] == '#') continue;
    line = line.substr(begin, line.find_last_not_of(" \t\r") + 1 - begin);
    const std::string first = line.substr(0, line.find_first_of(" \t"));
    const bool has_shape = first.starts_with("b=") || first.starts_with("q=") || first.starts_with("k=");
    if (!has_shape) {
      problems.push_back({line, ""});
      continue;
    }
    const std::size_t spec = line.find_first_not_of(" \t", first.size());
    if (spec == std::string::npos) return invalid(fmt::format("--sweep: {}: a shape without a spec: {}", path, line));
    problems.push_back({line.substr(spec), first});
  }
  return problems;
}

// Returns the only sizes that calls of the spec may have, or an empty text if it leaves some open, or only bounds them.
std::string pinned_sizes(const AttentionSpec& spec) {
  const bool all = spec.batch.pinned() && spec.q_len.pinned() && spec.k_len.pinned();
  if (!all || has_own_k_lens(spec)) return {};  // These lengths are not the largest ones.
  return fmt::format("b={},q={},k={}", spec.batch.max, spec.q_len.max, spec.k_len.max);
}

Result<std::vector<TuneJob>> jobs_of(const TuneArgs& args, const Schedule& pins) {
  std::vector<Problem> listed;
  for (const std::string& spec : args.specs) listed.push_back({spec, ""});
  if (!args.sweep.empty()) {
    FLASHJIT_ASSIGN(more, read_sweep(args.sweep));
    listed.insert(listed.end(), more.begin(), more.end());
  }
  if (listed.empty() && !args.sweep.empty())
    return invalid(
        fmt::format("--sweep: {} has no line with a spec; write SPEC, or SHAPE SPEC, on a line each", args.sweep));
  if (listed.empty()) return invalid("tune: there is no spec; give one, or --sweep FILE");
  FLASHJIT_ASSIGN(inputs, input_files(args.inputs));
  std::vector<TuneJob> jobs;
  for (const Problem& problem : listed) {
    FLASHJIT_ASSIGN(spec, parse_spec(problem.spec));
    FLASHJIT_TRY(check_supported(spec));
    std::vector<std::string> shapes = problem.shape.empty() ? args.shapes : std::vector{problem.shape};
    if (const std::string pinned = pinned_sizes(spec); shapes.empty() && !pinned.empty()) shapes = {pinned};
    if (shapes.empty())
      return invalid(fmt::format(
          "--shape: missing, and the sizes of `{}` are neither in a sweep file nor all in the spec", problem.spec));
    for (const std::string& text : shapes) {
      FLASHJIT_ASSIGN(shape, parse_shape(text, spec));
      const bool twice = std::ranges::any_of(
          jobs, [&](const TuneJob& job) { return print(job.spec) == print(spec) && print(job.shape) == print(shape); });
      if (!twice) jobs.push_back({spec, shape, pins, inputs, {}});
    }
  }
  return jobs;
}

Result<std::vector<std::unique_ptr<Session>>> open_sessions(const TuneArgs& args, const EnvironmentSettings& settings) {
  std::vector<std::unique_ptr<Session>> sessions;
  const std::vector<int> ordinals = args.devices.empty() ? std::vector<int>{0} : args.devices;
  EngineOptions options;
  options.tuned = false;  // Measurements are about the cost model's choice, not that of an earlier tuning.
  for (const int ordinal : ordinals) {
    options.ordinal = ordinal;
    FLASHJIT_ASSIGN(session, as_option(Session::open(args.inputs.target, options, settings)));
    sessions.push_back(std::move(session));
    const Machine &first = sessions.front()->machine(), &last = sessions.back()->machine();
    if (!sessions.front()->on_gpu()) return sessions;
    if (first.device != last.device) {
      return invalid(fmt::format(
          "--device: {} is a {} and {} a {}; what one finds does not hold for the other, so tune them one by one",
          ordinals.front(), first.device, ordinal, last.device));
    }
  }
  if (!args.devices.empty()) return sessions;
  // All GPUs of the first one's kind are used: times of another kind would not be comparable.
  const int count = sessions.front()->gpu().driver->device_count();
  for (int ordinal = 1; ordinal < count; ++ordinal) {
    options.ordinal = ordinal;
    auto session = Session::open(args.inputs.target, options, settings);
    if (session && (*session)->machine().device == sessions.front()->machine().device)
      sessions.push_back(std::move(*session));
  }
  return sessions;
}

Result<void> check_reference(const AttentionSpec& spec, const Facts& facts, ProblemData& data, std::uint64_t seed) {
  const Arguments arguments = data.reference_arguments();  // The problem points into it.
  FLASHJIT_ASSIGN(problem, reference::Problem::create(spec, arguments));
  problem.round_weights_to(facts.weights);
  reference::CompareOptions options;
  options.seed = seed;
  options.threads = usable_cores();
  const reference::Comparison compared = reference::compare(problem, options);
  if (compared.ok) return {};
  return Error{
      ErrorKind::Internal, fmt::format("the default kernel is outside the error rule: {}", compared.problem), {}};
}

// Returns earlier winners for the spec, of any shape and machine. They are measured beside the rest, and never taken
// over unmeasured.
std::vector<Schedule> earlier_winners(const std::vector<TunedRecord>& records, const TuneJob& job,
                                      const std::string& target) {
  constexpr std::size_t kMost = 3;
  std::vector<const TunedRecord*> own;
  for (const TunedRecord& record : records) {
    if (record.spec == print(job.spec) && record.machine.target == target) own.push_back(&record);
  }
  const Shape wanted = shape_of(job.shape);
  const auto away = [&](const TunedRecord* r) { return doublings_apart(wanted, r->shape); };
  std::stable_sort(own.begin(), own.end(),
                   [&](const TunedRecord* a, const TunedRecord* b) { return away(a) < away(b); });
  std::vector<Schedule> schedules;
  for (const TunedRecord* record : own) {
    if (schedules.size() < kMost && std::ranges::find(schedules, record->schedule) == schedules.end())
      schedules.push_back(record->schedule);
  }
  return schedules;
}

std::string digest_of(const TuneArgs& args, const std::vector<TuneJob>& jobs, const Machine& machine) {
  KeyBuilder key;
  key.field("version", version());
  key.field("machine", fmt::format("{} {} {}", machine.target, machine.device, machine.units));
  key.field("options",
            fmt::format("{} {} {} {}", args.inputs.schedule, args.inputs.seed, args.budget, args.exhaustive));
  for (const TuneJob& job : jobs) key.field("job", print(job.spec) + "\n" + print(job.shape));
  return key.finish().digest.substr(0, 16);
}

class Run {
 public:
  Run(const TuneArgs& args, Output& output) : args_(args), output_(output) {}

  Result<void> all() {
    FLASHJIT_ASSIGN(pins, parse_schedule(args_.inputs.schedule));
    FLASHJIT_ASSIGN(jobs, jobs_of(args_, pins));
    if (args_.shard) {
      FLASHJIT_ASSIGN(shard, parse_shard(*args_.shard));
      shard_ = {.shard = shard, .whole = {}, .machine = {}, .version = {}};
    }
    if (!args_.budget.empty()) {
      FLASHJIT_ASSIGN(seconds, parse_seconds(args_.budget));
      budget_ = seconds;
    }
    FLASHJIT_ASSIGN(settings, read_environment());
    FLASHJIT_ASSIGN(keeper, RecordKeeper::open(args_.records, settings));
    FLASHJIT_ASSIGN(sessions, open_sessions(args_, settings));
    target = sessions.front()->target();
    std::vector<FileHandle> held;
    for (const auto& session : sessions) {
      FLASHJIT_ASSIGN(lock, keeper.hold(*session));
      held.push_back(std::move(lock));
    }
    const Machine& machine = sessions.front()->machine();
    FLASHJIT_TRY(begin_shard(jobs, machine, keeper));
    FLASHJIT_ASSIGN(journal, Journal::open(keeper.journal(digest_of(args_, jobs, machine)), example_json()));
    if (journal.size() > 0)
      say(fmt::format("going on with a tuning that was ended: {} of {} are done\n", journal.size(), jobs.size()));
    if (journal.strange() > 0)
      say(fmt::format("passing over {} of its journal, of another shape: what was tuned there is tuned again\n",
                      counted(journal.strange(), "line")));
    std::vector<TuneJob> left;
    const std::vector<TunedRecord> known = keeper.known();
    total_ = jobs.size();
    for (TuneJob& job : jobs) {
      if (const Json* done = journal.find(key_of(job))) {
        report(*done);
        continue;
      }
      job.also = earlier_winners(known, job, target);
      left.push_back(std::move(job));
    }
    const TuneOptions options = options_for(left.size(), sessions.size());
    sweep(sessions, left, options, [&](std::size_t i, const Session& session, Result<TuneOutcome> outcome) {
      return job_done(left[i], session, std::move(outcome), keeper, journal);
    });
    progress_.clear();
    if (broken_) return *broken_;
    FLASHJIT_TRY(write_report(machine));
    FLASHJIT_TRY(end_shard(keeper));
    // The journal goes last: results that cannot be written to their place are still in it the next time.
    journal.remove();
    if (!results_.empty()) output_.text(tuned_table(results_));
    return {};
  }

  std::string target;

 private:
  static std::string key_of(const TuneJob& job) { return print(job.spec) + "\n" + print(job.shape); }

  // Leaves the problems of the shard, if one was asked for. The file then says that the shard was begun.
  Result<void> begin_shard(std::vector<TuneJob>& jobs, const Machine& machine, const RecordKeeper& keeper) {
    if (!shard_) return {};
    shard_ = take_shard(shard_->shard, machine, jobs);
    if (jobs.empty()) output_.text(empty_text(*shard_) + "\n");
    return keeper.set_shards(with_shard(keeper.shards(), *shard_));
  }
  // A problem that failed may have a record yet, so its shard is not done.
  Result<void> end_shard(const RecordKeeper& keeper) {
    if (!shard_ || output_.exit_code() != static_cast<int>(Exit::Done)) return {};
    shard_->ended = true;
    return keeper.set_shards(with_shard(keeper.shards(), *shard_));
  }

  TuneOptions options_for(std::size_t jobs, std::size_t sessions) {
    TuneOptions options;
    options.seconds = kSecondsPerSpec;
    if (budget_) {
      options.seconds = std::max(kLeastSeconds, *budget_ * static_cast<double>(sessions) /
                                                    static_cast<double>(std::max<std::size_t>(jobs, 1)));
    }
    options.jobs = args_.jobs;
    options.exhaustive = args_.exhaustive;
    options.seed = args_.inputs.seed;
    options.verify = !args_.unverified;
    if (args_.check)
      options.check = [seed = args_.inputs.seed](const AttentionSpec& spec, const Facts& facts, ProblemData& data) {
        return check_reference(spec, facts, data, seed);
      };
    options.progress = [this](const std::string& what) { progress_.say(what); };
    progress_.set(fmt::format("tuning {}/{}:", results_.size() + 1, total_));
    return options;
  }

  void report(const Json& result) {
    progress_.clear();
    output_.result(tuned_line(result, target), tuned_text(result));
    results_.push_back(result);
    progress_.set(fmt::format("tuning {}/{}:", results_.size() + 1, total_));
  }

  // The record is written before the journal, so that every job in the journal has its record.
  bool job_done(const TuneJob& job, const Session& session, Result<TuneOutcome> outcome, const RecordKeeper& keeper,
                Journal& journal) {
    if (!outcome) {
      progress_.clear();
      output_.failure(result_line(print(job.spec), target, args_.inputs.schedule), outcome.error());
      if (outcome.error().kind != ErrorKind::Driver) return true;
      broken_ = Error{ErrorKind::Driver,
                      "the device cannot be used any more; run the same command again, it goes on where this ended",
                      {}};
      return false;
    }
    Json result = tuned_json(*outcome);
    // A pinned schedule is not the best that there is.
    const bool recorded = args_.inputs.schedule.empty() && outcome->decided();
    result["recorded"] = recorded;
    Result<void> kept;
    if (recorded) kept = keeper.add({record_of(*outcome, session.machine(), today())});
    if (kept) kept = journal.add(key_of(job), result);
    if (!kept) {
      broken_ = kept.error();
      return false;
    }
    report(result);
    return true;
  }

  Result<void> write_report(const Machine& machine) {
    if (args_.report.empty() && args_.report_json.empty()) return {};
    const std::string json =
        report_json(machine, today(), args_.command, results_).dump(-1, ' ', false, Json::error_handler_t::replace);
    if (!args_.report_json.empty()) FLASHJIT_TRY(write_output(args_.report_json, {json, "\n"}));
    if (args_.report.empty()) return {};
    FLASHJIT_ASSIGN(page, html_report(json));
    return write_output(args_.report, {page});
  }

  const TuneArgs& args_;
  Output& output_;
  TuneProgress progress_;
  std::size_t total_ = 0;
  std::vector<Json> results_;
  std::optional<Error> broken_;
  std::optional<double> budget_;  // seconds
  std::optional<TuneShard> shard_;
};

int run(const TuneArgs& args) {
  Output output(args.json);
  Run tuning(args, output);
  tuning.target = args.inputs.target;
  Result<void> done;
  if (!args.merge_from.empty()) {
    done = merge_records(args.records, args.merge_from, args.partial, output);
  } else if (!args.export_to.empty()) {
    done = export_records(args.records, args.export_to);
  } else {
    done = check_files_differ(
        {{"--report", args.report}, {"--report-json", args.report_json}, {"--records", args.records}},
        {{"--sweep", args.sweep}});
    for (const std::string& page : {args.report, args.report_json})
      if (done && !page.empty()) done = check_output(page);
    if (done) done = tuning.all();
  }
  if (!done)
    output.failure(result_line(args.specs.empty() ? "" : args.specs.front(), tuning.target, args.inputs.schedule),
                   done.error());
  return output.exit_code();
}

void add_record_options(CLI::App& sub, TuneArgs& args, CLI::Option& pins) {
  CLI::Option* records =
      sub.add_option("--records", args.records, "Where records are kept, instead of the store")->type_name("FILE");
  CLI::Option* exported =
      sub.add_option("--export", args.export_to, "Only write all records that are known, FlashJIT's own too, to a file")
          ->type_name("FILE");
  CLI::Option* merged =
      sub.add_option("--merge", args.merge_from,
                     "Only take over the records of files; of what they have shards of, all must be there")
          ->type_name("FILE");
  sub.add_flag("--partial", args.partial, "With --merge: take over what there is, though shards are missing")
      ->needs(merged);
  sub.add_option(
         "--shard", args.shard,
         "Tune one share of the problems, into --records: 3/16 is the third of 16, numbered from 1; --merge joins "
         "them")
      ->type_name("NUMBER/COUNT")
      ->needs(records)
      ->excludes(&pins)
      ->excludes(exported)
      ->excludes(merged);
}

}  // namespace

void add_tune(CLI::App& app, const std::string& command, int& exit_code) {
  auto args = std::make_shared<TuneArgs>();
  args->command = command;
  CLI::App* sub = app.add_subcommand("tune", "Measure which schedules are fastest, and remember them");
  sub->add_option("spec", args->specs, "The problems, one argument each");
  sub->add_option("--shape", args->shapes,
                  "Sizes: b=2,q=4096,k=4096, as for bench; given several times, every spec is tuned for each; not "
                  "needed where a spec has b, q_len and k_len")
      ->type_size(1)
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  sub->add_option("--sweep", args->sweep, "More problems, a line each: SPEC, or SHAPE SPEC")->type_name("FILE");
  sub->add_option("--budget", args->budget, "For all problems together: 60s, 10m (default: 10s each)");
  sub->add_option("--target", args->inputs.target, "gpu, host, auto (a GPU if there is one), or a target's name")
      ->type_name("WHERE")
      ->capture_default_str();
  sub->add_option("--device", args->devices, "Which GPUs; default: all of the first one's kind")
      ->check(CLI::Range(0, 1023))
      ->type_size(1)
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  CLI::Option* pins = sub->add_option("--schedule", args->inputs.schedule,
                                      "Choices to pin, such as tile_q=128; what is found is then not recorded");
  sub->add_option("--seed", args->inputs.seed, "Of the random inputs and orders")->capture_default_str();
  sub->add_option("--param", args->inputs.params, "A run-time parameter of mask or score, as for bench")
      ->type_name("NAME=VALUE");
  sub->add_option("--jobs", args->jobs, "Threads that compile; 0: all cores")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
  sub->add_flag("--exhaustive", args->exhaustive,
                "Measure every legal schedule predicted within 1.5 times the first choice's time");
  sub->add_flag("--check", args->check,
                "Hold the default kernel's results of the whole shape against the float64 reference, too");
  sub->add_flag("--no-verify", args->unverified,
                "Take the default kernel as it is, without a trial on small data before anything is timed");
  sub->add_option("--report", args->report, "Write a page with plots of everything that was measured")
      ->type_name("FILE.html");
  sub->add_option("--report-json", args->report_json, "The same as one JSON object")->type_name("FILE.json");
  add_record_options(*sub, *args, *pins);
  sub->add_flag("--json", args->json, "One JSON object per problem");
  sub->footer(
      "\nA tuning that was ended goes on when the same command is run again.\n\nExamples:\n"
      "  flashjit tune 'fwd bf16 d=128 heads=32/8 mask=\"causal\"' --shape b=1,q=4096\n"
      "  flashjit tune 'fwd bf16 d=64 heads=8' --shape q=512 --shape q=4096 --target host --budget 20s\n"
      "  flashjit tune --sweep specs.txt --shape b=4,q=4096 --budget 10m --report tuned.html\n"
      "  flashjit tune --sweep specs.txt --shape b=4,q=4096 --shard 3/16 --records shard-3.txt\n"
      "  flashjit tune --merge shard-*.txt\n"
      "  flashjit tune --export h200.txt");
  sub->callback([args, &exit_code] { exit_code = run(*args); });
}

}  // namespace flashjit

// flashjit bench measures how long specs take, side by side.
#include <cstdlib>
#include <memory>

#include <fmt/format.h>

#include "compiler/choice/cost_model.h"
#include "compiler/spec/spec.h"
#include "runtime/compile/request.h"
#include "tools/command/bench_table.h"
#include "tools/command/commands.h"
#include "tools/support/engine_options.h"
#include "tools/support/inputs.h"
#include "tools/support/output.h"
#include "tools/support/prepared.h"
#include "tools/support/progress.h"

namespace flashjit {
namespace {

struct BenchArgs {
  InputArgs inputs;
  std::vector<std::string> specs;
  std::string against;
  double seconds = 1.0;
  bool json = false;
};

// A subject is one thing that is measured.
struct Subject {
  std::string spec, kind;  // "fused", "naive", "quick" or "unhinted"
  std::unique_ptr<ProblemData> data;
  std::unique_ptr<Prepared> kernel;
  double flops = 0, bytes = 0;
};

Result<void> add_subjects(const BenchArgs& args, const std::string& text, Session& session,
                          std::vector<Subject>& subjects) {
  FLASHJIT_ASSIGN(spec, parse_spec(text));
  FLASHJIT_TRY(check_supported(spec));
  FLASHJIT_ASSIGN(shape, parse_shape(args.inputs.shape, spec));
  FLASHJIT_ASSIGN(inputs, input_files(args.inputs));
  FLASHJIT_ASSIGN(row, find_target(session.target()));
  FLASHJIT_ASSIGN(pins, parse_schedule(args.inputs.schedule));
  const Request request(spec, *row, pins), unpinned(spec, *row);
  FLASHJIT_ASSIGN(plan, plan_spec(request));
  // The counts are the visible scores and the traffic of every sequence. Without packed sequences or k_lens there are
  // `batch` equal ones.
  double flops = 0, bytes = 0;
  const bool differ = has_own_q_lens(spec) || has_own_k_lens(spec);
  for (std::size_t i = 0; i < (differ ? shape.q.size() : 1); ++i) {
    if (shape.q.empty() || shape.q[i] == 0) continue;
    const Roofline one = roofline(plan, Shape{differ ? 1 : shape.batch, shape.q[i], shape.k[i]});
    flops += one.flops;
    bytes += one.fused_bytes;
  }
  std::vector<std::string> kinds = {"fused"};
  if (!args.against.empty()) kinds.push_back(args.against);
  for (const std::string& kind : kinds) {
    Subject subject;
    subject.spec = request.text;
    subject.kind = kind;
    FLASHJIT_ASSIGN(data, ProblemData::create(spec, shape, inputs, args.inputs.seed));
    subject.data = std::make_unique<ProblemData>(std::move(data));
    subject.data->limit_sms(args.inputs.sms);
    FLASHJIT_ASSIGN(kernel, kind == "naive" ? Prepared::create_naive(session, unpinned, *subject.data)
                            : kind == "quick"
                                ? Prepared::create_quick(session, request, *subject.data)
                                : Prepared::create(session, text, args.inputs.schedule,
                                                   kind == "unhinted" ? "" : args.inputs.hint(shape), *subject.data));
    subject.kernel = std::move(kernel);
    subject.flops = flops;
    subject.bytes = bytes;
    subjects.push_back(std::move(subject));
  }
  return {};
}

double memory_of(const Subject& subject) {
  return static_cast<double>(subject.data->bytes() + subject.kernel->scratch_bytes());
}

// The table has names of its own for versions.
std::string version_name(const std::string& kind, const std::string& against) {
  if (kind == "naive") return "textbook";
  if (kind != "fused") return kind;
  return against == "quick" ? "best" : against == "unhinted" ? "hinted" : "fused";
}

Json bench_line(const Subject& subject, const BenchRow& row) {
  Json line = result_line(subject.spec, subject.kernel->facts().target, subject.kernel->facts().schedule);
  line["version"] = subject.kind;
  line["us"] = row.timing.us;
  line["us_p10"] = row.timing.us_p10;
  line["us_p90"] = row.timing.us_p90;
  line["rounds"] = row.timing.rounds;
  line["tflops"] = row.tflops;
  line["tbs"] = row.tbs;
  line["memory_bytes"] = row.memory_bytes;
  if (subject.kind == "fused") return line;
  line["times_fused"] = row.times;
  line["memory_times_fused"] = row.memory_times;
  return line;
}

std::string single_text(const BenchRow& row) {
  std::string text =
      fmt::format("{}\n  {:.1f} us (p10 {:.1f}, p90 {:.1f}, {} rounds), {:.2f} TFLOP/s, {:.3f} TB/s, {} of memory\n",
                  row.spec, row.timing.us, row.timing.us_p10, row.timing.us_p90, row.timing.rounds, row.tflops, row.tbs,
                  bytes_text(row.memory_bytes));
  for (const std::string& note : row.notes) text += fmt::format("  note: {}\n", note);
  return text;
}

void report(const BenchArgs& args, const std::vector<Subject>& subjects, const std::vector<Timing>& timings,
            Output& output) {
  std::vector<BenchRow> rows;
  for (std::size_t i = 0; i < subjects.size(); ++i) {
    const Subject& subject = subjects[i];
    // Another version follows its fused one. Without other versions, all are held against the first subject.
    const std::size_t base = args.against.empty() ? 0 : subject.kind == "fused" ? i : i - 1;
    const double us = timings[i].us;
    rows.push_back({.spec = subject.spec,
                    .version = version_name(subject.kind, args.against),
                    .timing = timings[i],
                    .tflops = subject.flops / us * 1e-6,
                    .tbs = subject.bytes / us * 1e-6,
                    .memory_bytes = memory_of(subject),
                    .times = us / timings[base].us,
                    .memory_times = memory_of(subject) / memory_of(subjects[base]),
                    .notes = subject.kernel->facts().notes});
  }
  if (output.json()) {
    for (std::size_t i = 0; i < rows.size(); ++i) output.result(bench_line(subjects[i], rows[i]), "");
  } else if (rows.size() == 1) {
    output.text(single_text(rows.front()));
  } else {
    const std::string base = args.against.empty()
                                 ? "the first"
                                 : fmt::format("the {} kernel of the same spec", version_name("fused", args.against));
    output.text(bench_table(rows, base));
  }
}

Result<void> bench(const BenchArgs& args, Output& output, std::string& current, std::string& target) {
  FLASHJIT_ASSIGN(settings, read_environment());
  FLASHJIT_ASSIGN(session, open_session(args.inputs, settings));
  target = session->target();
  std::vector<Subject> subjects;
  for (const std::string& spec : args.specs) {
    current = spec;
    FLASHJIT_TRY(add_subjects(args, spec, *session, subjects));
  }
  MeasureOptions options;
  options.seconds = args.seconds;
  std::vector<Launch> launches;
  for (Subject& subject : subjects) launches.push_back([&kernel = *subject.kernel] { return kernel.start(); });
  Progress progress("measuring, round", options.max_rounds);
  FLASHJIT_ASSIGN(timings, session->measure(launches, options, [&](double) { progress.advance(); }));
  report(args, subjects, timings, output);
  return {};
}

int run(const BenchArgs& args) {
  Output output(args.json);
  std::string current = args.specs.front(), target = args.inputs.target;
  const Result<void> done = bench(args, output, current, target);
  if (!done) output.failure(result_line(current, target, args.inputs.schedule), done.error());
  return output.exit_code();
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  auto args = std::make_shared<BenchArgs>();
  CLI::App* sub = app.add_subcommand(
      "bench", "Time specs side by side: medians of interleaved rounds, with a cold L2 cache on GPUs");
  sub->add_option("spec", args->specs, "The problems, one argument each")->required();
  add_input_options(*sub, args->inputs, false);
  sub->add_option(
         "--against", args->against,
         "naive: the textbook version too, which takes all scores through memory; quick: what a budget of prepare answers with at first; unhinted: what one gets who does not say the sizes")
      ->check(CLI::IsMember({"naive", "quick", "unhinted"}));
  sub->add_option("--seconds", args->seconds, "Per spec")->capture_default_str()->check([](const std::string& text) {
    const double seconds = std::strtod(text.c_str(), nullptr);
    // A NaN is refused, too.
    return seconds >= 0.01 && seconds <= 600 ? std::string() : fmt::format("{} is not between 0.01 and 600", text);
  });
  sub->add_flag("--json", args->json, "One JSON object per spec");
  sub->footer(
      "\nExamples:\n"
      "  flashjit bench 'fwd bf16 d=128 heads=32/8 mask=\"causal\"' --shape b=1,q=4096\n"
      "  flashjit bench 'fwd bf16 d=128 heads=8' --shape b=1,q=2048 --against naive\n"
      "  flashjit bench 'fwd fp16 d=64 heads=8' --shape q=1024 --target host --data 'sink(20)'\n"
      "  flashjit bench 'fwd fp16 d=64 heads=8' 'fwd bf16 d=64 heads=8' --shape q=1024 --target host --json");
  sub->callback([args, &exit_code] { exit_code = run(*args); });
}

}  // namespace flashjit

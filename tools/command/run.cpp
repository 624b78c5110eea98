// flashjit run runs one spec on one problem, from files or random data, and checks the results on request.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "compiler/spec/operands.h"
#include "compiler/spec/spec.h"
#include "runtime/launch/thread_pool.h"
#include "autotune/reference/compare.h"
#include "tools/command/commands.h"
#include "tools/support/drawn.h"
#include "tools/support/engine_options.h"
#include "tools/support/files.h"
#include "tools/support/inputs.h"
#include "tools/support/npy.h"
#include "tools/support/output.h"
#include "tools/support/prepared.h"
#include "tools/support/progress.h"

namespace flashjit {
namespace {

struct RunArgs {
  InputArgs inputs;
  std::string spec;
  // files by operand: they are written, or read if the spec reads the operand
  std::map<std::string, std::string> results;
  std::vector<std::string> grads;
  bool check = false, json = false;
};

// A name that is no operand is the gradient of a parameter.
bool is_written(std::string_view name, const AttentionSpec& spec) {
  const std::size_t operand = find_operand(name);
  return operand == kOperands.size() || kOperands[operand].written_by(spec);
}

// Reads --grad: files of gradients of parameters go to `results`, by the names of these tensors.
Result<void> take_gradients(const AttentionSpec& spec, RunArgs& args) {
  for (const std::string& grad : args.grads) {
    const std::size_t equals = grad.find('=');
    const std::string of = grad.substr(0, equals);
    if (equals == std::string::npos || equals + 1 == grad.size() || of == "sink" ||
        std::ranges::count(spec.grads, of) == 0) {
      return invalid(
          fmt::format("--grad: '{}' is not NAME=FILE.npy with a parameter whose gradient the spec asks for; "
                      "it has grads=\"{}\"",
                      grad, fmt::join(spec.grads, ", ")));
    }
    args.results[gradient_name(of)] = grad.substr(equals + 1);
  }
  return {};
}

Result<void> save(ProblemData& data, const AttentionSpec& spec, const std::string& name, const std::string& path) {
  if (path.empty() || !is_written(name, spec)) return {};
  NamedTensor* tensor = data.find(name);
  if (!tensor) {
    const Operand& operand = kOperands[find_operand(name)];
    return invalid(fmt::format("{}: {}", option_of(name), operand.absent));
  }
  return write_npy(path, {npy_type(tensor->dtype), tensor->shape, tensor->bytes});
}

Result<void> check_files(const RunArgs& args, const AttentionSpec& spec, const InputFiles& inputs) {
  std::vector<NamedFile> written = {{"--record", args.inputs.record}}, read;
  for (const auto& [name, path] : args.results) {
    if (is_written(name, spec))
      written.push_back({find_operand(name) == kOperands.size() ? "--grad" : option_of(name), path});
  }
  for (const auto& [name, path] : inputs.files) read.push_back({option_of(name), path});
  return check_files_differ(written, read);
}

// Adds how far the result is from attention to the numbers that Q, K and V of 8 bits were rounded from.
Result<void> add_unrounded(const Arguments& arguments, DrawnProblem::Unrounded& unrounded,
                           const reference::CompareOptions& options, reference::Comparison& comparison) {
  Arguments numbers = unrounded.data.host_arguments();
  numbers.o = arguments.o;
  FLASHJIT_ASSIGN(problem, reference::Problem::create(unrounded.spec, numbers));
  reference::add_unrounded_errors(problem, options, comparison);
  return {};
}

Result<std::string> check(const AttentionSpec& spec, const Facts& facts, DrawnProblem& drawn, std::uint64_t seed,
                          Json& line) {
  const Arguments arguments = drawn.data.reference_arguments();
  FLASHJIT_ASSIGN(problem, reference::Problem::create(spec, arguments));
  problem.round_weights_to(facts.weights);
  reference::CompareOptions options;
  options.seed = seed;
  options.threads = usable_cores();
  reference::Comparison c = reference::compare(problem, options);
  if (drawn.unrounded) FLASHJIT_TRY(add_unrounded(arguments, *drawn.unrounded, options, c));
  line["ok"] = c.ok;
  line["max_abs_err"] = c.max_abs_err;
  line["rel_err"] = c.rel_err;
  line["ref_err"] = c.rel_limit;
  line["ref_max_abs_err"] = c.max_abs_limit;
  line["rows"] = c.rows;
  line["rows_checked"] = c.rows_checked;
  if (!c.ok) {
    return Error{
        ErrorKind::Internal, fmt::format("the result is outside the error rule: {}", c.problem),
        fmt::format("relative error {:.3g}, limit {:.3g}; largest error {:.3g}, limit {:.3g}; {} of {} rows checked",
                    c.rel_err, c.rel_limit, c.max_abs_err, c.max_abs_limit, c.rows_checked, c.rows)};
  }
  std::string text =
      fmt::format("  checked   against float64: relative error {:.2e} (limit {:.2e}), largest {:.2e} (limit {:.2e})\n",
                  c.rel_err, c.rel_limit, c.max_abs_err, c.max_abs_limit);
  if (has_scaled_queries(spec) && attends(spec)) {
    text +=
        fmt::format("            of Q, K and V as their 8 bits and scales say; the limits are those of weights in {}\n",
                    facts.weights);
  }
  if (narrows(spec) || drawn.unrounded) {
    line["unrounded_rel_err"] = c.unrounded_rel_err;
    line["unrounded_rms"] = c.unrounded_rms;
    text += fmt::format("            {}: relative error {:.2e}, RMS {:.2e}\n",
                        narrows(spec) ? "of q, k and v in 8 bits, that is; as they are given"
                                      : "of the numbers that these were rounded from",
                        c.unrounded_rel_err, c.unrounded_rms);
  }
  if (!c.unchecked.empty()) text += fmt::format("            not the {}: that would take long\n", c.unchecked);
  if (c.rows_checked < c.rows)
    text += fmt::format("            {} of {} rows, drawn at random (all of them would take long)\n", c.rows_checked,
                        c.rows);
  return text;
}

Result<std::string> run_spec(RunArgs args, Json& line) {
  FLASHJIT_ASSIGN(spec, parse_spec(args.spec));
  line["spec"] = print(spec);
  FLASHJIT_TRY(take_gradients(spec, args));
  FLASHJIT_TRY(check_supported(spec));
  FLASHJIT_ASSIGN(shape, parse_shape(args.inputs.shape, spec));
  FLASHJIT_ASSIGN(inputs, input_files(args.inputs));
  for (const auto& [name, path] : args.results) {
    if (!path.empty() && !is_written(name, spec)) inputs.files[name] = path;
  }
  FLASHJIT_TRY(check_files(args, spec, inputs));
  FLASHJIT_ASSIGN(settings, read_environment());
  FLASHJIT_ASSIGN(session, open_session(args.inputs, settings));
  line["target"] = session->target();
  FLASHJIT_ASSIGN(drawn, DrawnProblem::create(spec, shape, inputs, args.inputs.seed));
  ProblemData& data = drawn.data;
  data.limit_sms(args.inputs.sms);
  FLASHJIT_ASSIGN(kernel, Prepared::create(*session, args.spec, args.inputs.schedule, args.inputs.hint(shape), data));
  line["schedule"] = kernel->facts().schedule;
  add_facts(line, kernel->facts());
  FLASHJIT_TRY(kernel->run_checked_outputs());
  for (const auto& [name, path] : args.results) FLASHJIT_TRY(save(data, spec, name, path));

  // This time is only for orientation; people should quote `bench`.
  MeasureOptions quick;
  quick.warm_up = 1;
  quick.min_rounds = 1;
  quick.max_rounds = 20;
  quick.seconds = 0.2;
  FLASHJIT_ASSIGN(timings, session->measure({[&] { return kernel->start(); }}, quick, {}));
  line["shape"] = print(shape);
  line["ms"] = timings[0].us * 1e-3;
  std::string text =
      fmt::format("{}\n  target    {}, {}\n  schedule  {}\n  time      {:.3f} ms (median of {})\n", print(spec),
                  session->target(), print(shape), kernel->facts().schedule, timings[0].us * 1e-3, timings[0].rounds);
  for (const std::string& note : kernel->facts().notes) text += fmt::format("  note: {}\n", note);
  if (args.check) {
    FLASHJIT_TRY(kernel->run_checked_outputs());
    FLASHJIT_ASSIGN(checked, check(spec, kernel->facts(), drawn, args.inputs.seed, line));
    text += checked;
  }
  return text;
}

int run(const RunArgs& args) {
  Output output(args.json);
  Json line = result_line(args.spec, args.inputs.target, args.inputs.schedule);
  auto text = run_spec(args, line);
  if (text) {
    output.result(line, *text);
  } else {
    output.failure(std::move(line), text.error());
  }
  return output.exit_code();
}

}  // namespace

void add_run(CLI::App& app, int& exit_code) {
  auto args = std::make_shared<RunArgs>();
  CLI::App* sub = app.add_subcommand("run", "Run a spec once, on a GPU or on this processor");
  sub->add_option("spec", args->spec, "The problem")->required();
  add_input_options(*sub, args->inputs, true);
  for (const Operand& operand : kOperands) {
    if (operand.role != OperandRole::Output) continue;
    const std::string_view else_read = operand.is_read ? "; bwd reads it" : "";
    sub->add_option(option_of(operand.name), args->results[std::string(operand.name)],
                    fmt::format("Where to write: {}{}", operand.what, else_read))
        ->type_name("FILE.npy");
  }
  sub->add_option("--grad", args->grads, "Where to write the gradient of a parameter: NAME=FILE.npy")
      ->type_name("NAME=FILE.npy");
  sub->add_flag("--check", args->check, "Compare with a float64 reference; large problems are sampled by rows");
  sub->add_flag("--json", args->json, "One JSON object");
  sub->footer(
      "\nExamples:\n"
      "  flashjit run 'fwd bf16 d=128 heads=32/8 mask=\"causal\"' --shape b=1,q=1024 --check\n"
      "  flashjit run 'fwd fp32 d=64 heads=8 lse=ln' --shape b=2,q=300,k=500 --target host --o o.npy --lse lse.npy\n"
      "  flashjit run 'fwd fp16 d=64 heads=8 layout=packed mask=\"causal\"' --shape q=100+37+0 --check --json\n"
      "  flashjit run 'fwd bf16 d=64 heads=8' --shape q=128 --q q.npy --k k.npy --v v.npy --o o.npy");
  sub->callback([args, &exit_code] { exit_code = run(*args); });
}

}  // namespace flashjit

// flashjit explain shows what would be generated, why, and what limits it. It needs no GPU and no compiler.
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "autotune/measure/shape.h"
#include "compiler/launches/append.h"
#include "compiler/launches/block_states.h"
#include "compiler/families/family.h"
#include "compiler/narrowing.h"
#include "compiler/choice/cost_model.h"
#include "compiler/spec/spec.h"
#include "compiler/launches/merged_lists.h"
#include "compiler/launches/shown_keys.h"
#include "compiler/launches/tile_lists.h"
#include "compiler/spec/text_form.h"
#include "runtime/compile/request.h"
#include "runtime/engine/environment.h"
#include "runtime/store/output_file.h"
#include "runtime/tuned/hint.h"
#include "compiler/launches/values.h"
#include "compiler/launches/wide_rows.h"
#include "tools/command/commands.h"
#include "tools/command/explain_costs.h"
#include "tools/page/candidates.h"
#include "tools/page/explain_page.h"
#include "tools/ranks/report.h"
#include "tools/support/device.h"
#include "tools/support/files.h"
#include "tools/support/inputs.h"
#include "tools/support/mask_map.h"
#include "tools/support/measured.h"
#include "tools/support/narrow_errors.h"
#include "tools/support/output.h"

namespace flashjit {
namespace {

constexpr std::size_t kShownNotes = 3;  // limit without --all

struct ExplainArgs {
  std::string spec, shape, schedule, html, command;
  std::optional<std::string> ranks;
  std::vector<std::string> specs, archs;
  InputArgs inputs;  // Only the inputs of the mask are read, for its map.
  bool all = false, json = false;
};

// Dense problems are explained as they are, and those with lengths that differ by their longest sequence.
Result<Shape> shape_of(const ExplainArgs& args, const AttentionSpec& spec) {
  if (args.shape.empty()) return assumed_shape(spec);
  FLASHJIT_ASSIGN(shape, parse_shape(args.shape, spec));
  return Shape{shape.batch, shape.longest_q(), shape.longest_k()};
}

// Returns the schedule that the cost model takes if `prepare` is told these sizes by a caller who brings a workspace,
// as `run` and `bench` do. Returns nothing if it is the same as without sizes.
Result<std::optional<Schedule>> hinted_schedule(const ExplainArgs& args, const Plan& plan) {
  if (args.shape.empty() || !args.schedule.empty()) return std::optional<Schedule>();
  FLASHJIT_ASSIGN(shape, parse_shape(args.shape, plan.spec));
  FLASHJIT_ASSIGN(told, parse_hint(hint_of(shape)));
  if (!told) return std::optional<Schedule>();
  return schedule_for(plan, plan.schedule, *told, true).schedule;
}

// Returns whether only callers who bring a workspace get this schedule.
bool asks_for_workspace(const Plan& plan, const std::optional<Schedule>& hinted) {
  return hinted && needs_workspace(plan, *hinted) && !needs_workspace(plan, plan.schedule);
}

std::string how(const Plan& plan, const std::optional<Schedule>& hinted, bool all) {
  std::string text = fmt::format("schedule\n  {}\n", print(plan.schedule));
  if (hinted) {
    text += fmt::format("  where prepare is told this shape{}: {}\n",
                        asks_for_workspace(plan, hinted) ? ", and that calls bring a workspace" : "", print(*hinted));
  }
  if (plan.target.gpu) {
    text +=
        fmt::format("  {} threads and {} of shared memory per block\n", plan.threads(), bytes_text(plan.smem_bytes()));
  }
  const FamilyRow& family = *plan.schedule.family;
  if (all && plan.target.gpu) {
    text += std::ranges::any_of(plan.launches, [](const KernelLaunch& launch) { return launch.grid.counts_sms(); })
                ? "  a call may leave SMs to others (sms)\n"
                : "  the device deals blocks to all SMs: calls with a limit (sms) are refused\n";
  }
  if (all)
    text += family.describe(plan.config) + describe_append(plan) + describe_value_rows(plan) +
            describe_wide_rows(plan) + describe_shown_keys(plan) + describe_merged_lists(plan) +
            describe_block_states(plan) + describe_tile_lists(plan);
  if (all && family.explain_tuned)
    text += family.explain_tuned(Problem(plan.spec, plan.target, plan.tiles), plan.schedule);
  const std::vector<std::string> notes = plan.all_notes();
  const std::size_t shown = all ? notes.size() : std::min(notes.size(), kShownNotes);
  for (std::size_t i = 0; i < shown; ++i) text += fmt::format("  note: {}\n", notes[i]);
  return notes.size() > shown ? text + fmt::format("  and {}\n", counted(notes.size() - shown, "more note")) : text;
}

// A picture that only terminals show may stand in the middle of a text.
struct ExplainedText {
  std::string before, picture, behind;
};

void add_map(const Result<MaskMap>& map, bool all, bool colours, ExplainedText& text) {
  if (!map) {
    text.before += fmt::format("tiles\n  {}\n", map.error().message);
    return;
  }
  const bool painted = all && colours;
  if (!all) text.before += "tiles\n";
  else if (painted)
    text.before += fmt::format("tiles (a character is {} by {} keys)\n", counted(2 * map->rows_per_cell, "query"),
                               map->keys_per_cell);
  else
    text.before += fmt::format("tiles ('.' skipped, '+' with mask code, '#' without; one character is {} by {} keys)\n",
                               counted(map->rows_per_cell, "query"), map->keys_per_cell);
  if (painted) text.picture = painted_map(*map);
  for (const std::string& row : map->rows) {
    if (all && !painted) text.before += fmt::format("  {}\n", row);
  }
  if (map->empty < 0) return;
  text.behind += fmt::format("  {} {}, {} with mask code, {} without{}\n", counted(map->empty, "tile"),
                             map->of_values ? "in which nothing is seen" : "skipped", map->mixed, map->full,
                             map->visible ? fmt::format("; {:.3g} % of the scores are seen", *map->visible * 100) : "");
}

// This is all that is known about a kernel, before it is shown in one form or another.
struct Explained {
  Plan plan;
  DeviceFigures device;
  Shape shape;  // the longest sequence, as often as there are sequences
  std::optional<ProblemShape> asked = {};
  Candidates candidates;
  std::optional<Schedule> hinted;
  std::optional<Roofline> roofline;  // It is absent if there is nothing to do.
  std::vector<Measured> tuned;
  MaskValues values;

  std::string device_words() const { return device_text(device, plan.target.gpu); }
  bool has_map() const { return roofline && reads_keys(plan.spec); }
};

Result<Explained> explained(const ExplainArgs& args, const DeviceFigures& device, const Request& request,
                            const std::string& store) {
  FLASHJIT_ASSIGN(plan, plan_spec(request));
  FLASHJIT_TRY(verify_plan(plan));
  plan.target.memory_tbs = device.memory_tbs;  // It is needed for the figures; the plan is that of the target.
  FLASHJIT_ASSIGN(shape, shape_of(args, plan.spec));
  FLASHJIT_ASSIGN(hinted, hinted_schedule(args, plan));
  FLASHJIT_ASSIGN(inputs, input_files(args.inputs));
  FLASHJIT_ASSIGN(values, MaskValues::read(plan.spec, inputs, sizes_of(shape)));
  Explained kernel{.plan = std::move(plan),
                   .device = device,
                   .shape = shape,
                   .hinted = std::move(hinted),
                   .values = std::move(values)};
  if (!args.shape.empty()) kernel.asked = *parse_shape(args.shape, kernel.plan.spec);  // shape_of() has parsed it.
  kernel.candidates = candidates_at(kernel.plan, request.pins, shape);
  if (shape.b > 0 && shape.q_len > 0 && shape.k_len > 0) kernel.roofline = roofline(kernel.plan, shape);
  kernel.tuned = measured(kernel.plan, store);
  return kernel;
}

Json json_of(const Explained& kernel) {
  const Plan& plan = kernel.plan;
  const Shape& shape = kernel.shape;
  Json line = result_line(print(plan.spec), plan.target.name, print(plan.schedule));
  line["device"] = {{"name", kernel.device.title},
                    {plan.target.gpu ? "sms" : "cores", plan.target.sm_count},
                    {"memory_tbs", kernel.device.memory_tbs}};
  if (kernel.device.usable_cores > 0) line["device"]["usable_cores"] = kernel.device.usable_cores;
  line["family"] = std::string(plan.schedule.family->name);
  line["smem_bytes"] = plan.smem_bytes();
  line["threads"] = plan.threads();
  line["notes"] = plan.all_notes();
  line["candidates"] = candidates_json(plan, kernel.candidates);
  line["program"] = dump(plan.program);
  line["hinted_schedule"] = kernel.hinted ? Json(print(*kernel.hinted)) : Json();
  line["hinted_asks_for_workspace"] = asks_for_workspace(plan, kernel.hinted);
  line["shape"] = {{"b", shape.b}, {"q", shape.q_len}, {"k", shape.k_len}};
  if (kernel.roofline) {
    line["roofline"] = roofline_json(*kernel.roofline);
    const Footprint calls = footprint(plan, shape);
    line["launches"] = calls.launches;
    line["workspace_bytes"] = calls.bytes;
  }
  const auto map =
      kernel.has_map() ? mask_map(plan, kernel.values, shape.q_len, shape.k_len) : Result<MaskMap>(unsupported(""));
  if (map)
    line["tiles"] = {{"empty", map->empty},
                     {"mixed", map->mixed},
                     {"full", map->full},
                     {"visible", map->visible ? Json(*map->visible) : Json()},
                     {"map", map->rows}};
  narrow_errors(plan, line);
  line["measured"] = measured_json(kernel.tuned);
  return line;
}

std::string longest_text(const Explained& kernel) {
  const auto [b, q, k] = kernel.shape;
  const std::int64_t queries = b * q, keys = b * k;
  if (!kernel.asked || (kernel.asked->q_tokens() == queries && kernel.asked->k_tokens() == keys)) return {};
  return fmt::format("figures count each of {} sequences as the longest: {} queries for {}, {} keys for {}\n", b,
                     queries, kernel.asked->q_tokens(), keys, kernel.asked->k_tokens());
}

ExplainedText text_of(const Explained& kernel, bool all, bool colours) {
  const Plan& plan = kernel.plan;
  const Shape& shape = kernel.shape;
  const char* const gap = all ? "\n" : "";
  ExplainedText text;
  text.before = fmt::format("{}\nfor {}\n{}{}{}", print(plan.spec), kernel.device_words(), gap,
                            how(plan, kernel.hinted, all), gap);
  if (kernel.roofline) {
    const Roofline& r = *kernel.roofline;
    text.before += longest_text(kernel) +
                   (reads_keys(plan.spec) ? roofline_text(plan, shape, r, all, kernel.values.given())
                                          : traffic_text(plan, shape, r)) +
                   gap;
  }
  if (kernel.has_map()) {
    add_map(mask_map(plan, kernel.values, shape.q_len, shape.k_len), all, colours, text);
    text.behind += gap;
  }
  const std::vector<Measured>& tuned = kernel.tuned;
  if (all) {
    Json unused;
    text.behind += narrow_errors(plan, unused) + measured_text(tuned) +
                   candidates_text(plan, kernel.candidates, shape, true) + "\nprogram\n" + dump(plan.program) + "\n";
  } else {
    if (!tuned.empty())
      text.behind += fmt::format("measured\n  {} of `flashjit tune`\n", counted(tuned.size(), "record"));
    text.behind +=
        candidates_text(plan, kernel.candidates, shape, false) +
        "--all says the rest: how it works, all figures, the picture of tiles, what was refused, the program\n";
  }
  return text;
}

// Explanations go to standard output, and into the page if there is one.
struct Readers {
  std::string store;
  Output& output;
  std::optional<ExplainPage> page = {};
};

void add_to_page(const Explained& kernel, ExplainPage& page) {
  const ExplainedText text = text_of(kernel, true, false);
  std::optional<Result<MaskMap>> map;
  if (kernel.has_map()) map = mask_map(kernel.plan, kernel.values, kernel.shape.q_len, kernel.shape.k_len, kPageMap);
  page.add({.plan = kernel.plan,
            .device = kernel.device_words(),
            .shape = kernel.shape,
            .hinted = kernel.hinted,
            .roofline = kernel.roofline,
            .map = std::move(map),
            .candidates = kernel.candidates,
            .text = text.before + text.behind});
}

Result<void> explain_kernel(const ExplainArgs& args, const DeviceFigures& device, const Request& request,
                            Readers& readers) {
  FLASHJIT_ASSIGN(kernel, explained(args, device, request, readers.store));
  if (readers.page) add_to_page(kernel, *readers.page);
  if (args.json) {
    readers.output.result(json_of(kernel), "");
  } else {
    const ExplainedText text = text_of(kernel, args.all, Output::shows_colours());
    readers.output.text(text.before, text.picture, text.behind);
  }
  return {};
}

// Kernels that round Q, K and V and attend to them compute the spec together. This explains what none of them shows
// alone.
Result<void> explain_narrowing(const ExplainArgs& args, const Request& request, Readers& readers) {
  const AttentionSpec& spec = request.spec;
  FLASHJIT_ASSIGN(shape, shape_of(args, spec));
  const std::int64_t bytes = narrowed_room(spec, sizes_of(shape)).bytes;
  Json line = result_line(request.text, request.target.name, args.schedule);
  line["workspace_bytes"] = bytes;
  const NarrowError error = rounding_error(spec, spec.rotate);
  line["rounding_error"] = error_json(error);
  const std::string text = fmt::format(
      "{}\nfor {}: the four kernels below, one after the other\n\n"
      "  workspace          {} at {}: Q, K and V in 8 bits; behind it what one kernel needs at a time\n"
      "  rounding error     {} ({})\n",
      request.text, request.target.name, bytes_text(static_cast<double>(bytes)), print(shape), error_text(error),
      kRoundingMeasured);
  readers.output.result(line, text);
  if (readers.page) readers.page->add_text(request.text, text);
  return {};
}

// A spec is explained as one kernel, or as each of those that compute it together, at the sizes that the cost model
// takes for their own. This function returns the sizes of one of several kernels, in the order of kernels_of. Kernels
// whose sizes follow from others, those of shared prefixes and of packed tokens with one scale, are shown at the
// default.
Result<std::string> shape_of_component(const ExplainArgs& args, const Request& request, std::size_t component) {
  constexpr std::size_t kQueries = 0, kAttention = 3;
  if (args.shape.empty() || !narrows(request.spec)) return std::string();
  if (component == kAttention) return args.shape;
  if (is_packed(request.spec) && request.spec.scale_block == 0) return std::string();
  FLASHJIT_ASSIGN(shape, parse_shape(args.shape, request.spec));
  return fmt::format("b={},q={}", shape.batch, component == kQueries ? shape.longest_q() : shape.longest_k());
}

Result<void> explain_one(const ExplainArgs& args, const DeviceFigures& device, Readers& readers) {
  FLASHJIT_ASSIGN(request, Request::parse(args.spec, device.target, args.schedule, device.units));
  if (args.ranks) {
    FLASHJIT_ASSIGN(shape, shape_of(args, request.spec));
    return explain_ranks(*args.ranks, request, device, shape, readers.output);
  }
  FLASHJIT_ASSIGN(kernels, kernels_of(request));
  if (kernels.size() == 1) return explain_kernel(args, device, kernels.front(), readers);
  if (narrows(request.spec)) FLASHJIT_TRY(explain_narrowing(args, request, readers));
  ExplainArgs of_component = args;
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    FLASHJIT_ASSIGN(shape, shape_of_component(args, request, i));
    of_component.shape = std::move(shape);
    FLASHJIT_TRY(explain_kernel(of_component, device, kernels[i], readers));
  }
  return {};
}

void explain_spec(const ExplainArgs& args, Readers& readers) {
  const bool here = args.archs.empty();
  for (const std::string& arch : here ? std::vector<std::string>{""} : args.archs) {
    const auto device = here ? figures_of_this_machine() : figures_of(arch);
    const Result<void> done = device ? explain_one(args, *device, readers) : device.error();
    if (done) continue;
    readers.output.failure(result_line(args.spec, arch, args.schedule), done.error());
    if (readers.page) readers.page->add_failure(args.spec, arch, done.error());
  }
}

int explain(ExplainArgs args) {
  Output output(args.json);
  const auto settings = read_environment();
  Readers readers{.store = settings ? settings->cache_dir : "", .output = output};
  if (!args.html.empty()) readers.page.emplace(args.command);
  for (const std::string& spec : args.specs) {
    args.spec = spec;
    explain_spec(args, readers);
  }
  if (!readers.page) return output.exit_code();
  const auto written = of_option("--html", write_output(args.html, {readers.page->markup()}));
  if (written) output.text(fmt::format("page\n  {}\n", args.html));
  else output.failure(result_line(args.spec, "", args.schedule), written.error());
  return output.exit_code();
}

}  // namespace

void add_explain(CLI::App& app, const std::string& command, int& exit_code) {
  auto args = std::make_shared<ExplainArgs>();
  args->command = command;
  CLI::App* sub =
      app.add_subcommand("explain", "The plan for a spec, why, and what limits it; needs neither GPU nor compiler");
  sub->add_option("spec", args->specs, "The problems, one argument each")->required();
  sub->add_option("--arch", args->archs,
                  "Targets: sm_80, sm_90a, x86-64-v3, ..., or cards: a100, h100, b200, ... (default: this machine's)")
      ->type_name("TARGET")
      ->delimiter(',');
  CLI::Option* shape = sub->add_option(
      "--shape", args->shape,
      "Sizes that all figures are for: b=2,q=4096,k=4096; each sequence counts as the longest (default: those by which a schedule is chosen where prepare is told none)");
  sub->add_option("--schedule", args->schedule, "Choices to pin, such as tile_q=128");
  CLI::Option* param =
      sub->add_option(
             "--param", args->inputs.params,
             "What the mask reads, for its map and for the share that is seen, which no other figure knows: NAME=FILE.npy for a "
             "tensor, NAME=NUMBER for a scalar")
          ->type_name("NAME=VALUE");
  CLI::Option* all = sub->add_flag("--all", args->all, "Everything, and not the 25 lines that say most");
  sub->add_flag("--json", args->json, "One JSON object per target");
  CLI::Option* html = sub->add_option("--html", args->html,
                                      "Write a page with pictures: the mask, the roofline, the roles, the candidates")
                          ->type_name("FILE");
  sub->add_option(
         "--ranks", args->ranks,
         "Over GPUs that share the sequence, instead: each way to do so, and what it waits for; 8x450GB/s is a host "
         "of 8, 8x450GB/s,16x50GB/s is 16 of them, with what a GPU reaches in each direction")
      ->type_name("NETWORK")
      ->needs(shape)
      ->excludes(html)
      ->excludes(param)
      ->excludes(all);
  sub->footer(
      "\nExamples:\n"
      "  flashjit explain 'fwd bf16 d=128 heads=32/8 mask=\"causal\"' --arch h100 --shape b=1,q=4096 --all\n"
      "  flashjit explain 'fwd bf16 d=128 heads=32/8 q_len=1' --arch sm_80,sm_90a --shape b=16,q=1,k=8192 --json\n"
      "  flashjit explain 'fwd bf16 d=128 heads=64/8 mask=\"causal\"' --arch h200 --shape q=1048576 --ranks "
      "8x450GB/s,16x50GB/s\n"
      "  flashjit explain 'fwd bf16 d=128 heads=32/8 mask=\"causal\"' --arch h100 --html explained.html\n"
      "  flashjit explain 'fwd bf16 d=64 mask=\"document(doc)\"' --arch h100 --shape q=1024 --param doc=doc.npy --all");
  sub->callback([args, &exit_code] { exit_code = explain(*args); });
}

}  // namespace flashjit

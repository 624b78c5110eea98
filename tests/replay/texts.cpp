#include "tests/replay/texts.h"

#include <algorithm>
#include <regex>

#include <fmt/format.h>

#include "codegen/cuda/emit.h"
#include "compiler/choice/candidates.h"
#include "runtime/compile/request.h"
#include "tests/replay/launch.h"

namespace flashjit::replay {
namespace {

constexpr int kLegal = 12, kIllegal = 3;  // candidates that are named

std::string error_text(const Error& error) {
  return fmt::format("{}: {}{}{}\n", name(error.kind), error.message, error.detail.empty() ? "" : "\n", error.detail);
}

std::string without_times(const std::string& note) {
  static const std::regex time("[0-9.]+ us\\b");
  return std::regex_replace(note, time, "_ us");
}

std::string plan_text(const Plan& plan) {
  std::string text = fmt::format("{}\nthreads {} shared {}\n", print(plan.schedule), plan.threads(), plan.smem_bytes());
  for (const std::string& note : plan.all_notes()) text += fmt::format("note: {}\n", without_times(note));
  int legal = 0, illegal = 0;
  for (const Candidate& candidate : *plan.candidates) {
    if (candidate.legal && ++legal <= kLegal) text += fmt::format("candidate {}\n", print(candidate.schedule));
    if (candidate.legal || ++illegal > kIllegal) continue;
    text += fmt::format("illegal {}: {}\n", print(candidate.schedule),
                        why_illegal(plan.spec, plan.target, candidate.schedule));
  }
  return text + fmt::format("legal {} illegal {}\n", legal, illegal);
}

std::string source_text(const Plan& plan, const KernelSource& source) {
  std::string text;
  for (const KernelLaunch& launch : plan.launches) text += fmt::format("entry {}\n", launch.entry);
  for (const SourceFile& file : source.generated) text += fmt::format("-- {}\n{}", file.name, file.text);
  return text;
}

struct Writer {
  const ReplayCase& c;
  Texts texts;

  std::string& column(std::string_view name) {
    return texts
        .columns[static_cast<std::size_t>(std::find(kColumns.begin(), kColumns.end(), name) - kColumns.begin())];
  }

  void add(const Target& target, const std::string& pins) {
    const std::string title = fmt::format("==== {} {}\n", target.name, pins);
    for (std::string& text : texts.columns) text += title;
    ++texts.plans;
    const auto pinned = parse_schedule(pins);
    const auto plan = pinned ? plan_spec(Request(c.spec, target, *pinned)) : Result<Plan>(pinned.error());
    if (!plan) {
      column("plan") += error_text(plan.error());
      return;
    }
    column("plan") += plan_text(*plan);
    column("program") += dump(plan->program);
    if (!target.gpu) return;
    const auto source = emit_cuda(*plan);
    column("source") += source ? source_text(*plan, *source) : error_text(source.error());
    if (!source) return;
    for (const Placement placement : {Placement::Contiguous, Placement::Padded}) {
      ++texts.launches;
      column("launch") += launch_text(*plan, *source, arguments_of(c, placement));
    }
    if (pins.empty()) add_naive(target);
  }

  // The textbook version.
  void add_naive(const Target& target) {
    const auto plan = plan_spec(Request(c.spec, target, *parse_schedule("family=naive")));
    if (!plan) {
      column("plan") += error_text(plan.error());
      return;
    }
    for (std::string& text : texts.columns) text += "==== naive\n";
    const auto source = emit_cuda(*plan);
    column("source") += source ? source_text(*plan, *source) : error_text(source.error());
    const auto longest = [](const std::vector<std::int64_t>& lens) {
      return lens.empty() ? 0 : static_cast<int>(std::ranges::max(lens));
    };
    const CallSizes sizes = {
        .batch = static_cast<std::int64_t>(c.q_lens.size()), .q_len = longest(c.q_lens), .k_len = longest(c.k_lens)};
    for (const KernelLaunch& launch : plan->launches) {
      column("launch") += fmt::format("grid {} shared {}\n", items_of(launch.grid, sizes), launch.smem_bytes);
    }
    column("launch") += fmt::format("scores {} probabilities {}\n", bytes_of(plan->workspace[0], sizes),
                                    bytes_of(plan->workspace[1], sizes));
  }
};

}  // namespace

Texts texts_of(const ReplayCase& c) {
  Writer writer{c, {}};
  for (const Target& target : targets()) {
    writer.add(target, "");
    for (const std::string& pins : c.pins) writer.add(target, pins);
  }
  return std::move(writer.texts);
}

}  // namespace flashjit::replay

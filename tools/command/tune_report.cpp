#include "tools/command/tune_report.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "autotune/measure/peak.h"
#include "compiler/spec/text_form.h"
#include "runtime/compile/request.h"

namespace flashjit {
namespace {

constexpr int kShownReasons = 4;
constexpr std::size_t kListedCandidates = 3;

// Turns "tile_q=128,order=natural" into {"tile_q": 128, "order": "natural"}, which the plots have on their axes.
Json fields_of(const Schedule& schedule) {
  Json fields = Json::object();
  const std::string text = print(schedule);
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const std::size_t equals = item.find('=');
    const std::string name(item.substr(0, equals)), value(item.substr(equals + 1));
    const bool number = !value.empty() && value.find_first_not_of("0123456789") == std::string::npos;
    if (number) {
      fields[name] = std::stoi(value);
    } else {
      fields[name] = value;
    }
  }
  return fields;
}

Json candidate_json(const TunedCandidate& c) {
  Json json;
  json["schedule"] = print(c.schedule);
  json["fields"] = fields_of(c.schedule);
  json["predicted_us"] = c.predicted_us;
  for (const auto& [name, us] :
       {std::pair("us", c.us), std::pair("us_low", c.us_low), std::pair("us_high", c.us_high)}) {
    json[name] = c.timed() ? Json(us) : Json(nullptr);
  }
  json["status"] = c.status;
  json["registers"] = c.registers;
  json["smem_bytes"] = c.smem_bytes;
  json["why"] = c.why;
  return json;
}

// Returns 0 if the number is missing, or not known.
double number(const Json& spec, const char* name) {
  const auto found = spec.find(name);
  return found != spec.end() && found->is_number() ? found->get<double>() : 0;
}

Json if_known(double value) { return value > 0 ? Json(value) : Json(); }

// This class adds peaks to the specs of a report, whose machine is `machine`. The time to measure them is spent once
// for each type of products.
class Peaks {
 public:
  explicit Peaks(const Machine& machine) : machine_(machine) {}

  void add_to(Json& spec) {
    const auto request = Request::parse(spec.value("spec", ""), machine_.target, "");
    if (!request) return;
    const auto plan = plan_spec(*request);
    if (!plan) return;
    auto [place, is_new] = known_.try_emplace(plan->spec.dtype);
    if (is_new) place->second = peak_of(*plan, machine_.units);
    const Peak& peak = place->second;
    spec["peak_tflops"] = if_known(peak.tflops);
    spec["peak_tbs"] = if_known(peak.tbs);
    spec["peak_how"] = peak.how;
  }

 private:
  const Machine& machine_;
  std::map<Dtype, Peak> known_;
};

std::string shortened(const std::string& text, std::size_t width) {
  return text.size() <= width ? text : text.substr(0, width - 3) + "...";
}

// The compiler enumerates the list. A part of it is measured, and also schedules outside of it: those that differ from
// the best so far in a field that the list leaves to rules, and those that won an earlier tuning.
std::string space_text(const Json& spec) {
  const int tried = spec.value("tried", 0), unlisted = spec.value("tried_unlisted", 0);
  std::string text = fmt::format("  space     {} in the compiler's list, {} of them legal; {} measured",
                                 counted(spec.value("space", 0), "schedule"), spec.value("legal", 0), tried);
  if (unlisted > 0)
    text += fmt::format(", of which {} {} not in the list: a field away from the best, or earlier winners", unlisted,
                        unlisted == 1 ? "is" : "are");
  return text + "\n";
}

}  // namespace

Json tuned_json(const TuneOutcome& outcome) {
  const TunedCandidate &untuned = outcome.of(outcome.untuned), &best = outcome.of(outcome.best),
                       &first = outcome.of(outcome.first_choice);
  Json json;
  json["spec"] = print(outcome.spec);
  json["shape"] = print(outcome.shape);
  json["flops"] = outcome.flops;
  json["bytes"] = outcome.bytes;
  json["default_us"] = untuned.us;
  json["default_schedule"] = print(untuned.schedule);
  json["best_us"] = best.us;
  json["best_low"] = best.us_low;
  json["best_high"] = best.us_high;
  json["best_schedule"] = print(best.schedule);
  json["best_why"] = outcome.why_best();
  json["fastest_us"] = outcome.of(outcome.fastest).us;
  json["fastest_schedule"] = print(outcome.of(outcome.fastest).schedule);
  json["first_choice_us"] = first.us;
  json["first_choice"] = print(first.schedule);
  json["regret"] = outcome.regret();
  json["tried"] = std::ranges::count_if(outcome.candidates, &TunedCandidate::timed);
  json["tried_unlisted"] =
      std::ranges::count_if(outcome.candidates, [](const TunedCandidate& c) { return c.timed() && !c.listed; });
  json["space"] = outcome.space;
  json["legal"] = outcome.legal;
  json["noise"] = outcome.noise;
  json["clock_mhz"] = if_known(outcome.after.clock_mhz);
  json["temperature"] = if_known(outcome.after.temperature);
  json["compile_s"] = outcome.compile_seconds;
  json["measure_s"] = outcome.measure_seconds;
  json["cut"] = Json::array();
  for (const CutReason& reason : outcome.cut) json["cut"].push_back({{"why", reason.why}, {"count", reason.count}});
  json["candidates"] = Json::array();
  for (const TunedCandidate& c : outcome.candidates) json["candidates"].push_back(candidate_json(c));
  return json;
}

Json example_json() {
  TuneOutcome outcome;
  outcome.candidates.emplace_back();
  outcome.cut.emplace_back();
  return tuned_json(outcome);
}

Json report_json(const Machine& machine, const std::string& date, const std::string& command, std::vector<Json> specs) {
  double noise = 0, clock = 0, temperature = 0;
  for (const Json& spec : specs) {
    noise = std::max(noise, number(spec, "noise"));
    clock = std::max(clock, number(spec, "clock_mhz"));
    temperature = std::max(temperature, number(spec, "temperature"));
  }
  const auto row = find_target(machine.target);
  const bool gpu = row && (*row)->gpu;
  Json about = {{gpu ? "gpu" : "processor", machine.device},
                {"target", machine.target},
                {gpu ? "sms" : "threads", machine.units},
                {"date", date},
                {"noise", noise},
                {"clock_mhz", if_known(clock)},
                {"temperature", if_known(temperature)}};
  if (gpu) about["driver"] = machine.driver;
  Peaks peaks(machine);
  for (Json& spec : specs) peaks.add_to(spec);
  return {{"machine", std::move(about)}, {"command", command}, {"specs", std::move(specs)}};
}

Json tuned_line(const Json& spec, const std::string& target) {
  Json line = result_line(spec.value("spec", ""), target, spec.value("best_schedule", ""));
  for (const char* name : {"shape",
                           "default_us",
                           "best_us",
                           "best_schedule",
                           "best_why",
                           "fastest_us",
                           "fastest_schedule",
                           "tried",
                           "default_schedule",
                           "first_choice",
                           "first_choice_us",
                           "regret",
                           "noise",
                           "space",
                           "legal",
                           "best_low",
                           "best_high",
                           "clock_mhz",
                           "temperature",
                           "compile_s",
                           "measure_s",
                           "tried_unlisted",
                           "recorded"}) {
    line[name] = spec.value(name, Json());
  }
  return line;
}

std::string tuned_text(const Json& spec) {
  std::string text =
      fmt::format("{}\n  shape     {}\n{}", spec.value("spec", ""), spec.value("shape", ""), space_text(spec));
  int shown = 0;
  for (const Json& cut : spec["cut"]) {
    if (shown++ == kShownReasons) break;
    text += fmt::format("            {:>5} cut: {}\n", cut.value("count", 0), cut.value("why", ""));
  }
  const double us = number(spec, "best_us");
  // The schedule that prepare takes depends on what prepare is told, so both lines show somebody's default.
  text += fmt::format(
      "  default   {:.1f} us  {}  (what prepare takes that is told no sizes)\n"
      "  model     {:.1f} us  {}  (what the cost model puts first for this shape)\n"
      "  best      {:.1f} us  {}  ({:.1f} to {:.1f})\n            {}\n",
      number(spec, "default_us"), spec.value("default_schedule", ""), number(spec, "first_choice_us"),
      spec.value("first_choice", ""), us, spec.value("best_schedule", ""), number(spec, "best_low"),
      number(spec, "best_high"), spec.value("best_why", ""));
  std::vector<Json> others;
  for (const Json& c : spec["candidates"]) {
    if (!c["us"].is_null() && c["schedule"] != spec["best_schedule"]) others.push_back(c);
  }
  std::ranges::sort(others, [](const Json& a, const Json& b) { return a["us"] < b["us"]; });
  for (std::size_t i = 0; i < std::min(others.size(), kListedCandidates); ++i) {
    const std::string why = others[i].value("why", "");
    text += fmt::format("  {:<8}  {:.1f} us  {}{}\n", i == 0 ? "others" : "", number(others[i], "us"),
                        others[i].value("schedule", ""), why.empty() ? "" : ": " + why);
  }
  for (const Json& c : spec["candidates"]) {
    if (c["status"] == "wrong" || c["status"] == "failed")
      text += fmt::format("  {}: {}: {}\n", c.value("status", ""), c.value("schedule", ""), c.value("why", ""));
  }
  text += fmt::format("  noise     {:.1f} %, by which the default differs from itself\n", 100 * number(spec, "noise"));
  if (!spec.value("recorded", true)) return text + "  record    none\n";
  return text +
         "  record    kept: prepare takes the best where it is told such sizes (PrepareOptions::shape, or the spec)\n";
}

std::string tuned_table(const std::vector<Json>& specs) {
  std::string text = fmt::format("\n{:<60} {:<26} {:>10} {:>10} {:>6} {:>7} {:>5}\n", "spec", "shape", "default us",
                                 "best us", "gain", "regret", "tried");
  double logs = 0, regrets = 0, worst = 0;
  for (const Json& spec : specs) {
    const double gain = number(spec, "default_us") / number(spec, "best_us"), regret = number(spec, "regret");
    logs += std::log(gain);
    regrets += regret;
    worst = std::max(worst, regret);
    text +=
        fmt::format("{:<60} {:<26} {:>10.1f} {:>10.1f} {:>6.3f} {:>5.1f} % {:>5}\n",
                    shortened(spec.value("spec", ""), 60), shortened(spec.value("shape", ""), 26),
                    number(spec, "default_us"), number(spec, "best_us"), gain, 100 * regret, spec.value("tried", 0));
  }
  const double n = static_cast<double>(specs.size());
  return text +
         fmt::format(
             "{}: best over default {:.3f} (geometric mean); regret of the model's first choice {:.1f} % on average, {:.1f} % at worst\n",
             counted(specs.size(), "spec"), std::exp(logs / n), 100 * regrets / n, 100 * worst);
}

}  // namespace flashjit

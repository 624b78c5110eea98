#include "tools/support/measured.h"

#include <fmt/format.h>

#include "compiler/choice/candidates.h"
#include "compiler/choice/cost_model.h"

namespace flashjit {

std::vector<Measured> measured(const Plan& plan, const std::string& store) {
  std::vector<Measured> found;
  for (TunedRecord& r : stored_records(store)) {
    if (r.spec != print(plan.spec) || r.machine.target != plan.target.name) continue;
    Measured m{std::move(r)};
    const Schedule& s = m.record.schedule;
    if (is_legal(plan.spec, plan.target, s)) {
      const Problem problem(plan.spec, plan.target, plan.tiles);
      m.predicted_us = predict(problem, s, m.record.shape, work_of(problem, m.record.shape, s)).total;
    }
    found.push_back(std::move(m));
  }
  return found;
}

std::string measured_text(const std::vector<Measured>& all) {
  std::string text =
      all.empty() ? ""
                  : "measured (records of `flashjit tune`; prepare takes the one that fits the device and the shape)\n";
  for (const Measured& m : all) {
    text += fmt::format("  {:9.1f} us  {}\n             {}, {}: {:.1f} us predicted, {:.1f} us without tuning\n",
                        m.record.us, print(m.record.schedule), m.record.machine.device, print(m.record.shape),
                        m.predicted_us, m.record.default_us);
  }
  return text.empty() ? text : text + "\n";
}

Json measured_json(const std::vector<Measured>& all) {
  Json list = Json::array();
  for (const Measured& m : all) {
    const TunedRecord& r = m.record;
    list.push_back({{"device", r.machine.device},
                    {"shape", print(r.shape)},
                    {"schedule", print(r.schedule)},
                    {"us", r.us},
                    {"default_us", r.default_us},
                    {"predicted_us", m.predicted_us},
                    {"date", r.date}});
  }
  return list;
}

}  // namespace flashjit

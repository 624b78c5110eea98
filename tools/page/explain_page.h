// This is the page that `explain --html` writes. It has a section for each kernel, with pictures of what the text says
// in words, needs nothing beside itself, and is the same each time.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compiler/choice/cost_model.h"
#include "compiler/plan.h"
#include "tools/support/mask_map.h"

namespace flashjit {

// This is one kernel as the page shows it.
struct KernelSection {
  const Plan& plan;
  std::string device;  // in words
  Shape shape;
  std::optional<Schedule> hinted;      // where prepare is told the shape
  std::optional<Roofline> roofline;    // none: the shape has no work
  std::optional<Result<MaskMap>> map;  // none: nothing attends
  const Candidates& candidates;
  std::string text;  // all that the command says
};

class ExplainPage {
 public:
  // `command` is the line by which the page can be made again.
  explicit ExplainPage(std::string command) : command_(std::move(command)) {}

  void add(const KernelSection& kernel);
  // Adds a section that has words alone.
  void add_text(const std::string& spec, const std::string& text);
  void add_failure(const std::string& spec, const std::string& target, const Error& error);
  std::string markup() const;

 private:
  std::string command_;
  std::vector<std::string> sections_;
};

}  // namespace flashjit

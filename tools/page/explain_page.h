// This is the page that `explain --html` writes. It has a section for each kernel, with pictures of what the text tells
// in words. It needs no other file, and is the same each time.
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
  std::optional<Schedule> hinted;      // the schedule if prepare is told the shape
  std::optional<Roofline> roofline;    // It is absent if the shape has no work.
  std::optional<Result<MaskMap>> map;  // It is absent if nothing attends.
  const Candidates& candidates;
  std::string text;  // everything that the command prints
};

class ExplainPage {
 public:
  // `command` is the line by which the page can be made again.
  explicit ExplainPage(std::string command) : command_(std::move(command)) {}

  void add(const KernelSection& kernel);
  // Adds a section that has only words.
  void add_text(const std::string& spec, const std::string& text);
  void add_failure(const std::string& spec, const std::string& target, const Error& error);
  std::string markup() const;

 private:
  std::string command_;
  std::vector<std::string> sections_;
};

}  // namespace flashjit

// What is written down of every prepare: a line of FLASHJIT_LOG, and a line of the manifest that EngineOptions::record
// names.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "flashjit/flashjit.hpp"
#include "runtime/bundle/manifest.h"

namespace flashjit {

class PrepareLog {
 public:
  // Either may be empty: there is none then. Error: the manifest cannot be written.
  static Result<PrepareLog> open(std::string log_file, const std::string& manifest);

  void log(const Result<std::shared_ptr<Kernel>>& kernel, std::string_view spec) const;
  // `pins` are the caller's. That a line cannot be written must not fail what was asked for: it is a note.
  void record(Facts& facts, std::string_view pins) const;

 private:
  std::string log_file_;
  std::optional<Recorder> recorder_;
};

}  // namespace flashjit

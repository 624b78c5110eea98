// Every prepare is written down twice: as a line of FLASHJIT_LOG, and as a line of the manifest that
// EngineOptions::record or FLASHJIT_RECORD names.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "compiler/spec/schedule.h"
#include "flashjit/flashjit.hpp"
#include "runtime/bundle/manifest.h"
#include "runtime/store/file_handle.h"

namespace flashjit {

class PrepareLog {
 public:
  // Either may be empty: there is none then. Error: the manifest, which `setting` names, cannot be written.
  static Result<PrepareLog> open(std::string log_file, const std::string& manifest, std::string_view setting);

  void log(const Result<std::shared_ptr<Kernel>>& kernel, std::string_view spec) const;
  // Before `log`. `pins` are the caller's. That a line cannot be written here or there must not fail what was asked for:
  // it is a note, for the log in the first facts only.
  void record(Facts& facts, const Schedule& pins) const;
  // Records a kernel that was made before, which goes into the manifest only.
  Result<void> record_text(const std::string& spec, const Schedule& pins) const;

 private:
  FileHandle open_log() const;

  std::string log_file_;
  // The log's trouble is the errno of what failed, and whether it was said. It is shared, as threads prepare at the same time.
  struct Trouble {
    std::atomic<int> error = 0;
    std::atomic<bool> is_said = false;
  };
  std::unique_ptr<Trouble> trouble_ = std::make_unique<Trouble>();
  std::optional<Recorder> recorder_;
};

}  // namespace flashjit

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
  // Either name may be empty if nothing is to be written there. A manifest that cannot be written is an error,
  // which begins with `setting`.
  static Result<PrepareLog> open(std::string log_file, const std::string& manifest, std::string_view setting);

  void log(const Result<std::shared_ptr<Kernel>>& kernel, std::string_view spec) const;
  // Records a kernel; this comes before `log`. `pins` are the caller's. A line that cannot be written, here or in the
  // log, does not fail the prepare: a note in the first facts tells of it.
  void record(Facts& facts, const Schedule& pins) const;
  // Records a kernel that was made before, in the manifest only.
  Result<void> record_text(const std::string& spec, const Schedule& pins) const;

 private:
  FileHandle open_log() const;

  std::string log_file_;
  // The trouble of the log is the errno of what failed, and whether it was reported. Both are shared, because threads
  // prepare at the same time.
  struct Trouble {
    std::atomic<int> error = 0;
    std::atomic<bool> is_said = false;
  };
  std::unique_ptr<Trouble> trouble_ = std::make_unique<Trouble>();
  std::optional<Recorder> recorder_;
};

}  // namespace flashjit

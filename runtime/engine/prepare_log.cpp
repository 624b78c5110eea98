#include "runtime/engine/prepare_log.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstring>

#include "compiler/spec/text_form.h"
#include "runtime/store/temporary_file.h"

namespace flashjit {
namespace {

// Returns a line of the log: one line, which is safe on a terminal, whatever a spec or a file's name contains.
std::string line_of(std::string_view spec, std::string_view what) {
  return harmless(fmt::format("prepare {}: {}", spec, what), Lines::One) + "\n";
}

std::string log_text(const Result<std::shared_ptr<Kernel>>& kernel, std::string_view spec) {
  if (!kernel) return line_of(spec, fmt::format("{}: {}", name(kernel.error().kind), kernel.error().message));
  const Facts& facts = (*kernel)->facts();
  const std::string& why = facts.layer.empty() ? facts.miss : facts.layer;
  std::string text =
      line_of(facts.spec, fmt::format("{}{} for {} in {:.1f} ms, schedule {}, {} registers, key {}", facts.source,
                                      why.empty() ? "" : fmt::format(" ({})", why), facts.target, facts.compile_ms,
                                      facts.schedule, facts.registers, facts.key.substr(0, 16)));
  for (const std::string& note : facts.notes) text += line_of(facts.spec, "note: " + note);
  return text;
}

}  // namespace

Result<PrepareLog> PrepareLog::open(std::string log_file, const std::string& manifest, std::string_view setting) {
  PrepareLog log;
  log.log_file_ = std::move(log_file);
  if (!manifest.empty()) {
    auto recorder = Recorder::open(manifest);
    if (!recorder) {
      Error error = recorder.error();
      error.message = fmt::format("{}: {}; name a file that can be written, or leave it out", setting, error.message);
      return error;
    }
    log.recorder_ = std::move(*recorder);
  }
  return log;
}

// The log is opened without waiting: a FIFO that nobody reads must not stop the program.
FileHandle PrepareLog::open_log() const {
  FileHandle file(log_file_ == "stderr"
                      ? dup(STDERR_FILENO)
                      : ::open(log_file_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC, 0600));
  if (!file) trouble_->error = errno;
  return file;
}

// Lines are appended as a whole, so that processes can share the file.
void PrepareLog::log(const Result<std::shared_ptr<Kernel>>& kernel, std::string_view spec) const {
  if (log_file_.empty()) return;
  const std::string text = log_text(kernel, spec);
  const FileHandle file = open_log();
  if (file && !write_all(file.get(), text.data(), text.size())) trouble_->error = errno;
}

void PrepareLog::record(Facts& facts, const Schedule& pins) const {
  if (!log_file_.empty()) open_log();
  if (const int error = trouble_->error; error != 0 && !trouble_->is_said.exchange(true)) {
    facts.notes.push_back(
        fmt::format("FLASHJIT_LOG: {}: cannot be written: {}; set it to a file that user {} can write, or unset it",
                    log_file_, std::strerror(error), geteuid()));
  }
  if (const auto done = record_text(facts.spec, pins); !done)
    facts.notes.push_back("not recorded: " + done.error().message);
}

Result<void> PrepareLog::record_text(const std::string& spec, const Schedule& pins) const {
  return recorder_ ? recorder_->add({.spec = spec, .schedule = print(pins)}) : Result<void>();
}

}  // namespace flashjit

#include "runtime/engine/prepare_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "runtime/bundle/bundle.h"
#include "runtime/store/file_handle.h"

namespace flashjit {
namespace {

std::string log_text(const Result<std::shared_ptr<Kernel>>& kernel, std::string_view spec) {
  if (!kernel) return fmt::format("prepare {}: {}: {}\n", spec, name(kernel.error().kind), kernel.error().message);
  const Facts& facts = (*kernel)->facts();
  const std::string& why = facts.layer.empty() ? facts.miss : facts.layer;
  std::string text = fmt::format("prepare {}: {}{} for {} in {:.1f} ms, schedule {}, {} registers, key {}\n",
                                 facts.spec, facts.source, why.empty() ? "" : fmt::format(" ({})", why), facts.target,
                                 facts.compile_ms, facts.schedule, facts.registers, facts.key.substr(0, 16));
  for (const std::string& note : facts.notes) text += fmt::format("prepare {}: note: {}\n", facts.spec, note);
  return text;
}

}  // namespace

Result<PrepareLog> PrepareLog::open(std::string log_file, const std::string& manifest) {
  PrepareLog log;
  log.log_file_ = std::move(log_file);
  if (!manifest.empty()) {
    FLASHJIT_ASSIGN(recorder, Recorder::open(manifest));
    log.recorder_ = std::move(recorder);
  }
  return log;
}

// Whole lines, appended, so that processes can share the file. Failing to log is no failure.
void PrepareLog::log(const Result<std::shared_ptr<Kernel>>& kernel, std::string_view spec) const {
  if (log_file_.empty()) return;
  const std::string text = log_text(kernel, spec);
  const FileHandle file(log_file_ == "stderr"
                            ? dup(STDERR_FILENO)
                            : ::open(log_file_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (file) [[maybe_unused]]
    const ssize_t written = write(file.get(), text.data(), text.size());
}

void PrepareLog::record(Facts& facts, std::string_view pins) const {
  if (!recorder_) return;
  const auto key = bundle_key(facts.spec, facts.target, pins);
  if (!key) return;
  if (const auto done = recorder_->add({.spec = key->spec, .schedule = key->pins}); !done) {
    facts.notes.push_back("not recorded: " + done.error().message);
  }
}

}  // namespace flashjit

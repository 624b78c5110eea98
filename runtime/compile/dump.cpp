#include "runtime/compile/dump.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>

#include "runtime/engine/fork_safe_mutex.h"
#include "runtime/store/output_file.h"
#include "runtime/store/file_handle.h"

namespace flashjit {
namespace {

class Folder {
 public:
  Folder(const std::string& all, const Compiled& compiled) : all_(all), name_(compiled.key.digest.substr(0, 16)) {
    std::error_code error;
    std::filesystem::create_directories(all, error);
    at_ = FileHandle(::open(all.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!at_) failed_ = invalid(fmt::format("cannot be opened: {}", std::strerror(errno)));
  }
  void write(const std::string& name, std::string_view text) {
    if (failed_) return;  // One reason is enough.
    if (const auto done = write_beneath(at_.get(), fmt::format("{}/{}", name_, name), text); !done)
      failed_ = done.error();
  }
  std::string note() const {
    static ForkSafeMutex mutex;
    static std::set<std::string> said;
    if (!failed_) return {};
    const std::lock_guard lock(mutex);
    if (!said.insert(all_).second) return {};
    return fmt::format("FLASHJIT_DUMP_DIR: {}: {}; set it to a folder that user {} can write, or unset it", all_,
                       failed_->message, geteuid());
  }

 private:
  const std::string all_, name_;
  FileHandle at_;
  std::optional<Error> failed_;
};

}  // namespace

std::string dump_source(const std::string& all, const Compiled& compiled) {
  Folder folder(all, compiled);
  const Plan& plan = compiled.plan;
  folder.write("spec.txt", print(plan.spec) + "\n");
  folder.write("schedule.txt", print(plan.schedule) + "\n");
  folder.write("key.txt", compiled.key.text);
  // The plan was made from pins and a choice. With the choice pinned, the passes do the same again.
  int pass_number = 0;
  const auto sink = [&](std::string_view pass, const std::string& dump) {
    folder.write(fmt::format("ir/{:02}_{}.txt", ++pass_number, pass), dump);
  };
  [[maybe_unused]] const auto again = draft_plan(plan.spec, plan.target, plan.schedule, sink);
  folder.write("program.txt", dump(plan.program));
  for (const SourceFile& file : compiled.source.generated) folder.write(file.name, file.text);
  for (const SourceFile& file : compiled.source.headers) folder.write(file.name, file.text);
  return folder.note();
}

std::string dump_result(const std::string& all, const Compiled& compiled, const Result<void>& outcome,
                        const std::optional<SourceFile>& listing) {
  Folder folder(all, compiled);
  if (!outcome) {
    const Error& error = outcome.error();
    folder.write("error.txt", fmt::format("{}: {}\n{}\n", name(error.kind), error.message, error.detail));
  }
  if (compiled.binary) {
    for (const auto& [name, value] : compiled.binary->facts) folder.write("facts/" + name + ".txt", value + "\n");
    const auto& code = compiled.binary->payload;
    folder.write(compiled.plan.target.gpu ? "kernel.cubin" : "kernel.o",
                 {reinterpret_cast<const char*>(code.data()), code.size()});
  }
  if (listing) folder.write(listing->name, listing->text);
  return folder.note();
}

bool is_dumped_beside_source(std::string_view name) {
  constexpr std::string_view kFiles[] = {"spec.txt",  "schedule.txt", "key.txt",      "program.txt",
                                         "error.txt", "kernel.ptx",   "kernel.cubin", "facts.json"};
  return std::ranges::find(kFiles, name) != std::end(kFiles) || name.starts_with("ir/") || name.starts_with("facts/");
}

}  // namespace flashjit

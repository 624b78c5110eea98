#include "runtime/compile/dump.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace flashjit {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder(const std::string& all, const Compiled& compiled)
      : place_(fs::path(all) / compiled.key.digest.substr(0, 16)) {}
  void write(const std::string& name, std::string_view text) const {
    std::error_code ignored;
    const fs::path file = place_ / name;
    fs::create_directories(file.parent_path(), ignored);
    std::ofstream(file, std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
  }

 private:
  fs::path place_;
};

}  // namespace

void dump_source(const std::string& all, const Compiled& compiled) {
  const Folder folder(all, compiled);
  const Plan& plan = compiled.plan;
  folder.write("spec.txt", print(plan.spec) + "\n");
  folder.write("schedule.txt", print(plan.schedule) + "\n");
  folder.write("key.txt", compiled.key.text);
  // The plan was made from pins and a choice; with the choice pinned the passes do the same again.
  int pass_number = 0;
  const auto sink = [&](std::string_view pass, const std::string& dump) {
    folder.write(fmt::format("ir/{:02}_{}.txt", ++pass_number, pass), dump);
  };
  [[maybe_unused]] const auto again = make_plan(plan.spec, plan.target, plan.schedule, sink);
  folder.write("program.txt", dump(plan.program));
  for (const SourceFile& file : compiled.source.generated) folder.write(file.name, file.text);
  for (const SourceFile& file : compiled.source.headers) folder.write(file.name, file.text);
}

void dump_result(const std::string& all, const Compiled& compiled, const Result<void>& outcome, const Nvrtc* nvrtc,
                 const CompileBounds& bounds) {
  const Folder folder(all, compiled);
  if (!outcome) {
    const Error& error = outcome.error();
    folder.write("error.txt", fmt::format("{}: {}\n{}\n", name(error.kind), error.message, error.detail));
  }
  if (compiled.binary) {
    for (const auto& [name, value] : compiled.binary->facts) folder.write("facts/" + name + ".txt", value + "\n");
    const auto& cubin = compiled.binary->payload;
    folder.write("kernel.cubin", {reinterpret_cast<const char*>(cubin.data()), cubin.size()});
  }
  if (!nvrtc) return;
  // Also of a kernel that was refused: it may be the assembler that did.
  if (const auto ptx = nvrtc->ptx(compiled.source, compiled.plan.target, bounds)) folder.write("kernel.ptx", *ptx);
}

bool is_dumped_beside_source(std::string_view name) {
  constexpr std::string_view kFiles[] = {"spec.txt",  "schedule.txt", "key.txt",      "program.txt",
                                         "error.txt", "kernel.ptx",   "kernel.cubin", "facts.json"};
  return std::ranges::find(kFiles, name) != std::end(kFiles) || name.starts_with("ir/") || name.starts_with("facts/");
}

}  // namespace flashjit

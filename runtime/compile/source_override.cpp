#include "runtime/compile/source_override.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "compiler/spec/text_form.h"
#include "runtime/compile/dump.h"

namespace flashjit {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMostBytes = 16 << 20;

Result<std::string> read_file(const fs::path& path) {
  std::error_code error;
  const std::uintmax_t size = fs::file_size(path, error);
  if (!error && size > kMostBytes)
    return invalid(fmt::format("override_dir: {} has {} bytes, more than {}", path.string(), size, kMostBytes));
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (size > 0) text << file.rdbuf();
  if (error || !file) return Error{ErrorKind::Io, fmt::format("override_dir: {} cannot be read", path.string()), {}};
  return std::move(text).str();
}

// A launch is prepared for this plan. Source that was made for another plan would read past the end of its arguments.
Result<void> check_made_for(const fs::path& folder, const char* file, const std::string& ours) {
  std::error_code ignored;
  if (!fs::is_regular_file(folder / file, ignored)) return {};
  FLASHJIT_ASSIGN(text, read_file(folder / file));
  const std::string theirs = text.substr(0, text.find('\n'));
  if (theirs == ours) return {};
  const std::string what = fs::path(file).stem().string();
  return invalid(fmt::format(
      "override_dir: {} was made for the {} {}, not for {}; give that {}, or write a new folder with flashjit compile --out",
      folder.string(), what, flashjit::quoted(theirs), ours, what));
}

}  // namespace

Result<std::string> override_source(const std::string& folder, const Plan& plan, KernelSource& source) {
  std::error_code error;
  if (!fs::is_directory(folder, error))
    return invalid(fmt::format("override_dir: {} is not a directory", flashjit::quoted(folder)));
  FLASHJIT_TRY(check_made_for(folder, "spec.txt", print(plan.spec)));
  FLASHJIT_TRY(check_made_for(folder, "schedule.txt", print(plan.schedule)));
  std::vector<std::string> known, edited;
  for (const auto* files : {&source.generated, &source.headers}) {
    for (const SourceFile& file : *files) known.push_back(file.name);
  }
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().lexically_relative(folder).generic_string();
    std::error_code ignored;
    if (is_dumped_beside_source(name)) continue;
    const bool is_source = std::ranges::find(known, name) != known.end();
    const bool is_folder = at->is_directory(ignored);
    if (is_folder && is_source) {
      return invalid(fmt::format(
          "override_dir: {} in {} is a folder, and is a file of this kernel's source; remove it or put a file there",
          flashjit::quoted(name), folder));
    }
    if (is_folder) continue;
    if (!is_source || !at->is_regular_file(ignored)) {
      return invalid(fmt::format("override_dir: {} in {} is no source file of this kernel; remove it. The files are {}",
                                 flashjit::quoted(name), folder, fmt::join(known, ", ")));
    }
    FLASHJIT_ASSIGN(text, read_file(at->path()));
    for (auto* files : {&source.generated, &source.headers}) {
      for (SourceFile& file : *files) {
        if (file.name != name || file.text == text) continue;
        file.text = text;
        edited.push_back(name);
      }
    }
  }
  if (error)
    return Error{ErrorKind::Io, fmt::format("override_dir: {} cannot be read: {}", folder, error.message()), {}};
  std::ranges::sort(edited);
  return edited.empty()
             ? fmt::format("override: no file in {} differs from the generated one", folder)
             : fmt::format("override: edited files of {} were compiled: {}", folder, fmt::join(edited, ", "));
}

}  // namespace flashjit

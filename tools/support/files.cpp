#include "tools/support/files.h"

#include <fmt/format.h>

#include <filesystem>
#include <map>

namespace flashjit {
namespace {

// Links are followed, so that two names of one file have one path. The path is empty if there is no file.
std::string canonical_path(const std::string& path) {
  std::error_code error;
  const auto type = std::filesystem::status(path, error).type();
  if (path.empty() || (type != std::filesystem::file_type::not_found && type != std::filesystem::file_type::regular))
    return {};
  auto canonical = std::filesystem::weakly_canonical(std::filesystem::absolute(path, error), error);
  return (error ? std::filesystem::path(path).lexically_normal() : canonical).string();
}

}  // namespace

Result<void> check_files_differ(const std::vector<NamedFile>& written, const std::vector<NamedFile>& read) {
  std::map<std::string, std::string> options;
  for (const NamedFile& file : read) {
    if (const std::string canonical = canonical_path(file.path); !canonical.empty())
      options.emplace(canonical, file.option);
  }
  for (const NamedFile& file : written) {
    const std::string canonical = canonical_path(file.path);
    if (canonical.empty()) continue;
    const auto [before, fresh] = options.emplace(canonical, file.option);
    if (fresh) continue;
    return invalid(
        fmt::format("{}: {} is the file of {}, too; name another one", file.option, file.path, before->second));
  }
  return {};
}

}  // namespace flashjit

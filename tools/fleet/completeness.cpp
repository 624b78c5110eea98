#include "tools/fleet/completeness.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "compiler/spec/text_form.h"
#include "tools/fleet/shard.h"

namespace flashjit {
namespace {

constexpr std::size_t kShownFiles = 6, kShownDigits = 12;

struct Whole {
  std::set<int> numbers;
  std::vector<std::string> files;
};

std::string files_text(const std::vector<std::string>& files) {
  const std::size_t shown = std::min(files.size(), kShownFiles);
  const std::string text =
      fmt::format("{}", fmt::join(files.begin(), files.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  return shown < files.size() ? text + fmt::format(" and {} more", files.size() - shown) : text;
}

std::vector<int> missing_numbers(const std::set<int>& numbers, int count) {
  std::vector<int> missing;
  for (int number = 1; number <= count; ++number)
    if (!numbers.contains(number)) missing.push_back(number);
  return missing;
}

}  // namespace

std::string_view short_digest(std::string_view digest) { return digest.substr(0, kShownDigits); }

Result<void> check_complete(std::span<const HeldShards> held) {
  std::map<std::pair<std::string, int>, Whole> wholes;
  for (const HeldShards& one : held) {
    Whole& whole = wholes[{one.whole, one.count}];
    whole.numbers.insert(one.numbers.begin(), one.numbers.end());
    whole.files.push_back(one.file);
  }
  std::string problems;
  for (const auto& [id, whole] : wholes) {
    const std::vector<int> missing = missing_numbers(whole.numbers, id.second);
    if (missing.empty()) continue;
    problems += fmt::format("{}{} {} of {} {} missing, of {}", problems.empty() ? "" : "; ",
                            missing.size() == 1 ? "shard" : "shards", numbers_text(missing), id.second,
                            missing.size() == 1 ? "is" : "are", id.first);
    if (wholes.size() > 1) problems += fmt::format(", of which there is {}", files_text(whole.files));
  }
  if (problems.empty()) return {};
  if (wholes.size() > 1) problems += "; files of different wholes do not complete each other";
  return Error{
      ErrorKind::NotFound,
      problems + "; run what is missing with --shard and name its files too, or take what there is with --partial",
      {}};
}

}  // namespace flashjit

#include "tools/fleet/tune_shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <tuple>

#include "compiler/spec/text_form.h"
#include "flashjit/flashjit.hpp"
#include "runtime/store/key.h"

namespace flashjit {
namespace {

// The rounds measure a dozen schedules three times, and the default twice in each. The rate is one that a large GPU
// reaches. Slower devices take longer for large problems, because the rounds then count for more than the budget.
constexpr std::uint64_t kBudgetMs = 10000;  // default of --budget
constexpr double kLaunches = 40, kFlopsPerMs = 1e11;
// The gradients of a problem take two and a half times the arithmetic of its forward pass.
constexpr double kBackwardShare = 2.5;

std::string tune_key(const TuneJob& job) { return print(job.spec) + "\n" + print(job.shape); }

bool read_number(std::string_view text, int& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

// Names of devices come from elsewhere, but tabs and ends of lines are separators here.
std::string one_word(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  return text;
}

}  // namespace

std::string print(const TuneShard& s) {
  return fmt::format("{}{}\tended={}\tproblems={}\twhole={}\ttarget={}\tdevice={}\tunits={}\tversion={}", kShardLine,
                     print(s.shard), s.ended ? "yes" : "no", s.problems, s.whole, one_word(s.machine.target),
                     one_word(s.machine.device), s.machine.units, one_word(s.version));
}

std::optional<TuneShard> parse_tune_shard(std::string_view line) {
  if (!line.starts_with(kShardLine)) return std::nullopt;
  std::map<std::string, std::string, std::less<>> fields;
  for (line.remove_prefix(1); !line.empty();) {
    const std::string_view field = line.substr(0, line.find('\t'));
    line.remove_prefix(std::min(line.size(), field.size() + 1));
    const std::size_t equals = field.find('=');
    if (equals == std::string_view::npos) return std::nullopt;
    fields.emplace(field.substr(0, equals), field.substr(equals + 1));
  }
  const auto shard = parse_shard(fields["shard"]);
  TuneShard read{.shard = shard ? *shard : Shard(),
                 .whole = fields["whole"],
                 .machine = {fields["target"], fields["device"], 0, ""},
                 .version = fields["version"],
                 .ended = fields["ended"] == "yes"};
  if (!shard || !read_number(fields["problems"], read.problems) || !read_number(fields["units"], read.machine.units))
    return std::nullopt;
  if (read.whole.empty() || read.machine.device.empty() || (!read.ended && fields["ended"] != "no"))
    return std::nullopt;
  return read;
}

HeldShards held_shards(const TuneShard& s, const std::string& file) {
  return {.file = file,
          .whole = fmt::format("the {} {} on {} ({}, {}) with version {}", counted(s.problems, "problem"),
                               short_digest(s.whole), s.machine.device, s.machine.target, s.machine.units, s.version),
          .count = s.shard.count,
          .numbers = s.ended ? std::vector<int>{s.shard.number} : std::vector<int>()};
}

std::string empty_text(const TuneShard& s) {
  return fmt::format("shard {} is empty: others have the {}", print(s.shard), counted(s.problems, "problem"));
}

std::uint64_t tune_cost(const TuneJob& job) {
  double scores = 0;
  for (std::size_t i = 0; i < job.shape.q.size(); ++i)
    scores += static_cast<double>(job.shape.q[i]) * static_cast<double>(job.shape.k[i]);
  const double flops = 2.0 * (job.spec.d_qk + job.spec.d_v) * job.spec.heads_q * scores;
  const double passes = is_backward(job.spec) ? kLaunches * kBackwardShare : kLaunches;
  return kBudgetMs + static_cast<std::uint64_t>(std::llround(flops / kFlopsPerMs * passes));
}

TuneShard take_shard(const Shard& shard, const Machine& machine, std::vector<TuneJob>& jobs) {
  std::vector<Piece> pieces;
  for (const TuneJob& job : jobs) pieces.push_back({tune_key(job), tune_cost(job)});
  const std::vector<int> numbers = deal(pieces, shard.count);
  std::ranges::sort(pieces, {}, &Piece::key);
  KeyBuilder whole;
  for (const Piece& piece : pieces) whole.field("problem", piece.key);
  TuneShard taken{.shard = shard,
                  .problems = static_cast<int>(jobs.size()),
                  .whole = whole.finish().digest,
                  .machine = machine,
                  .version = version()};
  std::vector<TuneJob> own;
  for (std::size_t i = 0; i < jobs.size(); ++i)
    if (numbers[i] == shard.number) own.push_back(std::move(jobs[i]));
  jobs = std::move(own);
  return taken;
}

std::vector<std::string> with_shard(const std::vector<std::string>& lines, const TuneShard& shard) {
  const auto machine_of = [](const TuneShard& s) {
    return std::tuple(s.shard.number, s.shard.count, s.machine.target, one_word(s.machine.device), s.machine.units);
  };
  std::vector<std::string> all;
  for (const std::string& line : lines) {
    const auto other = parse_tune_shard(line);
    if (!other || machine_of(*other) != machine_of(shard)) all.push_back(line);
  }
  all.push_back(print(shard));
  return all;
}

}  // namespace flashjit

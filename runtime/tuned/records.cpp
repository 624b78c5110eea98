#include "runtime/tuned/records.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <tuple>

#include "compiler/choice/candidates.h"
#include "compiler/families/family.h"
#include "flashjit/flashjit.hpp"
#include "runtime/driver/driver.h"
#include "runtime/store/store.h"
#include "runtime/store/directory.h"
#include "runtime/store/input_file.h"
#include "runtime/store/output_file.h"
#include "runtime/tuned/embedded.h"

namespace flashjit {
namespace {

constexpr double kFarthestClass = 2;          // sum of doublings over all sizes
constexpr std::size_t kMostBytes = 64 << 20;  // limit for a file of records
constexpr const char* kFile = "/v1/tuned.txt";
constexpr const char* kHeader =
    "# Records of `flashjit tune`, one on each line, fields separated by tabs. Lines may be removed, and merged from elsewhere\n"
    "# with `flashjit tune --merge FILE`.\n";

// Tabs and ends of lines separate fields and records, and both can stand in the text of a mask.
std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\\\";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

std::string unescape(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      out += text[i];
      continue;
    }
    const char c = text[++i];
    out += c == 't' ? '\t' : c == 'n' ? '\n' : c;
  }
  return out;
}

// Returns the spec of a record's line, as it is written there.
std::string_view spec_of(std::string_view line) {
  while (!line.empty()) {
    const std::string_view field = line.substr(0, line.find('\t'));
    if (field.starts_with("spec=")) return field.substr(5);
    line.remove_prefix(std::min(line.size(), field.size() + 1));
  }
  return {};
}

std::optional<double> positive(std::string_view text) {
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size() || !std::isfinite(value) || value <= 0)
    return std::nullopt;
  return value;
}

double apart(std::int64_t a, std::int64_t b) {
  return std::abs(std::log2(static_cast<double>(std::max<std::int64_t>(a, 1))) -
                  std::log2(static_cast<double>(std::max<std::int64_t>(b, 1))));
}

// A newer record replaces an older one with the same identity.
auto identity(const TunedRecord& r) {
  return std::tuple(r.spec, r.machine.target, r.machine.device, r.machine.units, r.shape.q_len, r.shape.k_len,
                    r.shape.b);
}

Result<std::string> read_text(const std::string& file) {
  const FileHandle handle(::open(file.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));  // A FIFO must not make us wait.
  struct stat info;
  if (!handle || fstat(handle.get(), &info) != 0) {
    const ErrorKind kind = errno == ENOENT ? ErrorKind::NotFound : ErrorKind::Io;
    return Error{kind, fmt::format("{}: cannot be read: {}", file, std::strerror(errno)), {}};
  }
  if (!S_ISREG(info.st_mode))
    return Error{ErrorKind::Io,
                 fmt::format("{}: this is no file but a {}; tuning records are a file, as --export writes it", file,
                             kind_of_file(info.st_mode)),
                 {}};
  if (static_cast<std::uint64_t>(info.st_size) > kMostBytes)
    return Error{
        ErrorKind::Io, fmt::format("{}: has more than {} MB, the most that records have", file, kMostBytes >> 20), {}};
  std::string text(static_cast<std::size_t>(info.st_size), '\0');
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t got = ::read(handle.get(), text.data() + done, text.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += static_cast<std::size_t>(got);
  }
  text.resize(done);
  return text;
}

// Returns the name of the first processor from a line such as "model name : AMD EPYC ...".
std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

}  // namespace

double doublings_apart(const Shape& a, const Shape& b) {
  return apart(a.q_len, b.q_len) + apart(a.k_len, b.k_len) + apart(a.b, b.b);
}

Machine gpu_machine(const std::string& target, const GpuInfo& gpu, int driver_version) {
  return {target, gpu.name, gpu.sm_count, fmt::format("{}.{}", driver_version / 1000, driver_version % 1000 / 10)};
}

Machine host_machine(const std::string& target, int threads) { return {target, processor_name(), threads, ""}; }

bool TunedRecord::operator==(const TunedRecord& other) const { return print(*this) == print(other); }

std::string print(const TunedRecord& r) {
  return fmt::format(
      "spec={}\ttarget={}\tdevice={}\tunits={}\tdriver={}\tversion={}\tshape={}\tschedule={}\tus={:.3f}\tus_low={:.3f}\t"
      "us_high={:.3f}\tdefault_us={:.3f}\tdate={}",
      escape(r.spec), escape(r.machine.target), escape(r.machine.device), r.machine.units, escape(r.machine.driver),
      escape(r.version), print(r.shape), print(r.schedule), r.us, r.us_low, r.us_high, r.default_us, escape(r.date));
}

std::optional<TunedRecord> parse_tuned_record(std::string_view line) {
  std::map<std::string, std::string, std::less<>> fields;
  while (!line.empty()) {
    const std::string_view field = line.substr(0, line.find('\t'));
    line.remove_prefix(std::min(line.size(), field.size() + 1));
    const std::size_t equals = field.find('=');
    if (equals == std::string_view::npos) return std::nullopt;
    fields.emplace(field.substr(0, equals), unescape(field.substr(equals + 1)));
  }
  TunedRecord r{.spec = fields["spec"],
                .machine = {fields["target"], fields["device"], 0, fields["driver"]},
                .version = fields["version"],
                .date = fields["date"]};
  const auto units = positive(fields["units"]), us = positive(fields["us"]), low = positive(fields["us_low"]),
             high = positive(fields["us_high"]), untuned = positive(fields["default_us"]);
  const auto shape = parse_shape_hint(fields["shape"]);
  const auto schedule = parse_schedule(fields["schedule"]);
  // The date comes last: a line that was cut off does not have it.
  if (!units || *units > 1e6 || !us || !low || !high || !untuned || !shape || !schedule || r.date.empty())
    return std::nullopt;
  // The spec is compared as text when it is looked up; reading every one of them here would cost each engine
  // milliseconds.
  if (!schedule->family || r.machine.device.empty() || r.spec.empty()) return std::nullopt;
  r.machine.units = static_cast<int>(*units);
  r.us = *us, r.us_low = *low, r.us_high = *high, r.default_us = *untuned;
  r.shape = *shape;
  r.schedule = *schedule;
  return r;
}

std::vector<TunedRecord> parse_tuned_records(std::string_view text, std::string_view spec) {
  std::vector<TunedRecord> records;
  const std::string written = escape(spec);
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.empty() || line.front() == '#' || (!spec.empty() && spec_of(line) != written)) continue;
    if (auto record = parse_tuned_record(line)) records.push_back(std::move(*record));
  }
  return records;
}

Result<Shape> parse_shape_hint(std::string_view text) {
  Shape shape{0, 0, 0};
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    std::int64_t* const into = item.starts_with("b=")   ? &shape.b
                               : item.starts_with("q=") ? &shape.q_len
                               : item.starts_with("k=") ? &shape.k_len
                                                        : nullptr;
    std::int64_t value = 0;
    const char* const end = item.data() + item.size();
    if (!into || item.size() < 3 || std::from_chars(item.data() + 2, end, value).ptr != end || value < 1 ||
        value > SizeBound::kLargest) {
      return invalid(fmt::format("shape: '{}' is not a size from 1 to {}; write b=4,q=4096,k=4096", item.substr(0, 40),
                                 SizeBound::kLargest));
    }
    if (*into != 0) return invalid(fmt::format("shape: {} is given twice", item.substr(0, 1)));
    *into = value;
  }
  shape.b = std::max<std::int64_t>(shape.b, 1);
  if (shape.q_len == 0) return invalid("shape: q is missing; write b=4,q=4096,k=4096");
  if (shape.k_len == 0) shape.k_len = shape.q_len;
  return shape;
}

Shape rounded(const Shape& shape) {
  const auto up = [](std::int64_t size) {
    return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1))));
  };
  return {up(shape.b), up(shape.q_len), up(shape.k_len)};
}

std::string_view changed_numerics(const Schedule& a, const Schedule& b) {
  if (a.family != b.family) return "family";
  if (a.tile_kv != b.tile_kv) return "tile_kv";
  if (a.reference != b.reference) return "reference";
  if (a.row_sum != b.row_sum) return "row_sum";
  if (a.keys != b.keys) return "keys";
  if (a.family && a.family->splits_keys) {
    if (a.warps != b.warps) return "warps";
    if (a.blocks_per_sm != b.blocks_per_sm) return "blocks_per_sm";
  }
  return {};
}

const TunedRecord* find_record(std::span<const TunedRecord> records, const AttentionSpec& spec, const Machine& machine,
                               const Target& target, const std::optional<Shape>& shape, const Schedule& untuned) {
  const std::string text = print(spec);
  const Shape wanted = rounded(shape.value_or(assumed_shape(spec)));
  const double farthest = shape ? kFarthestClass : 0;
  const TunedRecord* best = nullptr;
  std::tuple<double, double, bool, std::string> least_rank;
  for (const TunedRecord& record : records) {
    if (record.spec != text || record.machine.target != machine.target || record.machine.device != machine.device ||
        record.machine.units != machine.units) {
      continue;
    }
    const double away = doublings_apart(wanted, rounded(record.shape));
    if (away > farthest || !is_legal(spec, target, record.schedule)) continue;
    if (spec.numerics != Numerics::Fast && !changed_numerics(untuned, record.schedule).empty()) continue;
    const bool inherited = record.machine.driver != machine.driver || record.version != version();
    std::tuple rank{away, doublings_apart(wanted, record.shape), inherited, print(record)};
    if (best && least_rank <= rank) continue;
    best = &record;
    least_rank = std::move(rank);
  }
  return best;
}

std::vector<TunedRecord> merge(const std::vector<TunedRecord>& records, const std::vector<TunedRecord>& news) {
  std::map<decltype(identity(TunedRecord())), TunedRecord> all;
  for (const TunedRecord& record : records) all.insert_or_assign(identity(record), record);
  for (const TunedRecord& record : news) all.insert_or_assign(identity(record), record);
  std::vector<TunedRecord> out;
  for (auto& [key, record] : all) out.push_back(std::move(record));
  return out;
}

std::vector<TunedRecord> built_in_records() {
  std::vector<TunedRecord> records;
  for (const EmbeddedFile& file : embedded_tuned_records()) {
    for (TunedRecord& record : parse_tuned_records(file.text)) records.push_back(std::move(record));
  }
  return records;
}

Result<RecordFile> read_records(const std::string& file) {
  FLASHJIT_ASSIGN(text, read_text(file));
  RecordFile found{.records = parse_tuned_records(text)};
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (line.starts_with(kShardLine)) found.shards.emplace_back(line);
    found.others += line.find_first_not_of(" \t\r") != line.npos && line.front() != '#' && !parse_tuned_record(line);
  }
  if (!found.records.empty() || found.others == 0) return found;
  return invalid(
      fmt::format("{}: none of its {} lines is a tuning record; name a file that `flashjit tune` wrote with "
                  "--records or --export",
                  file, found.others));
}

Result<void> write_records(const std::string& file, const std::vector<TunedRecord>& records,
                           const std::vector<std::string>& shards) {
  std::string text = kHeader;
  for (const std::string& shard : shards) text += shard + "\n";
  for (const TunedRecord& record : records) text += print(record) + "\n";
  return write_output(file, {text}, {.fresh = 0600, .lasting = true});
}

std::string stored_record_lines(const std::string& store_path) {
  std::string lines;
  for (const EmbeddedFile& file : embedded_tuned_records()) lines.append(file.text) += '\n';
  auto path = parse_store_path(store_path);
  if (!path) return lines;
  const auto add = [&](const std::string& directory, StoreDirectory::Access access) {
    // Most stores have no records. Reading comes first, because checking a directory takes twenty system calls.
    const auto own = read_text(directory + kFile);
    if (own && StoreDirectory::open(directory, access)) lines.append(*own) += '\n';
  };
  for (auto layer = path->layers.rbegin(); layer != path->layers.rend(); ++layer)
    add(*layer, StoreDirectory::Access::Layer);
  add(path->own, StoreDirectory::Access::Existing);
  return lines;
}

std::vector<TunedRecord> stored_records(const std::string& store_path) {
  return merge({}, parse_tuned_records(stored_record_lines(store_path)));
}

Result<void> store_records(const std::string& store_path, const std::vector<TunedRecord>& news) {
  FLASHJIT_ASSIGN(path, parse_store_path(store_path));
  FLASHJIT_ASSIGN(directory, StoreDirectory::open(path.own));
  // A file system without locks is used without one. The worst that can happen is that a record is lost.
  const auto lock = directory.lock(std::string(64, '7'), std::chrono::seconds(10));
  std::vector<TunedRecord> records;
  auto old = read_text(path.own + kFile);
  if (old) records = parse_tuned_records(*old);
  if (!old && old.error().kind != ErrorKind::NotFound) return old.error();
  return write_records(path.own + kFile, merge(records, news));
}

}  // namespace flashjit

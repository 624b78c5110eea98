#include "runtime/bundle/manifest.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "runtime/store/directory.h"
#include "runtime/store/input_file.h"
#include "runtime/store/output_file.h"
#include "runtime/store/temporary_file.h"

namespace flashjit {
namespace {

constexpr std::string_view kSeparator = ";;";  // No expression and no name contains it, and hence no spec.
constexpr std::size_t kMaxManifestBytes = std::size_t{64} << 20;
constexpr std::string_view kExpected = "a manifest is a file of lines, or - for standard input";
constexpr std::chrono::seconds kLockWait{2};
constexpr std::string_view kCannotRecord = "a line cannot be recorded";

Error io(const std::string& path, std::string_view what, int code) {
  return {ErrorKind::Io, fmt::format("{}: {}: {}", path, what, std::strerror(code)), {}};
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const std::size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

// Cuts `text` at the first `separator`, which is left out; the rest stays in `text`.
std::string_view cut(std::string_view& text, std::string_view separator) {
  const std::size_t end = text.find(separator);
  const std::string_view first = text.substr(0, end);
  text = end == std::string_view::npos ? std::string_view() : text.substr(end + separator.size());
  return trimmed(first);
}

Result<ManifestLine> parse_line(std::string_view text, std::string_view location) {
  ManifestLine line;
  line.spec = cut(text, kSeparator);
  if (line.spec.empty()) return invalid(fmt::format("{}: the spec is missing before ';;'", location));
  while (!trimmed(text).empty()) {
    std::string_view value = cut(text, kSeparator);
    const std::string_view name = cut(value, "=");
    value = trimmed(value);
    const bool is_arch = name == "arch";
    if (!is_arch && name != "schedule") {
      return invalid(
          fmt::format("{}: after ';;' come schedule=PINS and arch=TARGET,..., each at most once; '{}' is neither",
                      location, name.substr(0, 100)));
    }
    const std::string_view example = is_arch ? "arch=sm_80,sm_90a" : "schedule=tile_q=64";
    if (value.empty())
      return invalid(fmt::format("{}: {}= has no value; write {} or leave it out", location, name, example));
    if (is_arch ? !line.archs.empty() : !line.schedule.empty())
      return invalid(fmt::format("{}: {}= is given twice; write it once: {}", location, name, example));
    if (!is_arch) {
      line.schedule = value;
      continue;
    }
    for (bool more = true; more;) {
      more = value.find(',') != std::string_view::npos;
      line.archs.emplace_back(cut(value, ","));
      if (line.archs.back().empty())
        return invalid(fmt::format("{}: arch= has a comma too many; write {}", location, example));
    }
  }
  return line;
}

// A lock of flock() belongs to the opened file, so each thread opens the file for itself to make threads wait for each
// other. A path that is no regular file is only written to. A FIFO that nobody reads is an error, because a program
// must not wait here.
FileHandle open_for_recording(const std::string& path) {
  struct stat info;
  const bool is_file = stat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode);
  const int how = is_file ? O_RDWR | O_CREAT : O_WRONLY | O_NONBLOCK;
  return FileHandle(::open(path.c_str(), how | O_APPEND | O_CLOEXEC, 0644));
}

bool has_line(std::string_view text, std::string_view line) {
  while (!text.empty()) {
    if (cut(text, "\n") == line) return true;
  }
  return false;
}

}  // namespace

Result<std::vector<ManifestLine>> parse_manifest(std::string_view text, std::string_view name) {
  std::vector<ManifestLine> lines;
  for (int number = 1; !text.empty(); ++number) {
    const std::string_view row = cut(text, "\n");
    if (row.empty() || row.front() == '#') continue;
    FLASHJIT_ASSIGN(line, parse_line(row, fmt::format("{}:{}", name, number)));
    line.number = number;
    lines.push_back(std::move(line));
  }
  return lines;
}

Result<std::vector<ManifestLine>> read_manifest(const std::string& path) {
  FLASHJIT_ASSIGN(file, open_input(path, kExpected));
  FLASHJIT_ASSIGN(text, read_input(file.get(), path, kMaxManifestBytes, kExpected));
  return parse_manifest(text, path);
}

std::string print(const ManifestLine& line) {
  std::string text = line.spec;
  if (!line.schedule.empty()) text += " ;; schedule=" + line.schedule;
  if (!line.archs.empty()) text += fmt::format(" ;; arch={}", fmt::join(line.archs, ","));
  return text;
}

Result<Recorder> Recorder::open(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) == 0 && S_ISFIFO(info.st_mode))
    return Recorder(path);  // Closing it would end its reader.
  FLASHJIT_TRY(make_folders_above(path));
  const FileHandle file = open_for_recording(path);
  if (!file) return io(path, "cannot be opened for recording", errno);
  return Recorder(path);
}

Result<void> Recorder::add(const ManifestLine& line) const {
  const FileHandle file = open_for_recording(path_);
  if (!file) return io(path_, "cannot be opened for recording", errno);
  const auto lock_until = std::chrono::steady_clock::now() + kLockWait;
  // A stopped process must not stop all others. Without the lock a line may come twice, which does no harm.
  while (flock(file.get(), LOCK_EX | LOCK_NB) != 0 && std::chrono::steady_clock::now() < lock_until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  struct stat info;
  const bool is_file = fstat(file.get(), &info) == 0 && S_ISREG(info.st_mode);
  FLASHJIT_ASSIGN(
      text, is_file ? read_input(file.get(), path_, kMaxManifestBytes, kExpected) : Result<std::string>(std::string()));
  const std::string wanted = print(line);
  if (has_line(text, wanted)) return {};
  // A last line that somebody left unfinished stays a line of its own.
  const std::string added = (text.empty() || text.ends_with('\n') ? "" : "\n") + wanted + "\n";
  if (write_all(file.get(), added.data(), added.size())) return {};
  const int code = errno;
  [[maybe_unused]] const int cut_off = ftruncate(file.get(), static_cast<off_t>(text.size()));
  return io(path_, kCannotRecord, code);
}

}  // namespace flashjit

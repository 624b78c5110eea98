#include "tools/command/tune_journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "runtime/store/temporary_file.h"

namespace flashjit {
namespace {

Error io(const std::string& path, const char* what) {
  return {ErrorKind::Io, fmt::format("{}: the journal cannot be {}: {}", path, what, std::strerror(errno)), {}};
}

Result<std::string> read_all(int file, const std::string& path) {
  std::string text;
  char buffer[1 << 16];
  while (true) {
    const ssize_t got = ::read(file, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io(path, "read");
    if (got == 0) return text;
    text.append(buffer, static_cast<std::size_t>(got));
  }
}

Result<void> append(int file, const std::string& path, const std::string& text) {
  if (!write_all(file, text.data(), text.size())) return io(path, "written");
  if (::fdatasync(file) != 0) return io(path, "synchronised");
  return {};
}

// The journal's name can be guessed, and others may write its folder. A file that they put there is neither believed
// nor written.
Result<void> check_own(int file, const std::string& path) {
  struct stat info;
  if (fstat(file, &info) != 0) return io(path, "opened");
  if (S_ISREG(info.st_mode) && info.st_uid == geteuid() && info.st_nlink == 1) return {};
  return Error{ErrorKind::Io,
               fmt::format("{}: there is something that is no journal of user {}; remove it, or give --records in a "
                           "folder of your own",
                           path, geteuid()),
               {}};
}

// Returns whether `json` has all fields of the example, of the same types. A null of the example is a number that may
// not be known.
bool is_like(const Json& json, const Json& example) {
  if (example.is_null()) return json.is_null() || json.is_number();
  if (example.is_number()) return json.is_number();
  if (json.type() != example.type()) return false;
  if (example.is_array())
    return example.empty() || std::ranges::all_of(json, [&](const Json& item) { return is_like(item, example[0]); });
  if (!example.is_object()) return true;
  return std::ranges::all_of(example.items(), [&](const auto& field) {
    return json.contains(field.key()) && is_like(json[field.key()], field.value());
  });
}

}  // namespace

Result<Journal> Journal::open(const std::string& path, const Json& example) {
  Journal journal;
  journal.path_ = path;
  journal.file_ =
      FileHandle(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600));
  if (!journal.file_) return io(path, "opened");
  FLASHJIT_TRY(check_own(journal.file_.get(), path));
  if (::flock(journal.file_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return Error{
        ErrorKind::Io, fmt::format("{}: the same tuning is already running; wait for it, or end it", path), {}};
  }
  FLASHJIT_ASSIGN(text, read_all(journal.file_.get(), path));
  if (!text.empty() && text.back() != '\n') FLASHJIT_TRY(append(journal.file_.get(), path, "\n"));
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    const Json entry = Json::parse(line, nullptr, false);
    if (is_like(entry, {{"key", ""}, {"result", example}})) {
      journal.done_[entry["key"].get<std::string>()] = entry["result"];
    } else if (!line.empty()) {
      ++journal.strange_;
    }
  }
  return journal;
}

const Json* Journal::find(const std::string& key) const {
  const auto found = done_.find(key);
  return found == done_.end() ? nullptr : &found->second;
}

Result<void> Journal::add(const std::string& key, const Json& result) {
  Json entry;
  entry["key"] = key;
  entry["result"] = result;
  return append(file_.get(), path_, entry.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

void Journal::remove() { ::unlink(path_.c_str()); }

}  // namespace flashjit

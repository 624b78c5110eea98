#include "tools/command/tune_journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <fmt/format.h>

namespace flashjit {
namespace {

Error io(const std::string& path, const char* what) {
  return {ErrorKind::Io, fmt::format("{}: the journal cannot be {}: {}", path, what, std::strerror(errno)), {}};
}

Result<std::string> read_all(int file, const std::string& path) {
  std::string text;
  char part[1 << 16];
  while (true) {
    const ssize_t got = ::read(file, part, sizeof(part));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io(path, "read");
    if (got == 0) return text;
    text.append(part, static_cast<std::size_t>(got));
  }
}

Result<void> append(int file, const std::string& path, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t wrote = ::write(file, text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return io(path, "written");
    done += static_cast<std::size_t>(wrote);
  }
  if (::fdatasync(file) != 0) return io(path, "synchronised");
  return {};
}

}  // namespace

Result<Journal> Journal::open(const std::string& path) {
  Journal journal;
  journal.path_ = path;
  journal.file_ = FileHandle(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!journal.file_) return io(path, "opened");
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
    if (entry.is_object() && entry.contains("key") && entry["key"].is_string() && entry.contains("result") &&
        entry["result"].is_object()) {
      journal.done_[entry["key"].get<std::string>()] = entry["result"];
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

#include "runtime/store/trusted_list.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "runtime/store/trusted_path.h"

namespace flashjit {
namespace {

constexpr std::size_t kMaxListBytes = std::size_t{64} << 20, kHexDigits = 2 * sizeof(Sha256::Digest);

// Parses a line "<digits>  name", or "<digits> *name" for files that were read as binary. sha256sum begins the line
// with a backslash if the name has one.
bool parse_line(std::string_view line, Sha256::Digest& digest) {
  if (line.starts_with('\\')) line.remove_prefix(1);
  if (line.size() < kHexDigits || (line.size() > kHexDigits && line[kHexDigits] != ' ')) return false;
  for (std::size_t i = 0; i < digest.size(); ++i) {
    const char* const begin = line.data() + 2 * i;
    if (const auto parsed = std::from_chars(begin, begin + 2, digest[i], 16); parsed.ptr != begin + 2) return false;
  }
  return true;
}

Result<TrustedList> read_list(const std::string& path) {
  const auto io = [&](std::string_view what) {
    return Error{ErrorKind::Io, fmt::format("{}: the list of trusted files {}", path, what), {}};
  };
  const FileHandle file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info;
  if (!file || fstat(file.get(), &info) != 0) return io(fmt::format("cannot be opened: {}", strerror(errno)));
  FLASHJIT_TRY(check_owner(file.get(), path, Trust::OwnOrRoot));
  if (!S_ISREG(info.st_mode)) return io("is no file");
  if (static_cast<std::uint64_t>(info.st_size) > kMaxListBytes)
    return io(fmt::format("is longer than {} bytes", kMaxListBytes));
  std::string text(static_cast<std::size_t>(info.st_size), '\0');
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t got = ::read(file.get(), text.data() + done, text.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0)
      return io(got < 0 ? fmt::format("cannot be read: {}", strerror(errno)) : "became shorter while it was read");
    done += static_cast<std::size_t>(got);
  }
  return TrustedList::parse(text, path);
}

}  // namespace

Result<TrustedList> TrustedList::parse(std::string_view text, std::string_view path) {
  TrustedList list;
  list.path_ = path;
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with('#')) continue;
    if (Sha256::Digest digest; parse_line(line, digest)) {
      list.digests_.push_back(digest);
    } else {
      return invalid(fmt::format("{}:{}: this is no line of sha256sum: 64 hexadecimal digits, two spaces and a name",
                                 path, number));
    }
  }
  std::ranges::sort(list.digests_);
  return list;
}

Result<std::shared_ptr<const TrustedList>> TrustedList::read(const std::string& path, std::string_view setting) {
  if (path.empty()) return std::shared_ptr<const TrustedList>();
  auto list = read_list(path);
  if (list) return std::make_shared<const TrustedList>(std::move(*list));
  Error error = list.error();
  error.message = fmt::format("{}: {}; name what sha256sum wrote, or leave it unset", setting, error.message);
  return error;
}

bool TrustedList::has(const Sha256::Digest& file) const { return std::ranges::binary_search(digests_, file); }

}  // namespace flashjit

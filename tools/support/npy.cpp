#include "tools/support/npy.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "runtime/store/input_file.h"
#include "runtime/store/output_file.h"

namespace flashjit {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kMaxHeader = 1 << 16;                // NumPy writes about 120 bytes.
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 40;  // It keeps every product below away from overflow.
constexpr int kMaxRank = 8;

struct TypeRow {
  NpyType type;
  const char* descr;
  int size;
  const char* name;  // NumPy's name; its short i8 is an int of 8 bytes
};
constexpr TypeRow kTypes[] = {
    {NpyType::F16, "<f2", 2, "float16"}, {NpyType::BF16, "<V2", 2, "bfloat16 (V2)"},
    {NpyType::F32, "<f4", 4, "float32"}, {NpyType::F64, "<f8", 8, "float64"},
    {NpyType::I32, "<i4", 4, "int32"},   {NpyType::I64, "<i8", 8, "int64"},
    {NpyType::U32, "<u4", 4, "uint32"},  {NpyType::U16, "<u2", 2, "uint16"},
    {NpyType::U8, "|u1", 1, "uint8"},    {NpyType::I8, "|i1", 1, "int8"},
};

const TypeRow& row_of(NpyType type) {
  for (const TypeRow& row : kTypes) {
    if (row.type == type) return row;
  }
  return kTypes[0];
}

// The header is a Python dictionary literal with three known keys. Only these are read, and nothing is evaluated.
class Header {
 public:
  Header(std::string_view text) : text_(text) {}

  std::optional<std::string_view> string_value(std::string_view key) {
    if (!go_to(key)) return std::nullopt;
    if (at_ >= text_.size() || (text_[at_] != '\'' && text_[at_] != '"')) return std::nullopt;
    const char quote = text_[at_];
    const std::size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) return std::nullopt;
    return text_.substr(at_ + 1, end - at_ - 1);
  }

  std::optional<bool> bool_value(std::string_view key) {
    if (!go_to(key)) return std::nullopt;
    if (text_.substr(at_).starts_with("True")) return true;
    if (text_.substr(at_).starts_with("False")) return false;
    return std::nullopt;
  }

  std::optional<std::vector<std::int64_t>> tuple_value(std::string_view key) {
    if (!go_to(key) || at_ >= text_.size() || text_[at_] != '(') return std::nullopt;
    ++at_;
    std::vector<std::int64_t> values;
    while (true) {
      skip_blanks();
      if (at_ < text_.size() && text_[at_] == ')') return values;
      std::int64_t value = 0;
      const char* end = text_.data() + text_.size();
      const auto [stop, error] = std::from_chars(text_.data() + at_, end, value);
      if (error != std::errc() || values.size() > kMaxRank) return std::nullopt;
      values.push_back(value);
      at_ = static_cast<std::size_t>(stop - text_.data());
      skip_blanks();
      if (at_ >= text_.size()) return std::nullopt;
      if (text_[at_] == ',') {
        ++at_;
      } else if (text_[at_] != ')') {
        return std::nullopt;
      }
    }
  }

 private:
  bool go_to(std::string_view key) {
    const std::size_t start = text_.find(fmt::format("'{}'", key));
    if (start == std::string_view::npos) return false;
    at_ = start + key.size() + 2;
    skip_blanks();
    if (at_ >= text_.size() || text_[at_] != ':') return false;
    ++at_;
    skip_blanks();
    return true;
  }
  void skip_blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

Result<NpyType> type_of(const std::string& label, std::string_view descr) {
  if (descr == "|V2") return NpyType::BF16;
  if (descr == "|b1") return NpyType::U8;
  for (const TypeRow& row : kTypes) {
    if (descr == row.descr) return row.type;
  }
  const std::string shown(descr.substr(0, 32));
  if (descr.starts_with('>')) {
    return invalid(
        fmt::format("{}: dtype '{}' is big-endian; save it with array.astype('<{}')", label, shown, shown.substr(1)));
  }
  std::string names;
  for (const TypeRow& row : kTypes) names += (names.empty() ? "" : ", ") + std::string(row.name);
  return invalid(
      fmt::format("{}: dtype '{}' is not read; use one of {}; uint16 also has bfloat16", label, shown, names));
}

Error io_error(const std::string& path, const char* what) {
  const int code = errno;
  return {code == ENOENT ? ErrorKind::NotFound : ErrorKind::Io,
          fmt::format("{}: {}: {}", path, what, std::strerror(code)),
          {}};
}

std::size_t read_u(const std::vector<std::uint8_t>& file, std::size_t at, int bytes) {
  std::size_t value = 0;
  for (int i = 0; i < bytes; ++i) value |= std::size_t{file[at + i]} << (8 * i);
  return value;
}

}  // namespace

int size_of(NpyType type) { return row_of(type).size; }
const char* name(NpyType type) { return row_of(type).name; }

std::int64_t NpyArray::elements() const {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

Result<NpyArray> parse_npy(const std::string& label, const std::vector<std::uint8_t>& file) {
  if (file.size() < 10 || std::memcmp(file.data(), kMagic.data(), kMagic.size()) != 0) {
    return invalid(fmt::format("{}: not a .npy file (it does not begin with \\x93NUMPY)", label));
  }
  const int version = file[6];
  if (version != 1 && version != 2) {
    return invalid(fmt::format("{}: .npy version {} is not read; save it as version 1 or 2", label, version));
  }
  const std::size_t header_at = version == 1 ? 10 : 12;
  if (file.size() < header_at) return invalid(fmt::format("{}: the file ends inside its header", label));
  const std::size_t header_bytes = read_u(file, 8, version == 1 ? 2 : 4);
  if (header_bytes > kMaxHeader) {
    return invalid(
        fmt::format("{}: a header of {} bytes is above {}, the most that is read", label, header_bytes, kMaxHeader));
  }
  if (file.size() - header_at < header_bytes) return invalid(fmt::format("{}: the file ends inside its header", label));
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + header_at, header_bytes);

  Header header(text);
  const auto descr = header.string_value("descr");
  const auto fortran = header.bool_value("fortran_order");
  auto shape = header.tuple_value("shape");
  if (!descr || !fortran || !shape) {
    return invalid(fmt::format(
        "{}: the header needs 'descr' (a string), 'fortran_order' and 'shape' (at most {} integers)", label, kMaxRank));
  }
  FLASHJIT_ASSIGN(type, type_of(label, *descr));
  if (*fortran && shape->size() > 1) {
    return invalid(fmt::format("{}: the array is in Fortran order; save numpy.ascontiguousarray(array)", label));
  }
  if (shape->size() > kMaxRank)
    return invalid(fmt::format("{}: {} dimensions are above {}", label, shape->size(), kMaxRank));

  std::int64_t bytes = size_of(type);
  bool empty = false;
  for (const std::int64_t extent : *shape) {
    if (extent < 0) return invalid(fmt::format("{}: shape has the negative extent {}", label, extent));
    if (extent == 0) empty = true;
    if (extent > 0 && bytes > kMaxBytes / extent) {
      return invalid(fmt::format("{}: shape multiplies to more than {} bytes", label, kMaxBytes));
    }
    if (extent > 0) bytes *= extent;
  }
  if (empty) bytes = 0;
  const std::size_t there = file.size() - header_at - header_bytes;
  if (there != static_cast<std::size_t>(bytes)) {
    return invalid(fmt::format("{}: shape and dtype need {} bytes of data, the file has {}", label, bytes, there));
  }
  NpyArray array;
  array.type = type;
  array.shape = std::move(*shape);
  array.bytes.assign(file.end() - static_cast<std::ptrdiff_t>(there), file.end());
  return array;
}

Result<NpyArray> read_npy(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // A pipe without a writer must not hang us.
  if (fd < 0) return io_error(path, "cannot be opened");
  struct stat status{};
  const bool known = ::fstat(fd, &status) == 0;
  if (!known || !S_ISREG(status.st_mode)) {
    ::close(fd);
    return invalid(fmt::format("{}: not a regular file but a {}; name one that numpy.save wrote", path,
                               kind_of_file(status.st_mode)));
  }
  if (status.st_size > kMaxBytes) {
    ::close(fd);
    return invalid(
        fmt::format("{}: {} bytes are above {}", path, static_cast<std::int64_t>(status.st_size), kMaxBytes));
  }
  std::vector<std::uint8_t> file(static_cast<std::size_t>(status.st_size));
  std::size_t at = 0;
  while (at < file.size()) {
    const ssize_t got = ::read(fd, file.data() + at, file.size() - at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      Error error = io_error(path, "cannot be read");
      ::close(fd);
      return error;
    }
    if (got == 0) break;  // The file is shorter than it was a moment ago; parse_npy reports that.
    at += static_cast<std::size_t>(got);
  }
  file.resize(at);
  ::close(fd);
  return parse_npy(path, file);
}

Result<void> write_npy(const std::string& path, const NpyArray& array) {
  std::string shape;
  for (const std::int64_t extent : array.shape) shape += fmt::format("{},", extent);
  std::string header =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", row_of(array.type).descr, shape);
  header.append(63 - (10 + header.size()) % 64, ' ');  // The data begins at a multiple of 64, as NumPy writes it.
  header += '\n';
  std::string front(kMagic);
  front += {'\1', '\0', static_cast<char>(header.size() & 255), static_cast<char>(header.size() >> 8)};
  front += header;

  return write_output(path, {front, {reinterpret_cast<const char*>(array.bytes.data()), array.bytes.size()}});
}

NpyType npy_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::F16: return NpyType::F16;
    case Dtype::BF16: return NpyType::BF16;
    case Dtype::F32: return NpyType::F32;
    case Dtype::I32: return NpyType::I32;
    case Dtype::I64: return NpyType::I64;
    case Dtype::U32: return NpyType::U32;
    case Dtype::E4M3:
    case Dtype::E5M2:
    case Dtype::U8: return NpyType::U8;
    case Dtype::I8: return NpyType::I8;
  }
  return NpyType::U8;
}

Result<std::vector<std::uint8_t>> take_as(const std::string& label, NpyArray array, Dtype dtype) {
  const NpyType wanted = npy_type(dtype);
  const bool raw_bf16 = wanted == NpyType::BF16 && array.type == NpyType::U16;
  if (array.type != wanted && !raw_bf16) {
    return invalid(
        fmt::format("{}: the file holds {}, and {} of the spec is {} there; convert it, or change the spec's dtype",
                    label, name(array.type), name(dtype), name(wanted)));
  }
  return std::move(array.bytes);
}

}  // namespace flashjit

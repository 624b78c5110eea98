#include "runtime/bundle/cubin.h"

#include <elf.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "compiler/spec/text_form.h"

namespace flashjit {
namespace {

Error no_cubin(std::string_view why) {
  return {ErrorKind::Io, fmt::format("its code is no cubin: {}; build it again", why), {}};
}

// Reads a `T` at this offset. Returns nothing if the bytes end before the end of it.
template <class T>
std::optional<T> read(std::span<const std::uint8_t> code, std::uint64_t at) {
  T value;
  if (at > code.size() || code.size() - at < sizeof value) return std::nullopt;
  std::memcpy(&value, code.data() + at, sizeof value);
  return value;
}

// Returns the architecture that the header names. Cubins of CUDA 13 have it in the second byte of the flags, older ones
// in the first.
unsigned architecture(const Elf64_Ehdr& header) {
  constexpr unsigned char kInSecondByte = 8;
  return header.e_ident[EI_ABIVERSION] >= kInSecondByte ? header.e_flags >> 8 & 0xff : header.e_flags & 0xff;
}

bool is_named(std::span<const std::uint8_t> code, std::uint64_t at, std::string_view name) {
  return at < code.size() && code.size() - at > name.size() &&
         std::memcmp(code.data() + at, name.data(), name.size()) == 0 && code[at + name.size()] == 0;
}

bool has_entry(std::span<const std::uint8_t> code, const Elf64_Ehdr& header, std::string_view name) {
  const auto section = [&](std::uint64_t number) {
    return number < header.e_shnum ? read<Elf64_Shdr>(code, header.e_shoff + number * sizeof(Elf64_Shdr))
                                   : std::nullopt;
  };
  for (std::uint64_t i = 0; i < header.e_shnum; ++i) {
    const auto symbols = section(i);
    if (!symbols) return false;
    const auto names = symbols->sh_type == SHT_SYMTAB ? section(symbols->sh_link) : std::nullopt;
    if (!names) continue;
    for (std::uint64_t at = 0; at < std::min<std::uint64_t>(symbols->sh_size, code.size()); at += sizeof(Elf64_Sym)) {
      const auto symbol = read<Elf64_Sym>(code, symbols->sh_offset + at);
      if (!symbol) return false;
      if (ELF64_ST_TYPE(symbol->st_info) == STT_FUNC && is_named(code, names->sh_offset + symbol->st_name, name))
        return true;
    }
  }
  return false;
}

}  // namespace

Result<void> check_cubin(std::span<const std::uint8_t> code, std::string_view target,
                         std::span<const std::string> entries) {
  const auto header = read<Elf64_Ehdr>(code, 0);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != ELFCLASS64)
    return no_cubin(fmt::format("{} bytes that do not begin as a file of code does", code.size()));
  if (header->e_machine != EM_CUDA) return no_cubin(fmt::format("it is of machine {}, not a GPU", header->e_machine));
  const std::string_view digits = target.substr(std::min(target.find_first_of("0123456789"), target.size()));
  const auto wanted = parse_integer(digits.substr(0, digits.find_first_not_of("0123456789")));
  if (wanted != std::int64_t{architecture(*header)})
    return no_cubin(fmt::format("it is for sm_{}, not for {}", architecture(*header), harmless(target, Lines::One)));
  for (const std::string& entry : entries)
    if (!has_entry(code, *header, entry)) return no_cubin(fmt::format("the kernel {} is not in it", entry));
  return {};
}

}  // namespace flashjit

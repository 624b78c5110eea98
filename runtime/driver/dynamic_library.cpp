#include "runtime/driver/dynamic_library.h"

#include <dlfcn.h>
#include <elf.h>
#include <fmt/format.h>
#include <limits.h>
#include <link.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace flashjit {
namespace {

std::string real_path(const char* path) {
  char* resolved = realpath(path, nullptr);
  std::string result = resolved ? resolved : path;
  free(resolved);
  return result;
}

bool read_at(std::ifstream& file, std::uint64_t offset, void* to, std::size_t bytes) {
  file.clear();
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(static_cast<char*>(to), static_cast<std::streamsize>(bytes));
  return static_cast<std::size_t>(file.gcount()) == bytes;
}

std::string build_id_in_notes(const std::string& notes) {
  std::size_t at = 0;
  while (at + sizeof(Elf64_Nhdr) <= notes.size()) {
    Elf64_Nhdr note;
    std::memcpy(&note, notes.data() + at, sizeof note);
    const std::size_t name_at = at + sizeof note;
    const std::size_t value_at = name_at + ((std::size_t{note.n_namesz} + 3) & ~std::size_t{3});
    if (value_at > notes.size() || note.n_descsz > notes.size() - value_at) break;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && std::memcmp(notes.data() + name_at, "GNU", 4) == 0) {
      std::string hex;
      for (std::size_t i = 0; i < note.n_descsz; ++i) {
        hex += fmt::format("{:02x}", static_cast<unsigned char>(notes[value_at + i]));
      }
      return hex;
    }
    at = value_at + ((std::size_t{note.n_descsz} + 3) & ~std::size_t{3});
  }
  return {};
}

// Returns the build id in hex, or an empty text if the file has none or cannot be read.
std::string elf_build_id(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Elf64_Ehdr header;
  if (!file || !read_at(file, 0, &header, sizeof header)) return {};
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64) return {};
  if (header.e_phentsize != sizeof(Elf64_Phdr)) return {};
  for (int i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    if (!read_at(file, header.e_phoff + static_cast<std::uint64_t>(i) * sizeof segment, &segment, sizeof segment))
      return {};
    constexpr std::uint64_t kMostNotes = 1 << 20;
    if (segment.p_type != PT_NOTE || segment.p_filesz > kMostNotes) continue;
    std::string notes(segment.p_filesz, '\0');
    if (!read_at(file, segment.p_offset, notes.data(), notes.size())) continue;
    if (std::string id = build_id_in_notes(notes); !id.empty()) return id;
  }
  return {};
}

// Returns whether the loader has made the memory at `address` read-only after it wrote there (relro).
bool is_write_protected(const link_map& map, ElfW(Addr) address) {
  struct Question {
    ElfW(Addr) base, offset;
    bool is_protected;
  } question = {map.l_addr, address - map.l_addr, true};
  const auto look = [](dl_phdr_info* library, std::size_t, void* data) -> int {
    auto& [base, offset, is_protected] = *static_cast<Question*>(data);
    if (library->dlpi_addr != base) return 0;
    is_protected = false;
    for (int i = 0; i < library->dlpi_phnum; ++i) {
      const auto& segment = library->dlpi_phdr[i];
      if (segment.p_type == PT_GNU_RELRO && offset >= segment.p_vaddr && offset - segment.p_vaddr < segment.p_memsz)
        is_protected = true;
    }
    return 1;
  };
  dl_iterate_phdr(look, &question);
  return question.is_protected;
}

}  // namespace

Result<DynamicLibrary> DynamicLibrary::open(const std::string& name) {
  // A FIFO is refused, because the loader would wait for somebody to write into it.
  struct stat info;
  if (name.find('/') != name.npos && stat(name.c_str(), &info) == 0 && S_ISFIFO(info.st_mode))
    return Error{ErrorKind::NotFound, name + ": is a FIFO", {}};
  DynamicLibrary library;
  library.handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library.handle_) {
    const char* why = dlerror();
    return Error{ErrorKind::NotFound, why ? why : name + " cannot be opened", {}};
  }
  link_map* map = nullptr;
  library.path_ = name;
  if (dlinfo(library.handle_, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name && *map->l_name) {
    library.path_ = real_path(map->l_name);
  }
  return library;
}

void* DynamicLibrary::symbol(const char* name) const { return dlsym(handle_, name); }

bool DynamicLibrary::redirect(std::string_view name, void* function) const {
  link_map* map = nullptr;
  if (dlinfo(handle_, RTLD_DI_LINKMAP, &map) != 0) return false;
  const ElfW(Sym)* symbols = nullptr;
  const char* names = nullptr;
  const ElfW(Rela)* calls = nullptr;
  std::size_t bytes = 0;
  for (const ElfW(Dyn)* entry = map->l_ld; entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(entry->d_un.d_ptr);
    if (entry->d_tag == DT_STRTAB) names = reinterpret_cast<const char*>(entry->d_un.d_ptr);
    if (entry->d_tag == DT_JMPREL) calls = reinterpret_cast<const ElfW(Rela)*>(entry->d_un.d_ptr);
    if (entry->d_tag == DT_PLTRELSZ) bytes = entry->d_un.d_val;
    if (entry->d_tag == DT_PLTREL && entry->d_un.d_val != DT_RELA) return false;
  }
  if (!symbols || !names || !calls) return false;
  for (std::size_t i = 0; i < bytes / sizeof *calls; ++i) {
    if (names + symbols[ELF64_R_SYM(calls[i].r_info)].st_name != name) continue;
    const ElfW(Addr) slot = map->l_addr + calls[i].r_offset;
    if (is_write_protected(*map, slot)) return false;
    std::atomic_ref(*reinterpret_cast<void**>(slot)).store(function);
    return true;
  }
  return false;
}

std::string own_directory() {
  Dl_info info;
  std::string path;
  link_map* map = nullptr;
  void* const here = reinterpret_cast<void*>(&own_directory);
  if (dladdr1(here, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) && map && *map->l_name)
    path = real_path(map->l_name);
  if (!path.starts_with('/')) {
    // This is the main program. The loader has argv[0] for it, which may be the name of any file.
    char buffer[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", buffer, sizeof buffer);
    if (length <= 0) return {};
    path.assign(buffer, static_cast<std::size_t>(length));
  }
  return path.substr(0, path.rfind('/'));
}

std::string file_identity(const std::string& path) {
  if (std::string id = elf_build_id(path); !id.empty()) return id;
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  return error ? "unknown" : fmt::format("size-{}", size);
}

}  // namespace flashjit

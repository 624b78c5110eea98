// What is said of the kernels of a bundle whose checksums are right.
#include <elf.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "runtime/bundle/bundle.h"
#include "runtime/bundle/cubin.h"
#include "tests/requests.h"
#include "tests/temporary_folder.h"

namespace flashjit {
namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr char kSpec[] = "fwd bf16 d=64 heads=4/2 mask=\"causal\"";

// The least that is a cubin: a header, symbols and their names. `flags` say for which architecture.
Bytes cubin(unsigned char abi_version, unsigned flags, const std::string& entry) {
  struct {
    Elf64_Ehdr header = {};
    Elf64_Shdr sections[2] = {};
    Elf64_Sym symbol = {};
    char names[64] = {};
  } file;
  std::memcpy(file.header.e_ident, ELFMAG, SELFMAG);
  file.header.e_ident[EI_CLASS] = ELFCLASS64;
  file.header.e_ident[EI_DATA] = ELFDATA2LSB;
  file.header.e_ident[EI_ABIVERSION] = abi_version;
  file.header.e_machine = EM_CUDA;
  file.header.e_flags = flags;
  file.header.e_shoff = offsetof(decltype(file), sections);
  file.header.e_shnum = 2;
  file.sections[0].sh_type = SHT_SYMTAB;
  file.sections[0].sh_link = 1;
  file.sections[0].sh_offset = offsetof(decltype(file), symbol);
  file.sections[0].sh_size = sizeof file.symbol;
  file.sections[1].sh_type = SHT_STRTAB;
  file.sections[1].sh_offset = offsetof(decltype(file), names);
  file.sections[1].sh_size = sizeof file.names;
  file.symbol.st_name = 1;
  file.symbol.st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
  entry.copy(file.names + 1, sizeof file.names - 2);
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(&file);
  return {bytes, bytes + sizeof file};
}

std::string why_not(const Bytes& code, std::string_view target, const std::vector<std::string>& entries) {
  const auto sound = check_cubin(code, target, entries);
  return sound ? "" : sound.error().message;
}

TEST(Cubin, IsForItsTargetAndHasItsEntries) {
  EXPECT_EQ(why_not(cubin(8, 0x6005a04, "kernel"), "sm_90a", {"kernel"}), "");
  EXPECT_EQ(why_not(cubin(7, 0x500550, "kernel"), "sm_80", {"kernel"}), "");
  EXPECT_NE(why_not(cubin(8, 0x6005004, "kernel"), "sm_90a", {}).find("for sm_80, not for sm_90a"), std::string::npos);
  EXPECT_NE(why_not(cubin(8, 0x6005004, "kernel"), "sm_80", {"kern"}).find("kern is not in it"), std::string::npos);
  EXPECT_NE(why_not(cubin(8, 0x6005004, "kernel"), "nothing", {}), "");
}

TEST(Cubin, NoBytesLeadOutOfThem) {
  const Bytes whole = cubin(8, 0x6005004, "kernel");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const Bytes part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    (void)check_cubin(part, "sm_80", std::vector<std::string>{"kernel"});
  }
  for (std::size_t i = 0; i < whole.size(); ++i) {
    for (const int value : {0, 0x7f, 0xff}) {
      Bytes changed = whole;
      changed[i] = static_cast<std::uint8_t>(value);
      (void)check_cubin(changed, "sm_80", std::vector<std::string>{"kernel"});
    }
  }
}

class BundleKernel : public ::testing::Test {
 protected:
  // Written as `flashjit build` writes it, with all checksums right.
  std::string why_not(const Bytes& code, const std::string& key_of = kSpec, const std::string& templates = "") const {
    const auto plan = plan_spec(kSpec, "sm_80", "");
    const auto source = emit_cuda(*plan);
    Compiled compiled{.plan = *plan, .source = *source};
    compiled.facts.schedule = print(plan->schedule);
    const std::string path = folder.path() + "/x.fjb";
    const auto bytes = encode_bundle({templates.empty() ? templates_digest() : templates,
                                      {bundle_item({"sm_80", key_of, ""}, compiled, "nvrtc 1.2")}},
                                     {pack(code)});
    EXPECT_TRUE(write_bundle(path, bytes));
    const auto bundle = Bundle::open(path);
    EXPECT_TRUE(bundle) << bundle.error().message;
    const auto sound = check_kernel(**bundle, (*bundle)->index().items.front());
    return sound ? "" : sound.error().message;
  }
  static std::string entry() { return plan_spec(kSpec, "sm_80", "")->launches.front().entry; }
  const TemporaryFolder folder;
};

TEST_F(BundleKernel, IsWhatThisVersionMakes) { EXPECT_EQ(why_not(cubin(8, 0x6005004, entry())), ""); }

TEST_F(BundleKernel, AnyBytesAreNoCode) {
  Bytes code(3000);
  for (std::size_t i = 0; i < code.size(); ++i) code[i] = static_cast<std::uint8_t>(i * 31);
  EXPECT_NE(why_not(code).find("no cubin"), std::string::npos);
  EXPECT_NE(why_not(code, kSpec, std::string(64, 'a')).find("no cubin"), std::string::npos);
}

TEST_F(BundleKernel, AnotherTargetsCodeIsNotTaken) {
  EXPECT_NE(why_not(cubin(8, 0x6005a04, entry())).find("for sm_90"), std::string::npos);
}

TEST_F(BundleKernel, TheEntriesOfItsPlanAreThere) {
  EXPECT_NE(why_not(cubin(8, 0x6005004, "another")).find("is not in it"), std::string::npos);
}

TEST_F(BundleKernel, AnotherSpecHasAnotherSource) {
  EXPECT_NE(why_not(cubin(8, 0x6005004, entry()), "fwd bf16 d=64 heads=4/2 mask=\"window(3, 0)\"").find("source"),
            std::string::npos);
}

}  // namespace
}  // namespace flashjit

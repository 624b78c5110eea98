// Edited sources instead of generated ones. The folders are written by hand; kernels only where NVRTC is installed.
#include "runtime/compile/source_override.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "runtime/engine/environment.h"
#include "tests/requests.h"
#include "tests/temporary_folder.h"

namespace flashjit {
namespace {

namespace fs = std::filesystem;
constexpr char kOverridden[] = "fwd bf16 d=64 heads=4/2 mask=\"causal\"";

class SourceOverride : public testing::Test {
 protected:
  void SetUp() override {
    auto made = plan_spec(kOverridden, "sm_80", "");
    ASSERT_TRUE(made);
    plan = *made;
    auto emitted = emit_cuda(plan);
    ASSERT_TRUE(emitted);
    source = *emitted;
  }

  void write(const std::string& name, const std::string& text) const {
    fs::create_directories(fs::path(folder + "/" + name).parent_path());
    std::ofstream(folder + "/" + name) << text;
  }
  std::string* text_of(const std::string& name) {
    for (auto* files : {&source.generated, &source.headers}) {
      for (SourceFile& file : *files) {
        if (file.name == name) return &file.text;
      }
    }
    return nullptr;
  }
  void refused(ErrorKind kind, std::initializer_list<const char*> words) {
    const auto done = override_source(folder, plan, source);
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().kind, kind);
    for (const char* word : words)
      EXPECT_NE(done.error().message.find(word), std::string::npos) << done.error().message;
  }

  const TemporaryFolder temporary;
  const std::string& folder = temporary.path();
  Plan plan;
  KernelSource source;
};

TEST_F(SourceOverride, GeneratedFilesAndTemplatesAreReplaced) {
  const std::string entry = *text_of("entry.cu"), device = *text_of("templates/device.cuh"),
                    config = *text_of("config.gen.cuh");
  write("entry.cu", entry + "// edited\n");
  write("templates/device.cuh", device + "// edited\n");
  write("config.gen.cuh", config);  // as it was
  for (const char* name : {"spec.txt", "schedule.txt"})
    write(name, (*name == 's' && name[1] == 'p' ? print(plan.spec) : print(plan.schedule)) + "\n");
  for (const char* name :
       {"key.txt", "kernel.ptx", "kernel.cubin", "facts/log.txt", "facts.json", "ir/01_build.txt", "program.txt"})
    write(name, "x");
  const auto done = override_source(folder, plan, source);
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(*text_of("entry.cu"), entry + "// edited\n");
  EXPECT_EQ(*text_of("templates/device.cuh"), device + "// edited\n");
  EXPECT_EQ(*text_of("config.gen.cuh"), config);
  EXPECT_TRUE(done->starts_with("override: ")) << *done;
  EXPECT_TRUE(done->ends_with(": entry.cu, templates/device.cuh")) << *done;
}

TEST_F(SourceOverride, NothingEdited) {
  const auto done = override_source(folder, plan, source);
  ASSERT_TRUE(done);
  EXPECT_NE(done->find("no file"), std::string::npos);
}

TEST_F(SourceOverride, AFileThatIsNoSource) {
  write("entri.cu", "x");
  refused(ErrorKind::Invalid,
          {"`entri.cu`", "no source file of this kernel", "config.gen.cuh, variant.gen.cuh, entry.cu", "templates/"});
  fs::remove(folder + "/entri.cu");
  write("templates/new.cuh", "x");
  refused(ErrorKind::Invalid, {"`templates/new.cuh`"});
}

TEST_F(SourceOverride, AFolderInPlaceOfAFile) {
  fs::create_directories(folder + "/entry.cu");
  refused(ErrorKind::Invalid, {"`entry.cu`", "is a folder", "remove it"});
}

TEST_F(SourceOverride, AFolderOfAnotherKernel) {
  write("spec.txt", "fwd fp16 d=64 heads=4/2\n");
  refused(ErrorKind::Invalid, {"the spec", "fwd fp16 d=64 heads=4/2", kOverridden});
  fs::remove(folder + "/spec.txt");
  write("schedule.txt", "family=sync\n");
  refused(ErrorKind::Invalid, {"the schedule", "family=sync", "give that schedule"});
}

TEST_F(SourceOverride, WhatCannotBeRead) {
  write("entry.cu", std::string((16 << 20) + 1, 'x'));
  refused(ErrorKind::Invalid, {"entry.cu", "16777216"});
  fs::remove_all(folder);
  refused(ErrorKind::Invalid, {"not a directory"});
}

TEST_F(SourceOverride, TheEditedKernelIsAnotherOne) {
  auto settings = read_environment();
  ASSERT_TRUE(settings);
  if (auto opened = Nvrtc::open(settings->nvrtc); !opened) GTEST_SKIP() << opened.error().message;
  KernelStore store({.disk = false});
  CompileOptions options{.store = &store};
  const auto plain = compile_spec(kOverridden, "sm_80", "", options);
  ASSERT_TRUE(plain) << plain.error().message;
  std::string entry = plain->source.generated.back().text;
  entry.insert(entry.rfind("}"), "  if (threadIdx.x == 12345) asm volatile(\"trap;\");\n");
  write("entry.cu", entry);
  options.override_dir = folder;
  const auto edited = compile_spec(kOverridden, "sm_80", plain->facts.schedule, options);
  ASSERT_TRUE(edited) << edited.error().message << edited.error().detail;
  EXPECT_NE(edited->key.digest, plain->key.digest);
  EXPECT_NE(edited->binary->payload, plain->binary->payload);
  ASSERT_FALSE(edited->facts.notes.empty());
  EXPECT_NE(edited->facts.notes.front().find("override: "), std::string::npos) << edited->facts.notes.front();
  // What does not compile is an error with the compiler's words.
  write("entry.cu", entry + "nonsense;\n");
  const auto wrong = compile_spec(kOverridden, "sm_80", "", options);
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().kind, ErrorKind::Compile);
  EXPECT_NE(wrong.error().detail.find("nonsense"), std::string::npos);
  // Source that is emptied compiles, to nothing that could be launched.
  write("entry.cu", "");
  const auto emptied = compile_spec(kOverridden, "sm_80", "", options);
  ASSERT_FALSE(emptied);
  EXPECT_EQ(emptied.error().kind, ErrorKind::Invalid);
  for (const std::string& word : {std::string("entry.cu"), "`" + plain->plan.launches.front().entry + "`"})
    EXPECT_NE(emptied.error().message.find(word), std::string::npos) << emptied.error().message;
  // The launches before the loop are looked for as well.
  const auto after_others = compile_spec("fwd bf16 d=64 heads=2 select=keys(8) mask=\"causal\"", "sm_80", "", options);
  ASSERT_FALSE(after_others);
  EXPECT_NE(after_others.error().message.find("`flashjit_shown_keys`"), std::string::npos)
      << after_others.error().message;
}

}  // namespace
}  // namespace flashjit

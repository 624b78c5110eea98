// A compiler that crashes, hangs or talks nonsense, in a process of its own: each is an error of that kernel, and the
// next compile works. The bad compilers are scripts.
#include "runtime/compile/nvrtc/compiler_process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "runtime/engine/environment.h"
#include "tests/requests.h"
#include "tests/temporary_folder.h"

namespace flashjit {
namespace {

using namespace std::chrono_literals;
constexpr char kSpec[] = "fwd bf16 d=64 heads=4 mask=\"causal\"";

CompilerRequest request() {
  CompilerRequest request;
  request.nvrtc = "/somewhere/libnvrtc.so";
  request.identity = "nvrtc 13.0 build aa";
  request.options = {"--gpu-architecture=sm_80", "", "-std=c++17"};
  request.source.generated = {{"config.gen.cuh", "one\n"}, {"entry.cu", std::string("two\0three", 9)}};
  request.source.headers = {{"templates/x.cuh", std::string(70'000, 'x')}};
  request.output = CompilerOutput::Ptx;
  return request;
}

TEST(CompilerProtocol, RequestsComeThroughUnchanged) {
  const CompilerRequest sent = request();
  const auto got = decode_request(encode(sent));
  ASSERT_TRUE(got);
  EXPECT_EQ(got->nvrtc, sent.nvrtc);
  EXPECT_EQ(got->identity, sent.identity);
  EXPECT_EQ(got->options, sent.options);
  EXPECT_EQ(got->output, CompilerOutput::Ptx);
  ASSERT_EQ(got->source.generated.size(), 2u);
  EXPECT_EQ(got->source.generated[1].name, "entry.cu");
  EXPECT_EQ(got->source.generated[1].text, sent.source.generated[1].text);
  ASSERT_EQ(got->source.headers.size(), 1u);
  EXPECT_EQ(got->source.headers[0].text, sent.source.headers[0].text);
}

TEST(CompilerProtocol, AnswersComeThroughUnchanged) {
  const auto good = decode_answer(encode(Result<CompilerResult>(CompilerResult{"log", {1, 0, 2}})));
  ASSERT_TRUE(good && *good);
  EXPECT_EQ((*good)->log, "log");
  EXPECT_EQ((*good)->bytes, (std::vector<std::uint8_t>{1, 0, 2}));
  const auto bad = decode_answer(encode(Result<CompilerResult>(Error{ErrorKind::Compile, "refused", "a log"})));
  ASSERT_TRUE(bad && !*bad);
  EXPECT_EQ(bad->error().kind, ErrorKind::Compile);
  EXPECT_EQ(bad->error().message, "refused");
  EXPECT_EQ(bad->error().detail, "a log");
}

TEST(CompilerProtocol, EveryDamageIsFound) {
  const auto sound = encode(Result<CompilerResult>(CompilerResult{"log", {1, 0, 2}}));
  for (std::size_t i = 0; i < sound.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      auto damaged = sound;
      damaged[i] ^= static_cast<std::uint8_t>(1 << bit);
      EXPECT_FALSE(decode_answer(damaged)) << i << "." << bit;
    }
    EXPECT_FALSE(decode_answer(std::span(sound).first(i))) << i;
  }
  auto longer = sound;
  longer.push_back(0);
  EXPECT_FALSE(decode_answer(longer));
  EXPECT_FALSE(decode_request(sound));
  EXPECT_FALSE(decode_answer(encode(request())));
}

class CompilerProcess : public testing::Test {
 protected:
  void SetUp() override {
    auto settings = read_environment();
    ASSERT_TRUE(settings);
    if (auto opened = Nvrtc::open(settings->nvrtc); !opened) GTEST_SKIP() << opened.error().message;
    auto found = find_compiler_program();
    ASSERT_TRUE(found) << found.error().message << found.error().detail;
    program = *found;
  }
  std::string script(const std::string& body) const {
    const std::string path = folder + "/compiler";
    std::ofstream(path) << "#!/bin/sh\n" << body << "\n";
    chmod(path.c_str(), 0700);
    return path;
  }
  // One that has said which compiler it is, before it became bad.
  std::string gone_bad(const std::string& body) const {
    const std::string path = script("exec '" + program + "'");
    EXPECT_TRUE(Nvrtc::open(read_environment()->nvrtc, path));
    return script(body);
  }
  Result<Compiled> compile(const std::string& with, CompileBounds bounds = {}) {
    CompileOptions options{.store = &store};
    options.bounds = bounds;
    options.compiler_program = with;
    return compile_spec(kSpec, "sm_80", "", options);
  }
  // The kind and words of the error, and that the same store then compiles the same kernel.
  void refused(const std::string& with, ErrorKind kind, std::initializer_list<const char*> words,
               CompileBounds bounds = {}) {
    const auto outcome = compile(with, bounds);
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().kind, kind) << outcome.error().message;
    for (const char* word : words)
      EXPECT_NE(outcome.error().message.find(word), std::string::npos) << outcome.error().message;
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a process is left behind";
    const auto next = compile(program);
    ASSERT_TRUE(next) << next.error().message;
    EXPECT_GT(next->facts.registers, 0);
  }

  std::string program;
  const TemporaryFolder temporary;
  const std::string& folder = temporary.path();
  KernelStore store{{.disk = false}};
};

TEST_F(CompilerProcess, SameBytesAsInThisProcess) {
  const auto here = compile_spec(kSpec, "sm_80", "");
  const auto there = compile(program);
  ASSERT_TRUE(here && there) << (there ? "" : there.error().message);
  EXPECT_EQ(here->key.text, there->key.text);
  EXPECT_EQ(here->binary->payload, there->binary->payload);
  EXPECT_EQ(here->binary->facts, there->binary->facts);
}

TEST_F(CompilerProcess, RefusedSourceGivesTheLog) {
  const auto nvrtc = Nvrtc::open(read_environment()->nvrtc, program);
  ASSERT_TRUE(nvrtc);
  const KernelSource source{.generated = {{"entry.cu", "extern \"C\" __global__ void f(float* x) { *x = nowhere; }"}}};
  const auto outcome = (*nvrtc)->compile(source, Target{.name = "sm_80"});
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().kind, ErrorKind::Compile);
  EXPECT_NE(outcome.error().detail.find("nowhere"), std::string::npos);
}

TEST_F(CompilerProcess, CrashAtOnce) {
  refused(gone_bad("kill -SEGV $$"), ErrorKind::Compile, {"signal 11", "Segmentation fault"});
}
TEST_F(CompilerProcess, CrashAfterReading) {
  refused(gone_bad("cat > /dev/null; kill -ABRT $$"), ErrorKind::Compile, {"signal 6"});
}
TEST_F(CompilerProcess, KilledForWantOfMemory) {
  refused(gone_bad("cat > /dev/null; kill -KILL $$"), ErrorKind::Compile, {"signal 9", "memory"});
}
TEST_F(CompilerProcess, EndsWithoutAnAnswer) {
  refused(gone_bad("exit 3"), ErrorKind::Compile, {"status 3", "0 bytes"});
}
TEST_F(CompilerProcess, Garbage) {
  refused(gone_bad("cat > /dev/null; echo this is no answer"), ErrorKind::Compile, {"status 0", "not complete"});
}
TEST_F(CompilerProcess, GarbageBeforeTheRequestIsRead) {
  refused(gone_bad("echo no; exit 0"), ErrorKind::Compile, {"status 0"});
}
TEST_F(CompilerProcess, TruncatedAnswer) {
  refused(gone_bad("'" + program + "' | head -c 4000"), ErrorKind::Compile, {"4000 bytes"});
}
TEST_F(CompilerProcess, AnswerWithMore) {
  refused(gone_bad("'" + program + "'; echo"), ErrorKind::Compile, {"not complete"});
}
TEST_F(CompilerProcess, MissingProgram) {
  refused(folder + "/nothing", ErrorKind::NotFound, {"isolate_compiler", "/nothing", "install"});
}

TEST_F(CompilerProcess, NotExecutable) {
  const std::string path = script("exit 0");
  chmod(path.c_str(), 0600);
  refused(path, ErrorKind::NotFound, {"cannot be started"});
}

// exec: the script's process is the one that hangs, and not a child of it that would be left behind.
TEST_F(CompilerProcess, HangIsKilled) {
  refused(gone_bad("exec sleep 1000"), ErrorKind::Timeout, {"200 ms"}, CompileBounds(200ms, nullptr));
}

TEST_F(CompilerProcess, HangIsCalledOff) {
  std::atomic<bool> cancel = false;
  std::thread other([&] {
    std::this_thread::sleep_for(100ms);
    cancel = true;
  });
  refused(gone_bad("exec sleep 1000"), ErrorKind::Cancelled, {"cancel"}, CompileBounds(0ms, &cancel));
  other.join();
}

// The calling process does not load NVRTC, be it to ask which one it is.
TEST_F(CompilerProcess, ALibraryThatEndsItsProcess) {
  EXPECT_EXIT(static_cast<void>(Nvrtc::open(FLASHJIT_DYING_LIBRARY)), testing::KilledBySignal(SIGABRT), "");
  const auto opened = Nvrtc::open(FLASHJIT_DYING_LIBRARY, program);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().kind, ErrorKind::Compile);
  for (const char* word : {"signal 6", FLASHJIT_DYING_LIBRARY})
    EXPECT_NE(opened.error().message.find(word), std::string::npos) << opened.error().message;
}

TEST_F(CompilerProcess, ACompilerThatCannotSayWhichItIs) {
  refused(script("kill -SEGV $$"), ErrorKind::Compile, {"signal 11", "libnvrtc"});
  refused(script("exec sleep 1000 # says nothing"), ErrorKind::Timeout, {"200 ms"}, CompileBounds(200ms, nullptr));
}

TEST_F(CompilerProcess, NoNvrtcIsSaidByTheOtherProcess) {
  const auto here = Nvrtc::open("libm.so.6"), there = Nvrtc::open("libm.so.6", program);
  ASSERT_FALSE(here || there);
  EXPECT_EQ(here.error().kind, there.error().kind);
  EXPECT_EQ(here.error().message + here.error().detail, there.error().message + there.error().detail);
}

TEST_F(CompilerProcess, AnotherCompilerThanTheKeySays) {
  auto nvrtc = Nvrtc::open(read_environment()->nvrtc);
  ASSERT_TRUE(nvrtc);
  const KernelSource source{.generated = {{"entry.cu", "extern \"C\" __global__ void f() {}"}}};
  const auto outcome =
      run_compiler_process(program, {(*nvrtc)->path(), "nvrtc of yesterday", {}, source, CompilerOutput::Cubin}, {});
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().kind, ErrorKind::NotFound);
  EXPECT_NE(outcome.error().message.find("nvrtc of yesterday"), std::string::npos);
}

// A host may ignore SIGCHLD (children then vanish by themselves), block signals, or have closed its standard streams.
TEST_F(CompilerProcess, UnusualHosts) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(100);
    signal(SIGCHLD, SIG_IGN);
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, nullptr);
    for (const int file : {0, 1, 2}) close(file);
    if (!compile(program)) _exit(1);
    KernelStore fresh({.disk = false});
    CompileOptions options{.store = &fresh};
    options.compiler_program = script("kill -SEGV $$");
    const auto crashed = compile_spec(kSpec, "sm_80", "", options);
    _exit(!crashed && crashed.error().kind == ErrorKind::Compile ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST_F(CompilerProcess, StartedByHand) {
  const int status = std::system(("'" + program + "' < /dev/null > /dev/null 2>&1").c_str());
  EXPECT_EQ(WEXITSTATUS(status), 2);
}

}  // namespace
}  // namespace flashjit

// The process around the library: no driver, forks, exits in the middle of a compile, setuid, a /tmp of others.
#include "tests/fault/store_fixture.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/statvfs.h>

#include <fstream>
#include <random>

#include "flashjit/flashjit.h"
#include "runtime/engine/environment.h"
#include "tests/requests.h"

namespace flashjit {
namespace {

constexpr char kSpecOfProcesses[] = "fwd bf16 d=64 heads=4 mask=\"causal\"";

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class ProcessFault : public StoreFault {
 protected:
  // A compile in this process, with a new text each time.
  Result<Compiled> compile_number(int i) const {
    return compile_spec("fwd bf16 d=64 heads=4 mask=\"window(" + std::to_string(100 + i) + ", 0)\"", "sm_80", "");
  }
  static bool has_nvrtc() { return static_cast<bool>(Nvrtc::open(read_environment()->nvrtc)); }
};

// What libraries an ELF file asks for, by its own table.
TEST_F(ProcessFault, NoCudaLibraryIsLinked) {
  for (const char* name : {"/lib/libflashjit.so", "/bin/flashjit"}) {
    const std::string path = std::string(FLASHJIT_BINARY_DIR) + name;
    if (!fs::exists(path)) continue;
    FILE* out = popen(("LC_ALL=C readelf -d '" + path + "' 2>/dev/null").c_str(), "r");
    std::string text;
    char buffer[4096];
    for (std::size_t got; (got = fread(buffer, 1, sizeof buffer, out)) > 0;) text.append(buffer, got);
    pclose(out);
    if (text.find("NEEDED") == std::string::npos) GTEST_SKIP() << "readelf is not here";
    for (const char* library : {"libcuda", "libnvrtc", "libLLVM", "libnvidia"})
      EXPECT_EQ(text.find(library), std::string::npos) << name;
  }
}

// Compiles where nothing can be written, with every libcuda of this machine hidden, and forks: the child finds no
// driver that was started before it.
TEST_F(ProcessFault, CompilesWithoutDriverAndWithoutTemporaryFiles) {
  if (!has_nvrtc()) GTEST_SKIP() << "no NVRTC on this machine";
  const int result = in_child([&] {
    if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
      return kMayNotMount;
    for (const char* place :
         {"/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib64/libcuda.so.1", "/lib/x86_64-linux-gnu/libcuda.so.1"}) {
      if (fs::exists(place) && mount("/dev/null", place, nullptr, MS_BIND, nullptr) != 0) return kMayNotMount;
    }
    // Opened before /tmp, where a build may lie, is covered.
    if (!Nvrtc::open(read_environment()->nvrtc)) return 1;
    for (const char* place : {"/tmp", "/var/tmp", "/dev/shm"}) {
      if (mount("tmpfs", place, "tmpfs", MS_RDONLY, "size=4k") != 0) return kMayNotMount;
    }
    for (const char* name : {"HOME", "XDG_CACHE_HOME", "FLASHJIT_CACHE_DIR", "TMPDIR"}) unsetenv(name);
    if (chdir("/") != 0) return 2;
    KernelStore store({.directory = read_environment()->cache_dir});
    const auto compiled = compile_spec(kSpecOfProcesses, "sm_80", "", {.store = &store});
    if (!compiled) {
      fprintf(stderr, "%s\n", compiled.error().message.c_str());
      return 3;
    }
    if (contents("/proc/self/maps").find("libcuda.so") != std::string::npos) return 4;
    return in_child([&] {
      return contents("/proc/self/maps").find("libcuda.so") == std::string::npos && compile_number(0) ? 0 : 5;
    });
  });
  if (result == kMayNotMount) GTEST_SKIP() << "needs the right to mount";
  EXPECT_EQ(result, 0);
}

// No name in /tmp that others could take first: not in what we wrote, and whatever they made there is left alone.
TEST_F(ProcessFault, NoNameInTheTemporaryFolder) {
  for (const char* name : {"/lib/libflashjit.so", "/bin/flashjit"}) {
    const std::string path = std::string(FLASHJIT_BINARY_DIR) + name;
    if (!fs::exists(path)) continue;
    const std::string bytes = contents(path);
    const std::string own_build = FLASHJIT_BINARY_DIR,
                      own_source =
                          std::string(FLASHJIT_TESTS_DIR).substr(0, std::string(FLASHJIT_TESTS_DIR).rfind('/'));
    for (const char* word : {"/tmp/", "/var/tmp", "/dev/shm", "TMPDIR", "tmpnam", "tempnam", "mktemp"}) {
      for (std::size_t at = bytes.find(word); at != std::string::npos; at = bytes.find(word, at + 1)) {
        // Where it was built is not where it writes.
        if (bytes.compare(at, own_source.size(), own_source) == 0 ||
            bytes.compare(at, own_build.size(), own_build) == 0)
          continue;
        ADD_FAILURE() << name << ": " << bytes.substr(at, 60).c_str();
      }
    }
  }
}

// A copy of the command that belongs to root and has the setuid bit, run by somebody whose environment names
// everything.
TEST_F(ProcessFault, SetuidProgramsIgnoreTheEnvironment) {
  const std::string command = std::string(FLASHJIT_BINARY_DIR) + "/bin/flashjit";
  if (geteuid() != 0) GTEST_SKIP() << "needs root to make a setuid program";
  if (!fs::exists(command)) GTEST_SKIP() << "the command is not built";
  struct statvfs place;
  if (statvfs(folder.c_str(), &place) == 0 && (place.f_flag & ST_NOSUID) != 0)
    GTEST_SKIP() << "no setuid programs in the temporary folder";
  chmod(folder.c_str(), 0755);
  const std::string copy = folder + "/flashjit", evil = folder + "/evil", out = folder + "/out";
  fs::copy_file(command, copy);
  fs::create_directory(evil);
  chmod(evil.c_str(), 0777);
  std::ofstream(out) << "";
  chmod(out.c_str(), 0666);
  const auto doctor = [&](mode_t mode) {
    chmod(copy.c_str(), mode);
    EXPECT_EQ(as_user(kOtherUser,
                      [&] {
                        for (const char* name :
                             {"FLASHJIT_CACHE_DIR", "FLASHJIT_DUMP_DIR", "FLASHJIT_NVRTC", "XDG_CACHE_HOME", "HOME"})
                          setenv(name, evil.c_str(), 1);
                        setenv("FLASHJIT_LOG", (evil + "/log").c_str(), 1);
                        const int fd = open(out.c_str(), O_WRONLY | O_TRUNC);
                        dup2(fd, 1);
                        execl(copy.c_str(), "flashjit", "doctor", "--json", nullptr);
                        return 1;
                      }) &
                  ~1,
              0);  // 1: doctor found something missing
    return contents(out);
  };
  EXPECT_NE(doctor(0755).find("evil"), std::string::npos);
  const std::string privileged = doctor(04755);
  EXPECT_NE(privileged.find("\"store\""), std::string::npos);
  EXPECT_EQ(privileged.find("evil"), std::string::npos) << privileged;
  EXPECT_TRUE(fs::is_empty(evil));
}

// Ends while threads compile: at a random time, by exit() with all its destructors, or by giving the library back.
TEST_F(ProcessFault, ExitDuringCompiles) {
  if (!has_nvrtc()) GTEST_SKIP() << "no NVRTC on this machine";
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < (is_long() ? 100 : 4); ++round) {
    const auto delay = milliseconds(random() % 600);
    EXPECT_EQ(in_child([&] {
                auto* const store = new KernelStore({.directory = store_path()});  // never deleted: threads use it
                for (int thread = 0; thread < 2; ++thread) {
                  std::thread([&, thread] {
                    for (int i = 0;; ++i) {
                      (void)compile_spec("fwd bf16 d=64 heads=4 mask=\"window(" +
                                             std::to_string(1000 * round + 2 * i + thread) + ", 0)\"",
                                         "sm_80", "", {.store = store});
                    }
                  }).detach();
                }
                std::this_thread::sleep_for(delay);
                exit(0);
                return 1;
              }),
              0)
        << "after " << delay.count() << " ms";
  }
  if (fs::exists(store_path() + "/v1")) {
    const auto listed = list_store(store_path());
    ASSERT_TRUE(listed);
    for (const StoreListing& item : *listed) EXPECT_TRUE(item.sound);
  }
}

// exit() by a thread that has nothing to do with compiling, during its first compiles: NVRTC makes static objects in
// the first, which must not be destroyed while it goes on.
TEST_F(ProcessFault, AnotherThreadExitsDuringCompiles) {
  if (!has_nvrtc()) GTEST_SKIP() << "no NVRTC on this machine";
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < (is_long() ? 300 : 6); ++round) {
    const auto delay = milliseconds(random() % 500);
    EXPECT_EQ(in_child([&] {
                std::thread([&] {
                  for (int i = 0;; ++i) (void)compile_number(i);
                }).detach();
                std::thread([&] {
                  std::this_thread::sleep_for(delay);
                  exit(0);
                }).detach();
                for (;;) pause();
                return 1;
              }),
              0)
        << "after " << delay.count() << " ms";
  }
}

TEST_F(ProcessFault, TheLibraryIsGivenBackDuringACompile) {
  const std::string path = std::string(FLASHJIT_BINARY_DIR) + "/lib/libflashjit.so";
  if (!fs::exists(path) || !fs::exists(std::string(FLASHJIT_BINARY_DIR) + "/lib/libflashjit_host.so"))
    GTEST_SKIP() << "built without the host backend (LLVM 19)";
  std::mt19937 random(std::random_device{}());
  for (int round = 0; round < (is_long() ? 100 : 4); ++round) {
    const auto delay = milliseconds(random() % 60);
    EXPECT_EQ(in_child([&] {
                void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
                if (!library) return 1;
                const auto create =
                    reinterpret_cast<decltype(&flashjit_engine_create)>(dlsym(library, "flashjit_engine_create"));
                const auto prepare = reinterpret_cast<decltype(&flashjit_prepare)>(dlsym(library, "flashjit_prepare"));
                flashjit_engine_options options = {};
                options.struct_size = sizeof options;
                options.host = 1;
                options.threads = 2;
                flashjit_engine* engine = nullptr;
                if (create(&options, &engine, nullptr) != FLASHJIT_OK) return 2;
                std::thread([=] {
                  for (int i = 0;; ++i) {
                    flashjit_kernel* kernel = nullptr;
                    prepare(engine, ("fwd bf16 d=64 heads=4 mask=\"window(" + std::to_string(i) + ", 0)\"").c_str(),
                            nullptr, &kernel, nullptr);
                  }
                }).detach();
                std::this_thread::sleep_for(delay);
                dlclose(library);
                std::this_thread::sleep_for(milliseconds(20));
                exit(0);
                return 3;
              }),
              0)
        << "after " << delay.count() << " ms";
  }
}

}  // namespace
}  // namespace flashjit

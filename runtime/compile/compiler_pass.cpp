#include "runtime/compile/compiler_pass.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace flashjit {
namespace {

// The longest compile that was seen takes some seconds. A compile that hangs must not keep the process.
constexpr std::chrono::seconds kMostWait{30};

enum class Process { Runs, IsEnding, HasEnded };

// There is no mutex, because a child that is forked while a thread holds one would keep it for ever.
std::atomic<int> passes{0};
std::atomic<Process> process{Process::Runs};

template <class Condition>
void wait_while(const Condition& condition) {
  for (const auto until = std::chrono::steady_clock::now() + kMostWait;
       condition() && std::chrono::steady_clock::now() < until;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void end(Process how) {
  process = how;
  wait_while([] { return passes > 0; });
}

// Objects that compilers make while they compile should not be destroyed (never_destroy in nvrtc.cpp), but some
// versions of NVRTC do not let us ensure that. Then exit() destroys such objects before it calls the functions that
// were registered when the library was loaded. But before everything else it ends the thread-local objects of its
// thread. This object belongs to the thread that loads the library. That is mostly the main thread, and when it ends,
// the process mostly ends, too.
struct EndOfMainThread {
  ~EndOfMainThread() {
    if (getpid() == gettid()) end(Process::IsEnding);
  }
};
thread_local EndOfMainThread end_of_main_thread;
[[maybe_unused]] const EndOfMainThread* const made_when_loaded = &end_of_main_thread;

}  // namespace

CompilerPass::CompilerPass() {
  while (process != Process::HasEnded && !given_) {
    wait_while([] { return process == Process::IsEnding; });
    // Only the main thread has ended, by pthread_exit().
    Process waited = Process::IsEnding;
    process.compare_exchange_strong(waited, Process::Runs);
    ++passes;
    given_ = process == Process::Runs;
    if (!given_) --passes;
  }
}

CompilerPass::~CompilerPass() {
  if (given_) --passes;
}

Result<void> CompilerPass::status() const {
  if (given_) return {};
  return Error{ErrorKind::Compile, "the process is ending, and nothing is compiled any more", {}};
}

void CompilerPass::library_was_loaded() {
  // A forked child does not have the threads that held passes.
  [[maybe_unused]] static const int forks = pthread_atfork(nullptr, nullptr, [] { passes = 0; });
  atexit([] { end(Process::HasEnded); });
}

}  // namespace flashjit

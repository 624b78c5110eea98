#include "runtime/compiler_pass.h"

#include <pthread.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace flashjit {
namespace {

// The longest compile that was seen takes some seconds; one that hangs must not keep the process.
constexpr std::chrono::seconds kMostWait{30};
// Compilers make further static objects when they compile for the first time: the wait is registered again after each of these.
constexpr int kFirstCompiles = 4;

// No mutex: a child that is forked while a thread holds one would keep it for ever.
std::atomic<int> passes{0}, compiles{0};
std::atomic<bool> ending{false};

void wait_for_passes() {
  ending = true;
  for (const auto until = std::chrono::steady_clock::now() + kMostWait; passes > 0 && std::chrono::steady_clock::now() < until;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

CompilerPass::CompilerPass() {
  ++passes;
  given_ = !ending;
  if (!given_) --passes;
}

CompilerPass::~CompilerPass() {
  if (!given_) return;
  if (compiles < kFirstCompiles && ++compiles <= kFirstCompiles) atexit(wait_for_passes);
  --passes;
}

Result<void> CompilerPass::status() const {
  if (given_) return {};
  return Error{ErrorKind::Compile, "the process is ending, and nothing is compiled any more", {}};
}

bool CompilerPass::process_is_ending() { return ending; }

void CompilerPass::library_was_loaded() {
  // In a child, those who held passes are not there.
  [[maybe_unused]] static const int forks = pthread_atfork(nullptr, nullptr, [] { passes = 0; });
  atexit(wait_for_passes);
}

}  // namespace flashjit

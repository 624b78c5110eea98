// Every thread of the library is made by library_thread().
#pragma once

#include <signal.h>

#include <thread>
#include <utility>

#include "runtime/launch/default_floats.h"

namespace flashjit {

// Threads that this object's thread makes while the object lives get no signal of the program. A signal that the
// program's own threads have blocked would end the program instead of waiting for sigwait(). The program still gets the
// faults of these threads.
class SignalsHeldOff {
 public:
  SignalsHeldOff() {
    sigset_t held;
    sigfillset(&held);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) sigdelset(&held, fault);
    pthread_sigmask(SIG_BLOCK, &held, &before_);
  }
  ~SignalsHeldOff() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsHeldOff(const SignalsHeldOff&) = delete;
  SignalsHeldOff& operator=(const SignalsHeldOff&) = delete;

 private:
  sigset_t before_;
};

// Makes a thread without signals and with the default floating point. It throws std::system_error if the limit on
// threads is reached.
template <class Function>
std::jthread library_thread(Function function) {
  const SignalsHeldOff held_off;
  return std::jthread([function = std::move(function)]() mutable {
    const DefaultFloats floats;
    function();
  });
}

}  // namespace flashjit

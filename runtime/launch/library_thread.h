// This file says how every thread of the library is made.
#pragma once

#include <signal.h>

#include <thread>
#include <utility>

#include "runtime/launch/default_floats.h"

namespace flashjit {

// Threads that are made while it lives, by its thread, get no signal of the program: one that the program's own threads
// have blocked would end it instead of waiting for sigwait(). Faults of the threads themselves are told to the program.
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

// A thread without signals and with the default floating point. Throws std::system_error where there can be no more.
template <class Function>
std::jthread library_thread(Function function) {
  const SignalsHeldOff held_off;
  return std::jthread([function = std::move(function)]() mutable {
    const DefaultFloats floats;
    function();
  });
}

}  // namespace flashjit

#pragma once

namespace flashjit {

// Lets PrepareOptions::tune and verify do their work in this process. libflashjit.so does so by itself, and so does
// every Session.
void enable_in_prepare();

}  // namespace flashjit

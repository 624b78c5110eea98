// NVRTC can run in a process of its own. If it crashes, hangs or eats the memory, the program that asked for a kernel
// gets an error. The process is flashjit-compiler, one per compile. It gets the request on a socket and answers there:
//   u64 bytes | fields, each u64 bytes and the bytes | SHA-256 of the fields
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "codegen/cuda/emit.h"
#include "compiler/result.h"
#include "runtime/compile/compile_bounds.h"
#include "runtime/compile/nvrtc/nvrtc.h"

namespace flashjit {

struct CompilerRequest {
  // Path of the library, or the name for the loader if only the library's identity is asked for.
  std::string nvrtc;
  std::string identity;  // the identity that the library must have
  std::vector<std::string> options;
  KernelSource source;  // without `entries`
  CompilerOutput output = CompilerOutput::Cubin;
};

// Starts `program`, and kills it when `bounds` are over, or after ten minutes. Errors are those of the compile; Compile
// when the process ends or answers wrongly, with what became of it; and NotFound when it cannot be started.
Result<CompilerResult> run_compiler_process(const std::string& program, const CompilerRequest& request,
                                            const CompileBounds& bounds);

// Returns the path of flashjit-compiler, which is beside this library or program, or where it is installed relative to
// them.
Result<std::string> find_compiler_program();

// These functions encode and decode the messages on the socket. Decoding returns nothing if a bit differs from what was
// encoded.
std::vector<std::uint8_t> encode(const CompilerRequest& request);
std::vector<std::uint8_t> encode(const Result<CompilerResult>& answer);
std::optional<CompilerRequest> decode_request(std::span<const std::uint8_t> bytes);
std::optional<Result<CompilerResult>> decode_answer(std::span<const std::uint8_t> bytes);

}  // namespace flashjit

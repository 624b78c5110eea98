// Caches of latents whose rows are bytes in a format of their own (kv=latent656), or that quantize writes
// (out=latent656): the specs that may have them.
#pragma once

#include "compiler/spec/spec.h"

namespace flashjit {

Result<void> check_latents(const AttentionSpec& spec);  // a part of validate()

}  // namespace flashjit

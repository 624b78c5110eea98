// The rules for caches of latents whose rows are bytes in a format of their own: fwd reads them (kv=latent656), and
// quantize writes them (out=latent656).
#pragma once

#include "compiler/spec/spec.h"

namespace flashjit {

Result<void> check_latents(const AttentionSpec& spec);  // validate() calls it.

}  // namespace flashjit

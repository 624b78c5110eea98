#include "codegen/host/before/before.h"

#include "codegen/host/before/append.h"
#include "codegen/host/before/blocks.h"
#include "codegen/host/before/latents.h"

namespace flashjit::host {

std::unique_ptr<HostKernel> prepared_kernel(const AttentionSpec& spec, std::unique_ptr<HostKernel> attention) {
  if (has_latent_rows(spec)) attention = kernel_of_latents(spec, std::move(attention));
  if (appends(spec)) attention = appending_kernel(spec, std::move(attention));
  if (has_blocks(spec)) attention = kernel_in_blocks(spec, std::move(attention));
  return attention;
}

}  // namespace flashjit::host

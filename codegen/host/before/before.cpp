#include "codegen/host/before/before.h"

#include "codegen/host/before/append.h"
#include "codegen/host/before/blocks.h"
#include "codegen/host/before/latents.h"
#include "codegen/host/before/shown_keys.h"

namespace flashjit::host {

Result<std::unique_ptr<HostKernel>> prepared_kernel(const AttentionSpec& spec, const Code& code,
                                                    std::unique_ptr<HostKernel> attention) {
  if (has_latent_rows(spec)) attention = kernel_of_latents(spec, std::move(attention));
  if (appends(spec)) attention = appending_kernel(spec, std::move(attention));
  if (has_blocks(spec)) attention = kernel_in_blocks(spec, std::move(attention));
  if (spec.list_mask) return kernel_of_shown_keys(spec, code, std::move(attention));
  return attention;
}

}  // namespace flashjit::host

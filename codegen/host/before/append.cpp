#include "codegen/host/before/append.h"

#include <array>

#include "codegen/host/before/latents.h"
#include "codegen/host/problem.h"
#include "codegen/host/rope.h"
#include "codegen/host/workspace.h"
#include "compiler/spec/half.h"

namespace flashjit::host {
namespace {

class AppendingKernel final : public HostKernel {
 public:
  AppendingKernel(const AttentionSpec& spec, std::unique_ptr<HostKernel> attention)
      : spec_(spec), attention_(std::move(attention)) {}

  Result<void> run(const KernelParams& params, const ParallelFor& parallel) const override {
    if (spec_.rope == Rope::none) {
      append(params, nullptr, params, parallel);
      return attention_->run(params, parallel);
    }
    KernelParams rotated = params;
    const Int64 token = Int64{spec_.heads_q} * spec_.d_qk;
    rotated.q_stride = {.batch = params.q_len * token, .head = spec_.d_qk, .token = token};
    const Int64 tokens = is_packed(spec_) ? params.offsets_q[params.batch] : Int64{params.batch} * params.q_len;
    const std::int64_t bytes = tokens * token * size_of(spec_.dtype);
    std::unique_ptr<Workspace> workspace = workspaces_.take(bytes + 1);
    if (!workspace) {
      return Error{
          ErrorKind::Io, "workspace: no memory for " + std::to_string(bytes >> 20) + " MiB; use shorter prompts", {}};
    }
    rotated.q = workspace->data();
    const RowTurner turner(spec_, params);
    append(params, &turner, rotated, parallel);
    auto done = attention_->run(rotated, parallel);
    workspaces_.give_back(std::move(workspace));
    return done;
  }

 private:
  // Writes a row of Q's dtype, turned if there is a turner, as elements that are multiplied by `scale` when they are
  // read.
  void copy_row(const void* from, const void* to, int columns, Dtype dtype, float scale, const RowTurner* turner,
                std::int64_t position) const {
    std::array<float, kMaxLatentDimQk> row;
    for (int i = 0; i < columns; ++i) row[i] = load_float(spec_.dtype, from, i);
    if (turner) turner->turn(row.data(), position);
    for (int i = 0; i < columns; ++i) store_float(dtype, const_cast<void*>(to), i, row[i] / scale);
  }

  // `turner` is null where nothing rotates.
  void append(const KernelParams& params, const RowTurner* turner, const KernelParams& rotated,
              const ParallelFor& parallel) const {
    KernelParams of_keys = params, of_values = params;  // Rows of new tokens lie as those of Q do.
    of_keys.q = params.k_new, of_keys.q_stride = params.k_new_stride;
    of_values.q = params.v_new, of_values.q_stride = params.v_new_stride;
    const Problem from(spec_, params), to(spec_, rotated), new_keys(spec_, of_keys), new_values(spec_, of_values);
    parallel.each(Int64{params.batch} * params.q_len, [&](std::int64_t item, int) {
      const std::int64_t b = item / params.q_len, q = item % params.q_len;
      const Sequence s = from.sequence(b);
      if (q >= s.q_len) return;
      const std::int64_t position = s.k_len - s.q_len + q, token = s.q_first + q;
      for (std::int64_t h = 0; turner && h < spec_.heads_q; ++h)
        copy_row(from.q(b, h, token), to.q(b, h, token), spec_.d_qk, spec_.dtype, 1, turner,
                 std::max<std::int64_t>(position, 0));
      if (position < 0) return;
      if (has_latent_rows(spec_)) {
        std::array<float, kMaxLatentDimQk> row;
        for (int i = 0; i < spec_.d_qk; ++i) row[i] = load_float(spec_.dtype, new_keys.q(b, 0, token), i);
        if (turner) turner->turn(row.data(), position);
        LatentCache(spec_, params).store(from.key_address(b, position), row.data());
        return;
      }
      for (std::int64_t hk = 0; hk < spec_.heads_kv; ++hk) {
        const void *k = nullptr, *v = nullptr;
        from.k_rows(b, hk, position, 1, &k);
        copy_row(new_keys.q(b, hk, token), k, spec_.d_qk, spec_.kv_dtype, from.scale_k(b, hk, position), turner,
                 position);
        if (spec_.v_in_k) continue;
        from.v_rows(b, hk, position, 1, &v);
        copy_row(new_values.q(b, hk, token), v, spec_.d_v, spec_.kv_dtype, from.scale_v(b, hk, position), nullptr,
                 position);
      }
    });
  }

  AttentionSpec spec_;
  std::unique_ptr<HostKernel> attention_;
  mutable WorkspacePool workspaces_;
};

}  // namespace

std::unique_ptr<HostKernel> appending_kernel(const AttentionSpec& spec, std::unique_ptr<HostKernel> attention) {
  return std::make_unique<AppendingKernel>(spec, std::move(attention));
}

}  // namespace flashjit::host

// Rotates rows by their positions on a processor.
#pragma once

#include <cstdint>

#include "compiler/spec/spec.h"
#include "templates/append/rope.h"
#include "templates/kernel_params.h"

namespace flashjit::host {

class RowTurner {
 public:
  // The spec must have rope, and `params` those of a call of it.
  RowTurner(const AttentionSpec& spec, const KernelParams& params);
  // Rotates a row of d_qk numbers.
  void turn(float* columns, std::int64_t position) const;

 private:
  struct Angle {
    double cos, sin;
  };
  Angle angle(std::int64_t position, int pair) const;

  const AttentionSpec& spec_;
  const KernelParams& params_;
  const RopeTurns turns_;
};

}  // namespace flashjit::host

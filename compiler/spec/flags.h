// The options that a spec asks for by a word alone. Each is a bool of the spec and of the kernels made from it. Parser,
// printer and config read this table.
#pragma once

#include <array>
#include <string_view>

#include "compiler/spec/spec.h"
#include "templates/kernel_config.h"

namespace flashjit {

struct SpecFlag {
  std::string_view name;
  bool AttentionSpec::* of_spec;
  bool KernelConfig::* of_kernel;
};

inline constexpr std::array kSpecFlags = {
    SpecFlag{"max_logit", &AttentionSpec::max_logit, &KernelConfig::max_logit},
    SpecFlag{"sink", &AttentionSpec::sink, &KernelConfig::sink},
    SpecFlag{"k_lens", &AttentionSpec::k_lens, &KernelConfig::k_lens},
    SpecFlag{"v_in_k", &AttentionSpec::v_in_k, &KernelConfig::v_in_k},
    SpecFlag{"v_transposed", &AttentionSpec::v_transposed, &KernelConfig::v_transposed},
    SpecFlag{"token_scales", &AttentionSpec::token_scales, &KernelConfig::token_scales},
    SpecFlag{"linear_exp", &AttentionSpec::linear_exp, &KernelConfig::linear_exp},
    SpecFlag{"dlse", &AttentionSpec::dlse, &KernelConfig::dlse},
    SpecFlag{"append", &AttentionSpec::append, &KernelConfig::append},
    SpecFlag{"rotate", &AttentionSpec::rotate, &KernelConfig::rotate},
    SpecFlag{"shared_prefix", &AttentionSpec::shared_prefix, &KernelConfig::shared_prefix},
    SpecFlag{"accumulate", &AttentionSpec::accumulate, &KernelConfig::accumulate},
    SpecFlag{"places", &AttentionSpec::places, &KernelConfig::places},
    SpecFlag{"head_tables", &AttentionSpec::head_tables, &KernelConfig::head_tables},
};

}  // namespace flashjit

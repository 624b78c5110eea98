// A spec and a target by name, as families see them.
#pragma once

#include <string_view>

#include "compiler/program/config.h"

namespace flashjit {

struct Asked {
  Asked(std::string_view text, std::string_view target_name)
      : spec(*parse_spec(text)), target(**find_target(target_name)), tiles(analyse_tiles(spec.mask)) {}
  Asked(const Asked&) = delete;  // `problem` refers to the others

  const AttentionSpec spec;
  const Target target;
  const TileAnalysis tiles;
  const Problem problem = {spec, target, tiles};
};

}  // namespace flashjit

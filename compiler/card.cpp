#include "compiler/card.h"

#include <algorithm>
#include <array>

namespace flashjit {

namespace {

constexpr std::array kCards = {
    Card{"a100", "A100 SXM 80 GB", "sm_80", 1.75},
    Card{"a10", "A10", "sm_86", 0.54},
    Card{"orin", "AGX Orin 64 GB", "sm_87", 0.18},
    Card{"rtx4090", "RTX 4090", "sm_89", 0.93},
    Card{"h200", "H200", "sm_90a", 4.54},
    Card{"h100", "H100 SXM", "sm_90a", 3.17},  // It is the same share of its data sheet's 3.35 as of the H200's.
    Card{"b200", "B200", "sm_100a", 7.2},
    Card{"b300", "B300", "sm_103a", 7.2},
    Card{"rtx5090", "RTX 5090", "sm_120a", 1.65},
    Card{"spark", "DGX Spark", "sm_121a", 0.24},
};

}  // namespace

std::span<const Card> cards() { return kCards; }

const Card* find_card(std::string_view name) {
  const auto found = std::ranges::find(kCards, name, &Card::name);
  return found == kCards.end() ? nullptr : &*found;
}

const Card* usual_card(const Target& target) {
  const auto found = std::ranges::find(kCards, target.name, &Card::target);
  return found == kCards.end() ? nullptr : &*found;
}

}  // namespace flashjit

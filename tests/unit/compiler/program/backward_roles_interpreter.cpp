// Blocks whose warpgroups have roles: scores and dV, dP and dK, and in clusters dQ.
#include <map>
#include <optional>
#include <string>

#include "compiler/program/ir_verify_roles.h"
#include "tests/unit/compiler/program/backward_numbers.h"
#include "tests/unit/compiler/program/interpreter.h"

namespace flashjit::testing {

namespace {

// A block has the keys of this warpgroup's number; the other block of a cluster those of the next.
constexpr int kOwn = 0, kOther = 1;
constexpr int kPanels = 2, kPanelDims = kDims / kPanels;

// The numbers that the roles of a block have, and hand each other.
struct Block {
  std::int64_t item = 0, slots = 1;
  Scores s = {}, p = {}, told = {}, dp = {}, ds = {};
  KeyRows dk = {{{7, 7, 7, 7}, {7, 7, 7, 7}, {7, 7, 7, 7}}}, dv = dk;  // whatever the registers held before
  bool has_lse = false, has_d = false;                                 // is S, is dP relative to it?
  std::map<std::int64_t, Scores> ds_of_slot = {}, other_ds_of_slot = {};
  std::array<std::array<double, kPanelDims>, kQueries> sums = {};
  int panel = 0;
  std::map<std::int64_t, QueryRows> dq = {};
  std::optional<KeyRows> stored_dk = {}, stored_dv = {};

  static void each(const auto& act) {
    for (int k = 0; k < kKeys; ++k)
      for (int q = 0; q < kQueries; ++q) act(k, q);
  }
  void multiply(const Program& program, const Step& step) {
    const Statement& statement = *step.statement;
    const std::string_view form = statement.form;
    const bool onto = statement.product.accumulates;
    const std::int64_t tile = step.tile;
    if (form == "lse_terms" || form == "scores") {
      has_lse = form == "lse_terms" || (has_lse && onto);
      each([&](int k, int q) {
        double sum = onto ? s[k][q] : 0;
        if (form == "lse_terms") sum -= lse(item, tile, q);
        for (int i = 0; i < kDims && form == "scores"; ++i) sum += key(item, kOwn, k, i) * query(item, tile, q, i);
        s[k][q] = sum;
      });
    } else if (form == "d_terms" || form == "role_dp") {
      has_d = form == "d_terms" || (has_d && onto);
      each([&](int k, int q) {
        double sum = onto ? dp[k][q] : 0;
        if (form == "d_terms") sum -= d(item, tile, q);
        for (int i = 0; i < kDims && form == "role_dp"; ++i) sum += value(item, kOwn, k, i) * d_o(item, tile, q, i);
        dp[k][q] = sum;
      });
    } else if (form == "role_dv" || form == "dv_rest") {
      for_columns(program, statement,
                  [&](int i) { each([&](int k, int q) { dv[k][i] += p[k][q] * d_o(item, tile, q, i); }); });
    } else if (form == "role_dk" || form == "dk_rest") {
      for_columns(program, statement,
                  [&](int i) { each([&](int k, int q) { dk[k][i] += ds[k][q] * query(item, tile, q, i); }); });
    } else {
      add_panel(step, form == "dq_panel" ? kOwn : kOther, onto);
    }
  }
  // The columns of a product: all, or the first or the rest of them where two share a sum.
  static void for_columns(const Program& program, const Statement& statement, const auto& add) {
    const int of = std::stoi(program.buffers[static_cast<std::size_t>(statement.writes[0])].cols);
    const int count = (kDims * statement.product.columns + of / 2) / of;
    const int first = statement.form.ends_with("_rest") ? kDims - count : 0;
    for (int i = first; i < first + count; ++i) add(i);
  }
  void add_panel(const Step& step, int of, bool onto) {
    const Scores& from = (of == kOwn ? ds_of_slot : other_ds_of_slot)[step.number % slots];
    for (int q = 0; q < kQueries; ++q) {
      for (int i = 0; i < kPanelDims; ++i) {
        double sum = onto ? sums[q][i] : 0;
        for (int k = 0; k < kKeys; ++k) sum += from[k][q] * key(item, of, k, panel * kPanelDims + i);
        sums[q][i] = sum;
      }
    }
  }
  // dS of the other block by its definition.
  Scores other_ds(std::int64_t tile) const {
    Scores of = {};
    each([&](int k, int q) { of[k][q] = Reference{item}.ds(kOther, k, tile, q); });
    return of;
  }

  void execute(const Program& program, const Step& step) {
    const Statement& statement = *step.statement;
    const auto writes = [&](std::string_view name) {
      return !statement.writes.empty() && program.buffers[static_cast<std::size_t>(statement.writes[0])].name == name;
    };
    switch (statement.kind) {
      case Kind::Mma: multiply(program, step); break;
      case Kind::Softmax:
        each([&](int k, int q) { s[k][q] = p[k][q] = std::exp(s[k][q] - (has_lse ? 0 : lse(item, step.tile, q))); });
        break;
      case Kind::Stage:
        if (writes("Ps")) told = s;
        if (writes("dSs")) ds_of_slot[step.number % slots] = ds;
        if (writes("other dSs")) other_ds_of_slot[step.number % slots] = other_ds(step.tile);
        break;
      case Kind::Gradient:
        each([&](int k, int q) { dp[k][q] = told[k][q] * (dp[k][q] - (has_d ? 0 : d(item, step.tile, q))); });
        break;
      case Kind::Convert: ds = dp; break;
      case Kind::Fill:
        if (writes("dK")) dk = {};
        if (writes("dV")) dv = {};
        break;
      case Kind::Store:
        if (writes("dk")) stored_dk = dk;
        if (writes("dv")) stored_dv = dv;
        if (writes("dq")) {
          for (int q = 0; q < kQueries; ++q)
            for (int i = 0; i < kPanelDims; ++i) dq[step.tile][q][panel * kPanelDims + i] += sums[q][i];
          panel = (panel + 1) % kPanels;
        }
        break;
      default: break;
    }
  }
};

std::string compare(Block& block, std::int64_t tiles, bool makes_dq) {
  const std::int64_t item = block.item;
  const Reference reference = {item};
  if (!block.stored_dk || !block.stored_dv) return "dK or dV is never stored";
  for (int i = 0; i < kDims; ++i) {
    for (int k = 0; k < kKeys; ++k) {
      double dk = 0, dv = 0;
      for (std::int64_t tile = 0; tile < tiles; ++tile) {
        for (int q = 0; q < kQueries; ++q) {
          dk += reference.ds(kOwn, k, tile, q) * query(item, tile, q, i);
          dv += reference.p(kOwn, k, tile, q) * d_o(item, tile, q, i);
        }
      }
      if (const std::string off = differ("dK", item, k, i, (*block.stored_dk)[k][i], dk); !off.empty()) return off;
      if (const std::string off = differ("dV", item, k, i, (*block.stored_dv)[k][i], dv); !off.empty()) return off;
    }
    for (std::int64_t tile = 0; makes_dq && tile < tiles; ++tile) {
      for (int q = 0; q < kQueries; ++q) {
        double dq = 0;
        for (const int of : {kOwn, kOther})
          for (int k = 0; k < kKeys; ++k) dq += reference.ds(of, k, tile, q) * key(item, of, k, i);
        if (const std::string off = differ("dQ", item, q, i, block.dq[tile][q][i], dq); !off.empty()) return off;
      }
    }
  }
  return {};
}

}  // namespace

std::string interpret_backward_roles(const Program& program, const Scenario& scenario) {
  const int exchange = program.buffer("dSs");
  for (const RoleItem& item : scenario.items) {
    Block block;
    block.slots = exchange < 0 ? 1 : program.buffers[static_cast<std::size_t>(exchange)].stages;
    const auto done = run_roles(program, {{item}, scenario.seed},
                                [&](const RoleTrace&, const Step& step) { block.execute(program, step); });
    if (!done) return done.error().message;
    if (const std::string off = compare(block, item.tiles, exchange >= 0); !off.empty()) return off;
  }
  return {};
}

}  // namespace flashjit::testing

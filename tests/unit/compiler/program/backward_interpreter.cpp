#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "compiler/program/edit.h"
#include "compiler/program/ir_verify_roles.h"
#include "tests/unit/compiler/program/backward_numbers.h"
#include "tests/unit/compiler/program/interpreter.h"

namespace flashjit::testing {

namespace {

// The warpgroups of a block tell each other dS, by slot and warpgroup, and add to dQ in memory, by item and tile.
struct Shared {
  std::map<std::pair<std::int64_t, int>, Scores> ds;
  std::map<std::pair<std::int64_t, std::int64_t>, QueryRows> dq;
};

struct Consumer {
  int warpgroup, warpgroups;
  std::int64_t slots;  // of dS
  Shared& shared;
  Scores s = {}, p = {}, dp = {}, ds = {};
  KeyRows dk = {}, dv = {};
  std::map<std::string, QueryRows> dq = {};  // by registers
  bool has_lse = false, has_d = false;       // is S, is dP relative to it?
  std::map<std::int64_t, std::pair<KeyRows, KeyRows>> results = {};

  void add_scores(Scores& to, bool onto, const auto& element) {
    for (int k = 0; k < kKeys; ++k)
      for (int q = 0; q < kQueries; ++q) to[k][q] = (onto ? to[k][q] : 0) + element(k, q);
  }
  void multiply(const Program& program, const Step& step) {
    const Statement& statement = *step.statement;
    const bool onto = statement.product.accumulates;
    const std::int64_t item = step.item, tile = step.tile;
    const auto dot = [](const auto& a, const auto& b) {
      double sum = 0;
      for (int i = 0; i < kDims; ++i) sum += a(i) * b(i);
      return sum;
    };
    if (statement.form == "lse_terms") {
      has_lse = true;
      add_scores(s, onto, [&](int, int q) { return -lse(item, tile, q); });
    } else if (statement.form == "d_terms") {
      has_d = true;
      add_scores(dp, onto, [&](int, int q) { return -d(item, tile, q); });
    } else if (statement.form == "scores") {
      has_lse = has_lse && onto;
      add_scores(s, onto, [&](int k, int q) {
        return dot([&](int i) { return key(item, warpgroup, k, i); }, [&](int i) { return query(item, tile, q, i); });
      });
    } else if (statement.form == "dp") {
      has_d = has_d && onto;
      add_scores(dp, onto, [&](int k, int q) {
        return dot([&](int i) { return value(item, warpgroup, k, i); }, [&](int i) { return d_o(item, tile, q, i); });
      });
    } else if (statement.form == "dv") {
      for (int k = 0; k < kKeys; ++k)
        for (int i = 0; i < kDims; ++i)
          for (int q = 0; q < kQueries; ++q) dv[k][i] += p[k][q] * d_o(item, tile, q, i);
    } else if (statement.form == "dk") {
      for (int k = 0; k < kKeys; ++k)
        for (int i = 0; i < kDims; ++i)
          for (int q = 0; q < kQueries; ++q) dk[k][i] += ds[k][q] * query(item, tile, q, i);
    } else {  // dQ, of a share of the columns
      const std::int64_t slot = (step.number - (is_before(statement) ? 1 : 0) + slots) % slots;
      QueryRows& to = dq[program.buffers[static_cast<std::size_t>(statement.writes[0])].name];
      to = {};
      for (int of = 0; of < warpgroups; ++of)
        for (int q = 0; q < kQueries; ++q)
          for (int i = warpgroup; i < kDims; i += warpgroups)
            for (int k = 0; k < kKeys; ++k) to[q][i] += shared.ds[{slot, of}][k][q] * key(item, of, k, i);
    }
  }
  void make_probabilities(const Step& step) {
    for (int k = 0; k < kKeys; ++k)
      for (int q = 0; q < kQueries; ++q) p[k][q] = std::exp(s[k][q] - (has_lse ? 0 : lse(step.item, step.tile, q)));
  }
  void make_gradients(const Step& step, const Scores& weights) {
    for (int k = 0; k < kKeys; ++k)
      for (int q = 0; q < kQueries; ++q)
        ds[k][q] = weights[k][q] * (dp[k][q] - (has_d ? 0 : d(step.item, step.tile, q)));
  }

  void execute(const Program& program, const Step& step) {
    const Statement& statement = *step.statement;
    const auto writes = [&](std::string_view name) {
      return !statement.writes.empty() && program.buffers[static_cast<std::size_t>(statement.writes[0])].name == name;
    };
    switch (statement.kind) {
      case Kind::Mma: multiply(program, step); break;
      case Kind::Softmax:
        make_probabilities(step);
        s = p;
        break;
      case Kind::Gradient:
        if (statement.form == "at_once") make_probabilities(step);
        make_gradients(step, statement.form == "at_once" ? p : s);
        break;
      case Kind::Stage: shared.ds[{step.number % slots, warpgroup}] = ds; break;
      case Kind::Fill:
        if (writes("dK")) dk = {};
        if (writes("dV")) dv = {};
        break;
      case Kind::Store:
        if (writes("dk")) results[step.item].first = dk;
        if (writes("dv")) results[step.item].second = dv;
        if (writes("dq")) {
          const std::string& from = program.buffers[static_cast<std::size_t>(statement.reads[0])].name;
          QueryRows& to = shared.dq[{step.item, is_before(statement) ? step.tile_before : step.tile}];
          for (int q = 0; q < kQueries; ++q)
            for (int i = 0; i < kDims; ++i) to[q][i] += dq[from][q][i];
        }
        break;
      default: break;
    }
  }
};

// A warpgroup of the launch that makes dQ where that is one of its own: queries of one item, and tiles of keys.
struct QueryConsumer {
  int warpgroup;
  std::array<std::array<double, kKeys>, kQueries> s = {}, dp = {}, ds = {};
  QueryRows dq = {{{7, 7, 7, 7}, {7, 7, 7, 7}}};  // whatever the registers held before
  std::optional<QueryRows> result = {};

  void execute(const Step& step) {
    const Statement& statement = *step.statement;
    const auto each = [](const auto& act) {
      for (int q = 0; q < kQueries; ++q)
        for (int k = 0; k < kKeys; ++k) act(q, k);
    };
    const auto key_tile = static_cast<int>(step.tile);
    if (statement.form == "dq_scores" || statement.form == "dq_dp") {
      each([&](int q, int k) {
        double sum = 0;
        for (int i = 0; i < kDims; ++i) {
          sum += statement.form == "dq_dp" ? d_o(0, warpgroup, q, i) * value(0, key_tile, k, i)
                                           : query(0, warpgroup, q, i) * key(0, key_tile, k, i);
        }
        (statement.form == "dq_dp" ? dp : s)[q][k] = sum;
      });
    } else if (statement.form == "dq_sum") {
      each([&](int q, int k) {
        for (int i = 0; i < kDims; ++i) dq[q][i] += ds[q][k] * key(0, key_tile, k, i);
      });
    } else if (statement.kind == Kind::Softmax) {
      each([&](int q, int k) { s[q][k] = std::exp(s[q][k] - lse(0, warpgroup, q)); });
    } else if (statement.kind == Kind::Gradient) {
      each([&](int q, int k) { ds[q][k] = s[q][k] * (dp[q][k] - d(0, warpgroup, q)); });
    } else if (statement.kind == Kind::Fill) {
      dq = {};
    } else if (statement.kind == Kind::Store) {
      result = dq;
    }
  }
};

std::string compare_keys(const Consumer& consumer, std::int64_t item, std::int64_t tiles) {
  const auto found = consumer.results.find(item);
  if (found == consumer.results.end()) return fmt::format("dK and dV of item {} are never stored", item);
  const Reference reference = {item};
  for (int k = 0; k < kKeys; ++k) {
    for (int i = 0; i < kDims; ++i) {
      double dk = 0, dv = 0;
      for (std::int64_t tile = 0; tile < tiles; ++tile) {
        for (int q = 0; q < kQueries; ++q) {
          dk += reference.ds(consumer.warpgroup, k, tile, q) * query(item, tile, q, i);
          dv += reference.p(consumer.warpgroup, k, tile, q) * d_o(item, tile, q, i);
        }
      }
      const auto& [of_dk, of_dv] = found->second;
      if (const std::string off = differ("dK", item, k, i, of_dk[k][i], dk); !off.empty()) return off;
      if (const std::string off = differ("dV", item, k, i, of_dv[k][i], dv); !off.empty()) return off;
    }
  }
  return {};
}
std::string compare_queries(Shared& shared, std::int64_t item, std::int64_t tiles, int warpgroups) {
  const Reference reference = {item};
  for (std::int64_t tile = 0; tile < tiles; ++tile) {
    for (int q = 0; q < kQueries; ++q) {
      for (int i = 0; i < kDims; ++i) {
        double dq = 0;
        for (int warpgroup = 0; warpgroup < warpgroups; ++warpgroup)
          for (int k = 0; k < kKeys; ++k) dq += reference.ds(warpgroup, k, tile, q) * key(item, warpgroup, k, i);
        if (const std::string off = differ("dQ", item, q, i, shared.dq[{item, tile}][q][i], dq); !off.empty())
          return off;
      }
    }
  }
  return {};
}

std::string compare_launch(const QueryConsumer& consumer, std::int64_t tiles) {
  if (!consumer.result) return "dQ is never stored";
  const Reference reference = {0};
  for (int q = 0; q < kQueries; ++q) {
    for (int i = 0; i < kDims; ++i) {
      double dq = 0;
      for (std::int64_t tile = 0; tile < tiles; ++tile)
        for (int k = 0; k < kKeys; ++k)
          dq += reference.ds(static_cast<int>(tile), k, consumer.warpgroup, q) * key(0, static_cast<int>(tile), k, i);
      if (const std::string off = differ("dQ", 0, q, i, (*consumer.result)[q][i], dq); !off.empty()) return off;
    }
  }
  return {};
}
std::string interpret_queries(const Program& launch, const Scenario& scenario) {
  std::vector<QueryConsumer> consumers;
  for (int i = 0; i < static_cast<int>(consumers_of(launch)); ++i) consumers.push_back({i});
  const auto done = run_roles(launch, scenario, [&](const RoleTrace& trace, const Step& step) {
    consumers[static_cast<std::size_t>(trace.number)].execute(step);
  });
  if (!done) return done.error().message;
  for (const QueryConsumer& consumer : consumers)
    if (const std::string off = compare_launch(consumer, scenario.items.front().tiles); !off.empty()) return off;
  return {};
}

}  // namespace

std::string interpret_backward(const Program& program, const Scenario& scenario) {
  for (const Statement& s : program.body) {
    if (s.kind != Kind::Launch || !has_roles(s.body)) continue;
    Program launch = program;
    launch.body = s.body;
    for (const RoleItem& item : scenario.items)
      if (const std::string off = interpret_queries(launch, {{item}, scenario.seed}); !off.empty()) return off;
  }
  if (program.buffer("Ps") >= 0) return interpret_backward_roles(program, scenario);
  Shared shared;
  const int warpgroups = static_cast<int>(consumers_of(program)), exchange = program.buffer("dSs");
  const std::int64_t slots = exchange < 0 ? 1 : program.buffers[static_cast<std::size_t>(exchange)].stages;
  std::vector<Consumer> consumers;
  for (int i = 0; i < warpgroups; ++i) consumers.push_back({i, warpgroups, slots, shared});
  const auto done = run_roles(program, scenario, [&](const RoleTrace& trace, const Step& step) {
    consumers[static_cast<std::size_t>(trace.number)].execute(program, step);
  });
  if (!done) return done.error().message;
  for (std::size_t n = 0; n < scenario.items.size(); ++n) {
    const auto item = static_cast<std::int64_t>(n);
    const std::int64_t tiles = scenario.items[n].tiles;
    for (const Consumer& consumer : consumers)
      if (const std::string off = compare_keys(consumer, item, tiles); !off.empty()) return off;
    if (exchange < 0) continue;  // dQ is another launch's
    if (const std::string off = compare_queries(shared, item, tiles, warpgroups); !off.empty()) return off;
  }
  return {};
}

}  // namespace flashjit::testing

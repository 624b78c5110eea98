#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "compiler/program/edit.h"
#include "compiler/program/ir_verify_roles.h"
#include "tests/unit/compiler/program/interpreter.h"

namespace flashjit::testing {

namespace {

// A piece of K is a column here, of which two are a half of V; the last column lies behind V, if K has more than V.
constexpr int kRows = 2, kKeys = 3, kPieces = 4, kColumns = kPieces + 1;
constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();

using Rows = std::array<double, kRows>;
using Scores = std::array<std::array<double, kKeys>, kRows>;

// Numbers that follow from where they are, and grow along the tiles, so that references rise.
double query(std::int64_t item, int row, int column) {
  return 2 * std::sin(static_cast<double>(item * 613 + row * 31 + column * 11 + 1) * 1.7);
}
double key(std::int64_t item, std::int64_t tile, int k, int column) {
  return (1 + 0.3 * static_cast<double>(tile)) *
         std::cos(static_cast<double>(item * 401 + tile * 97 + k * 13 + column * 7 + 1) * 2.3);
}

// The last key of a mixed tile is hidden, and what lies there may be anything.
bool is_hidden(const RoleItem& item, std::int64_t tile, int k) { return tile < item.mixed && k == kKeys - 1; }

// The numbers that a warpgroup tells the other one.
struct Told {
  Scores weights = {};
  Rows factor = {}, reference = {}, sum = {};
};
struct Shared {
  const Scenario& scenario;
  bool gathers = false;  // who leaves K there has left zeros for hidden keys
  std::array<Told, 2> told = {};
};

struct Consumer {
  int half;
  Shared& shared;
  Scores s = {}, p = {};
  Rows reference = {}, sum = {}, factor = {};
  std::array<std::array<double, 2>, kRows> o = {};                     // of this half's columns
  std::map<std::pair<std::int64_t, std::int64_t>, bool> cleared = {};  // by item and tile: V of hidden keys is 0
  std::map<std::int64_t, std::array<std::array<double, 2>, kRows>> results = {};

  const RoleItem& item_of(std::int64_t item) const { return shared.scenario.items[static_cast<std::size_t>(item)]; }
  Told& own() { return shared.told[static_cast<std::size_t>(half)]; }
  const Told& other() const { return shared.told[static_cast<std::size_t>(1 - half)]; }

  void multiply_piece(const Step& step, int column, bool onto) {
    for (int row = 0; row < kRows; ++row) {
      for (int k = 0; k < kKeys; ++k) {
        const bool hidden = is_hidden(item_of(step.item), step.tile, k);
        s[row][k] =
            (onto ? s[row][k] : 0) +
            query(step.item, row, column) * (hidden ? shared.gathers ? 0 : kNan : key(step.item, step.tile, k, column));
      }
    }
  }
  void multiply_weights(const Scores& weights, std::int64_t item, std::int64_t tile, bool onto) {
    for (int row = 0; row < kRows; ++row) {
      for (int column = 0; column < 2; ++column) {
        double total = onto ? o[row][column] : 0;
        for (int k = 0; k < kKeys; ++k) {
          const bool hidden = is_hidden(item_of(item), tile, k);
          const double v = !hidden                                   ? key(item, tile, k, half * 2 + column)
                           : cleared[{item, tile}] || shared.gathers ? 0
                                                                     : kNan;
          total += weights[row][k] * v;
        }
        o[row][column] = total;
      }
    }
  }
  void soften() {
    for (int row = 0; row < kRows; ++row) {
      const double largest = *std::ranges::max_element(s[row]), before = reference[row];
      if (before == -kInfinity || largest > before + 1) reference[row] = std::max(before, largest);
      factor[row] = before == -kInfinity ? 1 : std::exp(before - reference[row]);
      sum[row] *= factor[row];
      for (int k = 0; k < kKeys; ++k) sum[row] += p[row][k] = std::exp(s[row][k] - reference[row]);
    }
  }
  void rescale(const Rows& by) {
    for (int row = 0; row < kRows; ++row)
      for (double& x : o[row]) x *= by[row];
  }
  void fill(const Step& step) {
    const std::string_view form = step.statement->form;
    if (form == "none") {
      reference.fill(-kInfinity);
      sum.fill(0);
    } else if (form == "begin") {
      for (int row = 0; row < kRows; ++row) reference[row] = s[row][0];
    } else if (form == "hidden") {
      cleared[{step.item, step.tile}] = true;
    } else if (form == "hidden_before") {
      cleared[{step.item_before, step.tile_before}] = true;
    } else {
      o = {};
    }
  }
  void stage(std::string_view form) {
    if (form == "weights") own().weights = p;
    else if (form == "rises") own().factor = factor, own().reference = reference;
    else own().sum = sum;
  }

  void execute(const Program& program, const Step& step) {
    const Statement& statement = *step.statement;
    switch (statement.kind) {
      case Kind::Mma:
        if (statement.form == "output") {
          multiply_weights(p, step.item, step.tile, step.item_before >= 0);
        } else if (statement.form == "output_before") {
          if (step.item_before < 0) o = {{{kNan, kNan}, {kNan, kNan}}};
          else multiply_weights(other().weights, step.item_before, step.tile_before, true);
        } else {
          const std::string& name = program.buffers[static_cast<std::size_t>(statement.reads[0])].name;
          multiply_piece(step, name[1] - '0', statement.product.accumulates);
          if (statement.reads.size() > 2) multiply_piece(step, kPieces, true);
        }
        break;
      case Kind::Mask:
        for (int row = 0; row < kRows; ++row)
          for (int k = 0; k < kKeys; ++k)
            if (is_hidden(item_of(step.item), step.tile, k)) s[row][k] = -kInfinity;
        break;
      case Kind::Softmax: soften(); break;
      case Kind::Rescale:
        if (statement.form != "of_before") return rescale(factor);
        rescale(other().factor);
        for (int row = 0; row < kRows; ++row) sum[row] *= other().factor[row];
        reference = other().reference;
        break;
      case Kind::Fill: fill(step); break;
      case Kind::Stage: stage(statement.form); break;
      case Kind::Reduce:
        for (int row = 0; row < kRows; ++row) sum[row] += other().sum[row];
        break;
      case Kind::Store:
        for (int row = 0; row < kRows; ++row)
          for (int column = 0; column < 2; ++column) results[step.item][row][column] = o[row][column] / sum[row];
        break;
      default: break;
    }
  }
};

std::string compare(const Consumer& consumer, std::int64_t item, const RoleItem& its, int columns) {
  const auto found = consumer.results.find(item);
  if (found == consumer.results.end()) return fmt::format("O of item {} is never stored", item);
  for (int row = 0; row < kRows && its.tiles > 0; ++row) {
    for (int column = 0; column < 2; ++column) {
      double total = 0, sum = 0;
      for (std::int64_t tile = 0; tile < its.tiles; ++tile) {
        for (int k = 0; k < kKeys; ++k) {
          if (is_hidden(its, tile, k)) continue;
          double score = 0;
          for (int i = 0; i < columns; ++i) score += query(item, row, i) * key(item, tile, k, i);
          sum += std::exp(score);
          total += std::exp(score) * key(item, tile, k, consumer.half * 2 + column);
        }
      }
      const double got = found->second[row][column];
      if (!(std::abs(got - total / sum) < 1e-9))
        return fmt::format("O of item {}, half {}, row {}, column {}: {} for {}", item, consumer.half, row, column, got,
                           total / sum);
    }
  }
  return {};
}

bool is_gathered(const Body& body) {
  return std::ranges::any_of(body, [](const Statement& s) {
    return (s.kind == Kind::Load && s.form.starts_with("gathered")) || is_gathered(s.body);
  });
}

}  // namespace

std::string interpret_mla(const Program& program, const Scenario& scenario) {
  Shared shared{scenario, is_gathered(program.body)};
  std::vector<Consumer> consumers = {{0, shared}, {1, shared}};
  const auto done = run_roles(program, scenario, [&](const RoleTrace& trace, const Step& step) {
    if (trace.role->kind == Kind::Consumer) consumers[static_cast<std::size_t>(trace.number)].execute(program, step);
  });
  if (!done) return done.error().message;
  const auto extent = [&](std::string_view name) {
    return program.buffers[static_cast<std::size_t>(program.buffer(name))].cols;
  };
  const int columns = extent("k") == extent("o") ? kPieces : kColumns;
  for (std::size_t item = 0; item < scenario.items.size(); ++item)
    for (const Consumer& consumer : consumers)
      if (const std::string off = compare(consumer, static_cast<std::int64_t>(item), scenario.items[item], columns);
          !off.empty())
        return off;
  return {};
}

}  // namespace flashjit::testing

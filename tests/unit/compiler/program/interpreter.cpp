#include "tests/unit/compiler/program/interpreter.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "compiler/program/edit.h"
#include "compiler/program/ir_verify_roles.h"

namespace flashjit::testing {

namespace {

constexpr int kRows = 2, kKeys = 3, kDims = 4;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Numbers that follow from where they are.
double number(int what, std::int64_t item, std::int64_t tile, int row, int column) {
  const auto at = static_cast<double>(what * 7919 + item * 613 + tile * 97 + row * 31 + column * 11 + 1);
  return std::sin(at * 1.7) * 2;
}
double query(std::int64_t item, int row, int i) { return number(1, item, 0, row, i); }
double key(std::int64_t item, std::int64_t tile, int k, int i) { return number(2, item, tile, k, i); }
double value(std::int64_t item, std::int64_t tile, int k, int i) { return number(3, item, tile, k, i); }
double score(std::int64_t item, std::int64_t tile, int row, int k) {
  double sum = 0;
  for (int i = 0; i < kDims; ++i) sum += query(item, row, i) * key(item, tile, k, i);
  return sum;
}
// Mixed tiles hide some keys of some rows, and never a row's last.
bool is_hidden(const Scenario& scenario, std::int64_t item, std::int64_t tile, int row, int k) {
  const RoleItem& of = scenario.items[static_cast<std::size_t>(item)];
  return tile < of.mixed && k > row && k > 0;
}

struct Rows {
  double of[kRows] = {};
};
struct Tile {
  double of[kRows][kDims] = {};
};

// One consumer, and what is in its registers.
struct Consumer {
  const Scenario& scenario;
  int pieces = 1;
  bool sums_in_columns = false, sums_apart = false;

  double s[kRows][kKeys] = {}, p[kRows][kKeys] = {};
  Tile o = {}, t = {};
  Rows ones = {}, tile_ones = {};  // columns of O and of T that sum up P
  Rows r = {}, reference = {}, sum = {}, factor = {};
  bool fresh = true;
  std::map<std::int64_t, Tile> results = {};
  std::int64_t item_of_references = -1, item_of_marks = -1;
  std::string fault = {};

  void multiply_output(Tile& to, Rows* row_sums, const Step& step, bool on_top, int piece, int of) const {
    for (int row = 0; row < kRows; ++row) {
      for (int i = 0; i < kDims; ++i) {
        double x = on_top ? to.of[row][i] : 0;
        for (int k = 0; step.item_before >= 0 && i % of == piece && k < kKeys; ++k)
          x += p[row][k] * value(step.item_before, step.tile_before, k, i);
        to.of[row][i] = x;
      }
      if (!row_sums) continue;
      double x = on_top ? row_sums->of[row] : 0;
      for (int k = 0; step.item_before >= 0 && k < kKeys; ++k) x += p[row][k];
      row_sums->of[row] = x;
    }
  }

  void multiply(const Step& step) {
    const Statement& statement = *step.statement;
    const auto text = [&](std::string_view key) {
      const Attribute* a = statement.attributes.find(key);
      return a ? print(a->value) : std::string();
    };
    const bool on_top = text("on_top") == "true" || (text("on_top") == "on_top" && step.on_top);
    if (statement.form == "scores") {
      for (int row = 0; row < kRows; ++row)
        for (int k = 0; k < kKeys; ++k) s[row][k] = step.tile < 0 ? 0 : score(step.item, step.tile, row, k);
    } else if (statement.form == "output") {
      multiply_output(o, &ones, step, !fresh, 0, 1);
    } else if (statement.form == "tile") {
      multiply_output(t, &tile_ones, step, on_top, 0, 1);
    } else if (statement.form == "piece") {
      multiply_output(t, nullptr, step, false, std::stoi(text("piece")), pieces);
    } else if (statement.form == "ones") {
      Tile nothing;
      multiply_output(nothing, &r, step, on_top, 0, 1);
    }
  }
  void add(const Statement& statement) {
    if (statement.form == "sums") {
      for (int row = 0; row < kRows; ++row) sum.of[row] += r.of[row];
      return;
    }
    const int piece = static_cast<int>(std::get<std::int64_t>(statement.attributes.find("piece")->value));
    for (int row = 0; row < kRows; ++row) {
      for (int i = 0; i < kDims; ++i) {
        if (pieces == 1 || i % pieces == piece) o.of[row][i] += t.of[row][i];
      }
      ones.of[row] += tile_ones.of[row];
    }
  }

  void hide(const Step& step) {
    for (int row = 0; row < kRows; ++row)
      for (int k = 0; k < kKeys; ++k)
        if (is_hidden(scenario, step.item, step.tile, row, k)) s[row][k] = -kInfinity;
  }

  // A thread of four that share a row adds up a quarter of it.
  void exponentiate(const Step& step) {
    const bool rises = !step.statement->form.starts_with("quick");
    if (step.statement->form == "quick_columns") hide(step);
    if (rises && step.item != item_of_references && reference.of[0] != -kInfinity)
      fault = fmt::format("item {} begins with the references of item {}", step.item, item_of_references);
    item_of_references = step.item;
    if (step.item != item_of_marks) fault = fmt::format("item {} is taken for item {}", step.item, item_of_marks);
    for (int row = 0; row < kRows; ++row) {
      if (rises) {
        const double before = reference.of[row];
        for (int k = 0; k < kKeys; ++k) reference.of[row] = std::max(reference.of[row], s[row][k]);
        factor.of[row] = before == -kInfinity ? 1 : std::exp(before - reference.of[row]);
        if (!sums_apart) sum.of[row] *= factor.of[row];
      }
      for (int k = 0; k < kKeys; ++k) {
        s[row][k] = std::exp(s[row][k] - reference.of[row]);
        if (!sums_apart && !sums_in_columns) sum.of[row] += s[row][k] / 4;
      }
    }
  }

  // By a fixed step: whether it is time is not asked here.
  void lower() {
    for (int row = 0; row < kRows; ++row) {
      factor.of[row] = 0.25;
      reference.of[row] += std::log(4.0);
      if (!sums_apart) sum.of[row] *= factor.of[row];
      for (int k = 0; k < kKeys; ++k) s[row][k] *= 0.25, p[row][k] *= 0.25;
    }
  }

  void rescale(const Program& program, const Statement& statement) {
    const std::string& name = program.buffers[static_cast<std::size_t>(statement.writes[0])].name;
    for (int row = 0; row < kRows; ++row) {
      const double f = factor.of[row];
      if (name == "rows") sum.of[row] *= f;
      if (name == "R") r.of[row] *= f;
      if (name == "O") ones.of[row] *= f;
      if (name == "T") tile_ones.of[row] *= f;
      for (int i = 0; i < kDims; ++i) {
        if (name == "O") o.of[row][i] *= f;
        if (name == "T") t.of[row][i] *= f;
      }
    }
  }

  void fill(const Program& program, const Statement& statement) {
    const std::string& name = program.buffers[static_cast<std::size_t>(statement.writes[0])].name;
    if (name == "O") o = {}, ones = {};
    if (name == "T") t = {}, tile_ones = {};
    if (name == "R") r = {};
    if (name == "rows") {
      reference.of[0] = reference.of[1] = -kInfinity;
      sum = {};
    }
  }

  void execute(const Program& program, const Step& step) {
    const Statement& statement = *step.statement;
    switch (statement.kind) {
      case Kind::Mma: multiply(step); break;
      case Kind::Add: add(statement); break;
      case Kind::Fill: fill(program, statement); break;
      case Kind::Mark:
        fresh = statement.label == "next_item";
        if (fresh) item_of_marks = step.item;
        break;
      case Kind::Score:
        if (statement.form == "mixed") hide(step);
        break;
      case Kind::Softmax: exponentiate(step); break;
      case Kind::Convert: std::copy(&s[0][0], &s[0][0] + kRows * kKeys, &p[0][0]); break;
      case Kind::Lower: lower(); break;
      case Kind::Rescale: rescale(program, statement); break;
      case Kind::Reduce:
        if (statement.form == "columns") sum = ones;
        if (statement.form == "quads") sum.of[0] *= 4, sum.of[1] *= 4;
        break;
      case Kind::Finalize:
        for (int row = 0; row < kRows; ++row)
          for (int i = 0; i < kDims; ++i) o.of[row][i] /= sum.of[row];
        break;
      case Kind::Store:
        if (statement.form != "rows") results[step.item - 1] = o;
        break;
      default: break;
    }
  }
};

// How many statements of a kind and form there are in a body.
int count(const Body& body, Kind kind, std::string_view form) {
  int found = 0;
  for (const Statement& s : body) found += (s.kind == kind && s.form == form) + count(s.body, kind, form);
  return found;
}

std::string compare(const Consumer& consumer, const RoleTrace& trace, const Scenario& scenario) {
  if (!consumer.fault.empty()) return consumer.fault;
  for (std::size_t item = 0; item < scenario.items.size(); ++item) {
    const auto [begin, end] = trace.visited[item];
    if (begin == end) continue;
    const auto result = consumer.results.find(static_cast<std::int64_t>(item));
    if (result == consumer.results.end()) return fmt::format("item {} is never stored", item);
    for (int row = 0; row < kRows; ++row) {
      double sum = 0, o[kDims] = {};
      for (std::int64_t tile = begin; tile < end; ++tile) {
        for (int k = 0; k < kKeys; ++k) {
          const auto i = static_cast<std::int64_t>(item);
          if (is_hidden(scenario, i, tile, row, k)) continue;
          const double weight = std::exp(score(i, tile, row, k));
          sum += weight;
          for (int d = 0; d < kDims; ++d) o[d] += weight * value(i, tile, k, d);
        }
      }
      for (int d = 0; d < kDims; ++d) {
        const double got = result->second.of[row][d], expected = o[d] / sum;
        if (!(std::abs(got - expected) < 1e-9))
          return fmt::format("item {}, row {}, column {}: {} for {}", item, row, d, got, expected);
      }
    }
  }
  return {};
}

}  // namespace

std::string interpret(const Program& program, const Scenario& scenario) {
  std::map<int, Consumer> consumers;
  std::map<int, RoleTrace> traces;
  const Statement *main = find_body(program, "main_step"), *finish = find_body(program, "finish_item");
  if (!main || !finish) return "a body is missing";
  const auto consumer_of = [&](const RoleTrace& trace) -> Consumer& {
    auto [at, is_new] = consumers.try_emplace(trace.number, Consumer{scenario});
    if (is_new) {
      at->second.pieces = std::max(count(main->body, Kind::Mma, "piece"), 1);
      at->second.sums_in_columns = count(finish->body, Kind::Reduce, "columns") > 0;
      at->second.sums_apart = count(finish->body, Kind::Reduce, "products") > 0;
      traces[trace.number] = trace;
    }
    return at->second;
  };
  const auto done = run_roles(
      program, scenario, [&](const RoleTrace& trace, const Step& step) { consumer_of(trace).execute(program, step); });
  if (!done) return done.error().message;
  for (const auto& [number, consumer] : consumers) {
    if (const std::string off = compare(consumer, traces[number], scenario); !off.empty())
      return fmt::format("consumer {}: {}", number, off);
  }
  return {};
}

}  // namespace flashjit::testing

#include "compiler/program/ir.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "compiler/spec/text_form.h"

namespace flashjit {

namespace {

constexpr AttributeRow kRows[] = {
    {"fn", "build", "variant function that the statement calls"},
    {"holes", "analyse_mask", "tiles inside the KV range may be empty and are stepped over"},
    {"row", "analyse_mask", "what a query sees is a range of keys, all of them"},
    {"when", "analyse_mask", "phases in which the statement acts"},
    {"direction", "analyse_mask", "which end of the KV range comes first"},
    {"smem_bytes", "place_buffers", "shared memory of a block"},
    {"copy", "pipeline_copies", "instruction of the copy"},
    {"copy_bytes", "pipeline_copies", "width of a global access"},
    {"tile", "pipeline_copies",
     "which tile of the loop, counted from the current one, before the loop from the first; there is nothing to do behind the last"},
    {"barrier", "pipeline_copies", "what is awaited of a slot, full or empty; or what a copy tells that it is there"},
    {"count", "pipeline_copies", "how many do the same"},
    {"pending", "pipeline_copies", "groups that may still be under way"},
    {"arrivals", "pipeline_copies", "threads that have to arrive until a barrier lets go"},
    {"redo", "choose_softmax",
     "reference with which a tile is done again when its row sums show that the one taken was too far off"},
    {"piece", "add_up_tiles", "columns of a product: so many pieces before it"},
    {"on_top", "add_up_tiles", "is a product added to what is in its registers? true, false, or what is so called"},
    {"registers", "budget_registers", "per thread: estimated need / what the budget leaves"},
};

constexpr std::string_view kKindNames[] = {
    "load",    "commit",     "wait",     "barrier",  "producer",  "transposer", "consumer", "await",
    "release", "transpose",  "fragment", "fill",     "loop",      "mma",        "score",    "mask",
    "softmax", "gradient",   "rescale",  "convert",  "reduce",    "finalize",   "stage",    "store",
    "body",    "call",       "items",    "when",     "otherwise", "return",     "let",      "fence",
    "keep",    "begin_turn", "end_turn", "add",      "mark",      "draw",       "drop",     "look",
    "lower",   "advance",    "expect",   "complete", "publish",   "init",       "entry",    "launch"};

constexpr std::array<std::string_view, 3> kSpaceNames = {"global", "shared", "register"};

constexpr AxisNames kAxisNames[] = {{"queries", "q_begin", "q_end", "full_q_begin", "full_q_end"},
                                    {"keys", "kv_begin", "kv_end", "full_begin", "full_end"}};

std::string print_attributes(const Attributes& attributes) {
  if (attributes.all().empty()) return {};
  std::vector<std::string> items;
  for (const Attribute& a : attributes.all()) items.push_back(fmt::format("{}={}", a.key, print(a.value)));
  return fmt::format(" [{}]", fmt::join(items, ", "));
}

std::string names_of(const Program& program, const std::vector<int>& buffers) {
  std::vector<std::string_view> names;
  for (const int b : buffers) names.push_back(program.buffers[b].name);
  return join(names);
}

void dump_statements(const Program& program, const std::vector<Statement>& body, int depth, std::string& out) {
  for (const Statement& s : body) {
    out += std::string(depth * 2, ' ') + describe(program, s);
    if (s.product.columns > 0) out += fmt::format(" ({})", print(s.product));
    out += print_attributes(s.attributes) + "\n";
    dump_statements(program, s.inside, depth + 1, out);
    dump_statements(program, s.body, depth + 1, out);
  }
}

void dump_buffer(const Buffer& b, std::string& out) {
  out +=
      fmt::format("  {} {} {} [{}, {}]", b.name, kSpaceNames[static_cast<int>(b.space)], name(b.dtype), b.rows, b.cols);
  if (!b.layout.empty()) out += fmt::format(" layout={}", b.layout);
  if (b.stages != 1) out += fmt::format(" stages={}", b.stages);
  if (b.stride != 0) out += fmt::format(" stride={}", b.stride);
  if (b.space == Space::Shared) out += fmt::format(" offset={} bytes={}", b.offset, b.bytes);
  out += "\n";
}

}  // namespace

std::string print(const Product& p) {
  std::string text = fmt::format("m{}n{}k{} by a {}, depth {}", p.m, p.n, p.k,
                                 p.issuer == Issuer::Warp ? "warp" : "warpgroup", p.depth);
  if (p.a_in_registers) text += ", a in registers";
  if (p.b_transposed) text += ", b transposed";
  if (p.unroll > 0) text += fmt::format(", {} steps unrolled", p.unroll);
  return text;
}

std::string print(const AttributeValue& value) {
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return fmt::format("{}", *integer);
  if (const auto* real = std::get_if<double>(&value)) return print_real(*real);
  return std::get<std::string>(value);
}

Result<void> Attributes::set(std::string_view key, AttributeValue value, std::string_view writer) {
  const AttributeRow* row = attribute_row(key);
  if (!row) return internal(fmt::format("pass {}: there is no attribute `{}`", writer, key));
  if (row->writer != writer) {
    return internal(fmt::format("pass {}: attribute `{}` belongs to pass {}", writer, key, row->writer));
  }
  if (const Attribute* earlier = find(key)) {
    return internal(fmt::format("pass {}: attribute `{}` is already {}", writer, key, print(earlier->value)));
  }
  all_.push_back({row->key, std::move(value), row->writer});
  return {};
}

const Attribute* Attributes::find(std::string_view key) const {
  const auto found = std::find_if(all_.begin(), all_.end(), [&](const Attribute& a) { return a.key == key; });
  return found == all_.end() ? nullptr : &*found;
}

const AttributeRow* attribute_row(std::string_view key) {
  const auto found =
      std::find_if(std::begin(kRows), std::end(kRows), [&](const AttributeRow& row) { return row.key == key; });
  return found == std::end(kRows) ? nullptr : found;
}

Statement make_statement(Kind kind, std::vector<int> writes, std::vector<int> reads) {
  Statement s;
  s.kind = kind;
  s.writes = std::move(writes);
  s.reads = std::move(reads);
  return s;
}

AxisNames names_of(Axis axis) { return kAxisNames[static_cast<int>(axis)]; }

std::string_view name(Kind kind) { return kKindNames[static_cast<int>(kind)]; }

int Program::buffer(std::string_view name) const {
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

bool Program::ran(std::string_view pass) const { return std::find(passes.begin(), passes.end(), pass) != passes.end(); }

const Product* find_product(const std::vector<Statement>& body, std::string_view target) {
  for (const Statement& s : body) {
    if (s.kind == Kind::Mma && s.product.target == target) return &s.product;
    if (const Product* inside = find_product(s.body, target)) return inside;
  }
  return nullptr;
}

const Product* find_product(const Program& program, std::string_view target) {
  return find_product(program.body, target);
}

std::string describe(const Program& program, const Statement& s) {
  std::string out(name(s.kind));
  if (!s.label.empty()) out += fmt::format(" {}", s.label);
  if (s.along) out += fmt::format(" {}", names_of(*s.along).axis);
  if (!s.writes.empty()) out += " " + names_of(program, s.writes);
  if (!s.reads.empty()) out += " <- " + names_of(program, s.reads);
  return out;
}

std::string dump(const Program& program) {
  std::string out = fmt::format("program {}\n", program.title);
  if (!program.schedule.empty()) out += fmt::format("  schedule {}\n", program.schedule);
  if (!program.picture_of.empty()) out += fmt::format("  a picture: {} has the loop\n", program.picture_of);
  for (const Attribute& a : program.attributes.all()) out += fmt::format("  {} = {}\n", a.key, print(a.value));
  out += "buffers\n";
  for (const Buffer& b : program.buffers) dump_buffer(b, out);
  if (!program.phases.empty()) out += "phases\n";
  for (const Phase& phase : program.phases) {
    out += fmt::format("  {} [{}, {})\n", phase.mixed ? "mixed" : "full", phase.begin, phase.end);
  }
  out += "body\n";
  dump_statements(program, program.body, 1, out);
  return out;
}

}  // namespace flashjit

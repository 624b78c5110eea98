#include "compiler/program/ir.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "compiler/spec/text_form.h"

namespace flashjit {

namespace {

constexpr AttributeRow kRows[] = {
    // the problem
    {"head_dims", "build", "QK and V dims"},
    {"heads", "build", "query and KV heads"},
    {"sequences", "build", "dense, or packed one after the other"},
    {"scale", "build", "score = scale * q.k"},
    {"fn", "build", "variant function that the statement calls"},
    {"sink", "build", "one extra logit per head in the row sum"},
    {"lse", "build", "base of the log-sum-exp output"},
    {"max_logit", "build", "the row maximum is an output"},
    {"output", "build", "type of O"},
    {"holes", "analyse_mask", "tiles inside the KV range may be empty and are stepped over"},
    {"row", "analyse_mask", "what a query sees is a range of keys, all of them"},
    {"when", "analyse_mask", "phases in which the statement acts"},
    {"direction", "analyse_mask", "which end of the KV range comes first"},
    // tiling and warps
    {"family", "choose_tiling", "kernel family"},
    {"tile_q", "choose_tiling", "query rows per block"},
    {"tile_kv", "choose_tiling", "keys per step"},
    {"head_tiles", "choose_tiling",
     "whose queries a tile has: of a single head, or packed: of all that share a KV head"},
    {"warps", "assign_warps", "warps that compute"},
    {"rows_per_warp", "assign_warps", "query rows of a warp"},
    {"warpgroups", "assign_warps", "warpgroups that compute; one more copies"},
    {"exclusive", "assign_warps", "what only one warpgroup at a time does"},
    {"shape", "assign_warps", "matrix instruction"},
    {"issuer", "assign_warps", "who issues the matrix instruction: a warp, a warpgroup or one thread"},
    {"accumulator", "assign_warps", "where the product accumulates: registers or tensor memory"},
    {"a_in", "assign_warps", "where operand A comes from"},
    {"row_owner", "assign_warps", "threads that share a row: a quad, or one thread"},
    {"rescaled_by", "assign_warps", "who rescales O: the owner of the row, or other warps"},
    {"unroll_d", "assign_warps", "k-steps of QK unrolled at a time"},
    {"vector_bits", "assign_warps", "host: SIMD width"},
    // memory
    {"q_in", "place_buffers", "where Q lives during the loop"},
    {"smem_bytes", "place_buffers", "shared memory of a block"},
    {"copy", "pipeline_copies", "instruction of the copy"},
    {"copy_bytes", "pipeline_copies", "width of a global access"},
    {"stages", "pipeline_copies", "K/V tiles in flight"},
    {"q_stages", "pipeline_copies", "Q tiles in flight"},
    {"overlap", "pipeline_copies", "products under way together: qk_pv, those of the next KV tile and of this one"},
    {"tile", "pipeline_copies",
     "which KV tile, counted from the current one, before the loop from the first; there is nothing to do behind the last"},
    {"barrier", "pipeline_copies", "what is awaited of a slot: full or empty"},
    {"pending", "pipeline_copies", "groups that may still be under way"},
    // softmax, grid, budget
    {"reference", "choose_softmax", "what is subtracted in the exponent"},
    {"exp", "choose_softmax", "base of the exponential, and where the scale goes"},
    {"exp_fma", "choose_softmax", "of eight exponentials, how many run on the FMA pipes"},
    {"row_sum", "choose_softmax", "what sums the rows of P: adds, or the matrix unit, from a column of ones beside V"},
    {"redo", "choose_softmax",
     "reference with which a tile is done again when its row sums show that the one taken was too far off"},
    {"order", "choose_grid", "which query tiles start first"},
    {"grid", "choose_grid", "a block per query tile, or one per SM that takes one after the other"},
    {"cluster", "choose_grid", "blocks that share K and V by multicast"},
    {"blocks_per_sm", "budget_registers", "blocks that must fit an SM together"},
    {"registers", "budget_registers", "per thread: estimated need / what the budget leaves"},
    {"register_limit", "budget_registers", "per thread of a role, set when it starts"},
};

constexpr std::array<std::string_view, 21> kKindNames = {
    "load", "commit", "wait", "barrier", "producer", "consumer", "await",  "release",  "fragment", "fill", "loop",
    "mma",  "score",  "mask", "softmax", "rescale",  "convert",  "reduce", "finalize", "stage",    "store"};

constexpr std::array<std::string_view, 3> kSpaceNames = {"global", "shared", "register"};

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
    out += std::string(depth * 2, ' ');
    out += name(s.kind);
    if (!s.writes.empty()) out += " " + names_of(program, s.writes);
    if (!s.reads.empty()) out += " <- " + names_of(program, s.reads);
    out += print_attributes(s.attributes) + "\n";
    dump_statements(program, s.body, depth + 1, out);
  }
}

void dump_buffer(const Buffer& b, std::string& out) {
  out +=
      fmt::format("  {} {} {} [{}, {}]", b.name, kSpaceNames[static_cast<int>(b.space)], name(b.dtype), b.rows, b.cols);
  if (!b.layout.empty()) out += fmt::format(" layout={}", b.layout);
  if (b.stages != 1) out += fmt::format(" stages={}", b.stages);
  if (b.space == Space::Shared) out += fmt::format(" offset={} bytes={}", b.offset, b.bytes);
  out += "\n";
}

}  // namespace

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

std::string_view name(Kind kind) { return kKindNames[static_cast<int>(kind)]; }

int Program::buffer(std::string_view name) const {
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

bool Program::ran(std::string_view pass) const { return std::find(passes.begin(), passes.end(), pass) != passes.end(); }

std::string dump(const Program& program) {
  std::string out = fmt::format("program {}\n", program.title);
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

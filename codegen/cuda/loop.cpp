#include "codegen/cuda/loop.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "compiler/program/ir_verify_roles.h"
#include "compiler/program/vocabulary.h"

namespace flashjit {
namespace {

constexpr std::size_t kRemarkColumn = 84;

// Returns the text of an attribute in a line, or `absent` if the statement has none.
std::string value_of(const Statement& s, std::string_view key, std::string_view absent = {}) {
  const Attribute* a = s.attributes.find(key);
  return a ? print(a->value) : std::string(absent);
}

// Returns whether the statement is a line by itself.
bool is_one_line(const Program& p, const Statement& s) {
  const TileOperation* operation = find_tile_operation(p, s);
  return operation && operation->close.empty();
}

struct Printer {
  const Program& p;
  std::string text = {};

  const Buffer* buffer(int b) const { return &p.buffers[static_cast<std::size_t>(b)]; }
  // Return the buffer that a statement writes first, and the first one that it only reads.
  const Buffer* target(const Statement& s) const { return s.writes.empty() ? nullptr : buffer(s.writes.front()); }
  const Buffer* source(const Statement& s) const {
    const auto from = std::ranges::find_if(s.reads, [&](int b) { return std::ranges::count(s.writes, b) == 0; });
    return from == s.reads.end() ? nullptr : buffer(*from);
  }

  Result<std::string> line_of(const Statement& s, std::string_view line) const {
    const Buffer *to = target(s), *from = source(s);
    return fmt::format(fmt::runtime(line), fmt::arg("to", to ? to->code : ""), fmt::arg("from", from ? from->code : ""),
                       fmt::arg("slot", to ? to->code : ""), fmt::arg("ring", to ? to->ring : ""),
                       fmt::arg("fill", to ? to->fill_ring : ""), fmt::arg("barrier", value_of(s, "barrier")),
                       fmt::arg("pending", value_of(s, "pending")), fmt::arg("piece", value_of(s, "piece", "0")),
                       fmt::arg("on_top", value_of(s, "on_top", "false")), fmt::arg("count", value_of(s, "count")),
                       fmt::arg("arrivals", value_of(s, "arrivals")), fmt::arg("if", condition(p, s.label)));
  }

  void add(std::string_view lines, int depth) {
    while (!lines.empty()) {
      const std::size_t end = std::min(lines.find('\n'), lines.size());
      const bool is_directive = lines.starts_with('#');
      text += std::string(is_directive ? 0 : static_cast<std::size_t>(depth) * 2, ' ');
      text += lines.substr(0, end);
      text += "\n";
      lines.remove_prefix(std::min(end + 1, lines.size()));
    }
  }
  // Adds a line, and behind it the statement as dumps have it, if the statement does something with buffers.
  void add_with_remark(std::string line, const Statement& s, int depth) {
    if (s.kind != Kind::Let && s.kind != Kind::Call && (!s.writes.empty() || !s.reads.empty())) {
      const std::size_t width =
          line.size() - std::min(line.rfind('\n') + 1, line.size()) + static_cast<std::size_t>(depth) * 2;
      line += std::string(width < kRemarkColumn ? kRemarkColumn - width : 2, ' ') + "// " + describe(p, s);
    }
    add(line, depth);
  }

  Result<void> print_statement(const Statement& s, int depth) {
    const TileOperation* operation = find_tile_operation(p, s);
    if (!operation) return internal(fmt::format("{} {}: no operation prints it", name(s.kind), s.form));
    if (s.kind == Kind::When && condition(p, s.label).empty())
      return internal(fmt::format("when {}: there is no such condition", s.label));
    FLASHJIT_ASSIGN(line, line_of(s, operation->line));
    if (s.kind == Kind::When && s.body.size() == 1 && is_one_line(p, s.body.front())) {
      FLASHJIT_ASSIGN(then, line_of(s.body.front(), find_tile_operation(p, s.body.front())->line));
      add_with_remark(line.substr(0, line.size() - 1) + then, s.body.front(), depth);
      return {};
    }
    add_with_remark(std::move(line), s, depth);
    for (const Statement& inside : s.body) FLASHJIT_TRY(print_statement(inside, depth + 1));
    if (!operation->close.empty()) add(fmt::format(fmt::runtime(operation->close)), depth);
    return {};
  }

  Result<void> print_body(const Statement& s, int depth) {
    const TileOperation* operation = find_tile_operation(p, s);
    if (!operation) return internal(fmt::format("body {}: nothing says how it is called", s.label));
    text += "\n";
    for (std::string_view remark = operation->remark; !remark.empty();) {
      const std::size_t end = std::min(remark.find('\n'), remark.size());
      add(fmt::format("// {}", remark.substr(0, end)), depth);
      remark.remove_prefix(std::min(end + 1, remark.size()));
    }
    add(fmt::format("__device__ {} {{", operation->line), depth);
    for (const Statement& inside : s.body) FLASHJIT_TRY(print_statement(inside, depth + 1));
    add("}", depth);
    return {};
  }

  // A role with state of its own is a structure, which the statement names; a file of the vocabulary has its state.
  Result<void> print_role(const Statement& role) {
    const bool is_struct = !role.label.empty();
    if (is_struct) text += fmt::format("\nstruct {0} : {0}State {{", role.label);
    for (const Statement& body : role.body) FLASHJIT_TRY(print_body(body, is_struct ? 1 : 0));
    if (is_struct) text += "};\n";
    return {};
  }
};

// Adds the role, or the roles of a launch; a launch whose work is in a file stands for itself.
void add_roles(const Statement& s, std::vector<Statement>& roles) {
  if (s.kind != Kind::Launch || !has_roles(s.body)) return roles.push_back(s);
  for (const Statement& role : s.body) roles.push_back(role);
}

}  // namespace

Result<std::string> emit_loop(const Program& program) {
  if (!program.vocabulary) return std::string();
  Printer printer{program};
  printer.text = "#pragma once\n\n";
  std::vector<Statement> roles;
  for (const Statement& role : program.body) add_roles(role, roles);
  for (const Statement& role : roles) {
    const std::string_view file = role.kind == Kind::Launch ? role.label : role.form;
    if (!file.empty()) printer.text += fmt::format("#include \"{}{}\"\n", program.vocabulary->folder, file);
  }
  printer.text += "\nnamespace flashjit {\n";
  for (const Statement& role : roles)
    if (role.kind != Kind::Launch) FLASHJIT_TRY(printer.print_role(role));
  return printer.text + "\n}  // namespace flashjit\n";
}

}  // namespace flashjit

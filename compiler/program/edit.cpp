#include "compiler/program/edit.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace flashjit {

namespace {

Statement labelled(Kind kind, std::string_view label, std::string_view form, Body body = {}) {
  Statement s;
  s.kind = kind;
  s.label = label;
  s.form = form;
  s.body = std::move(body);
  return s;
}

bool is_called(const Program& p, const Statement& s, std::string_view what) {
  return what.empty() || s.label == what || s.form == what ||
         (!s.writes.empty() && p.buffers[s.writes[0]].name == what);
}

}  // namespace

Statement Maker::make(Kind kind, Names writes, Names reads, std::string_view form) const {
  Statement s;
  s.kind = kind;
  s.form = form;
  for (const std::string_view name : writes) s.writes.push_back(p.buffer(name));
  for (const std::string_view name : reads) s.reads.push_back(p.buffer(name));
  return s;
}
Statement Maker::let(std::string_view name) const { return labelled(Kind::Let, name, name); }
Statement Maker::call(std::string_view name) const { return labelled(Kind::Call, name, name); }
Statement Maker::mark(std::string_view what) const { return labelled(Kind::Mark, what, what); }
Statement Maker::when(std::string_view condition, Body body) const {
  return labelled(Kind::When, condition, {}, std::move(body));
}
Statement Maker::otherwise(Body body) const { return labelled(Kind::Otherwise, {}, {}, std::move(body)); }
Statement Maker::body(std::string_view name, Body body) const {
  return labelled(Kind::Body, name, name, std::move(body));
}
Statement Maker::role(Kind kind, std::string_view structure, std::string_view file) const {
  return labelled(kind, structure, file);
}
Statement Maker::loop(std::string_view form, Body body) const {
  Statement s = labelled(Kind::Loop, form, form, std::move(body));
  s.along = Axis::Keys;
  return s;
}

Statement Maker::await_full(Names buffers, std::string_view form) {
  return with(make(Kind::Await, buffers, {}, form), "barrier", std::string("full"));
}
Statement Maker::await_empty(Names buffers, std::string_view form) {
  return with(make(Kind::Await, buffers, {}, form), "barrier", std::string("empty"));
}
Statement Maker::wait(std::int64_t pending) { return with(make(Kind::Wait), "pending", pending); }
Statement Maker::keep(std::string_view registers, std::string_view form) const {
  return make(Kind::Keep, {registers}, {}, form);
}
Statement Maker::init(std::string_view buffer, std::string_view barrier, std::int64_t arrivals, std::string_view form) {
  return with(with(make(Kind::Init, {buffer}, {}, form), "barrier", std::string(barrier)), "arrivals", arrivals);
}

Statement Maker::init_single(std::string_view barrier, std::int64_t arrivals) {
  return with(with(make(Kind::Init, {}, {}, "single"), "barrier", std::string(barrier)), "arrivals", arrivals);
}

Statement Maker::for_slots(std::int64_t count, Body body) {
  Statement s = with(make(Kind::Init, {}, {}, "slots"), "count", count);
  s.body = std::move(body);
  return s;
}

Statement Maker::copied(Names to, std::string_view from, std::string_view form) {
  return with(make(Kind::Load, to, {from}, form), "copy", std::string("tma"));
}
Body Maker::batch(Body products) {
  Body body = {make_statement(Kind::Fence)};
  append(body, std::move(products));
  body.push_back(make_statement(Kind::Commit));
  return body;
}

void append(Body& to, Body from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

void Site::insert_before(Body statements) const {
  body->insert(body->begin() + static_cast<std::ptrdiff_t>(at), std::make_move_iterator(statements.begin()),
               std::make_move_iterator(statements.end()));
}
void Site::insert_after(Body statements) const { Site{body, at + 1}.insert_before(std::move(statements)); }
void Site::replace(Body statements) const {
  take(1);
  insert_before(std::move(statements));
}
Body Site::take(std::size_t count) const {
  const auto first = body->begin() + static_cast<std::ptrdiff_t>(at), last = first + static_cast<std::ptrdiff_t>(count);
  Body taken(std::make_move_iterator(first), std::make_move_iterator(last));
  body->erase(first, last);
  return taken;
}

Site find_site(const Program& program, Body& body, Kind kind, std::string_view what) {
  return find_site(body, [&](const Statement& s) { return s.kind == kind && is_called(program, s, what); });
}

std::int64_t integer(const Statement& s, std::string_view key, std::int64_t absent) {
  const Attribute* a = s.attributes.find(key);
  const auto* value = a ? std::get_if<std::int64_t>(&a->value) : nullptr;
  return value ? *value : absent;
}

const Statement* find_body(const Program& program, std::string_view name) {
  for (const Statement& role : program.body)
    if (const Statement* body = find_body(role, name)) return body;
  return nullptr;
}
const Statement* find_body(const Statement& role, std::string_view name) {
  const auto body =
      std::ranges::find_if(role.body, [&](const Statement& s) { return s.kind == Kind::Body && s.label == name; });
  return body == role.body.end() ? nullptr : &*body;
}
Statement* find_body(Program& program, std::string_view name) {
  return const_cast<Statement*>(find_body(std::as_const(program), name));
}

}  // namespace flashjit

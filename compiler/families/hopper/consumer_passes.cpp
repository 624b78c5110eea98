// Passes that take the consumer away from its textbook order, with one choice each.
#include <algorithm>
#include <string>
#include <utility>

#include "compiler/families/hopper/roles.h"
#include "compiler/families/hopper/hopper.h"
#include "compiler/language/expr.h"
#include "compiler/program/edit.h"

namespace flashjit {

namespace {

// The bodies of a program that take a step.
struct Steps {
  Program& p;
  Body& main = find_body(p, "main_step")->body;
  Body& careful = find_body(p, "careful_step")->body;

  Site in(Body& body, Kind kind, std::string_view what = {}) const { return find_site(p, body, kind, what); }
  Site in_main(Kind kind, std::string_view what = {}) const { return in(main, kind, what); }
  Site in_careful(Kind kind, std::string_view what = {}) const { return in(careful, kind, what); }
};

// Logits that are not mere products are computed in the pass that exponentiates them, if no maximum is taken before.
bool computes_logits_in_pass(const KernelConfig& c) { return !folds_scale(c) && c.reference == Reference::first; }
bool is_narrow(const KernelConfig& c) { return c.element == Element::f8; }
// References of earlier tiles may turn out too low for a later one. They rise then, and what a row has summed up falls.
// fp16 ends at 2^16, which wide logits reach in every layer, so every step checks whether its tile has probabilities
// beyond that range. bf16 has the range of fp32, so sums are checked after every few steps.
bool rises(const KernelConfig& c) { return c.reference == Reference::first; }
bool looks_at_tile(const KernelConfig& c) { return rises(c) && c.element != Element::bf16; }
bool looks_back(const KernelConfig& c) { return rises(c) && c.element == Element::bf16; }
bool overlaps(const KernelConfig& c) { return c.hopper.overlap == Overlap::qk_pv; }
bool takes_turns(const KernelConfig& c) { return c.hopper.warpgroups > 1 && c.hopper.exclusive == Exclusive::issue; }
bool sums_in_matrix(const KernelConfig& c) { return c.hopper.row_sum == RowSum::matrix; }

// P V of a tile in registers of its own leaves few. So elements of tensors that a score reads are loaded only when O
// has taken in P V, and take its registers. This makes room for 128 keys, which are faster than 64 [M30].
bool reads_inputs_late(const KernelConfig& c) {
  return adds_tiles(c) && overlaps(c) && inputs_bytes(c) > 0 && computes_logits_in_pass(c);
}
// Many instructions on the FMA pipes slow down products that run beside them, so P V goes first [M31].
bool waits_first(const KernelConfig& c) {
  return reads_inputs_late(c) || (overlaps(c) && c.score_has_tanh && computes_logits_in_pass(c));
}
// P V of a tile has registers of its own, and O takes it in one step later, while the next scores are multiplied.
bool adds_product_later(const KernelConfig& c) {
  return adds_tiles(c) && overlaps(c) && !waits_first(c) && c.reference != Reference::tile;
}
// The tiles in which a window begins take the main step as well, because rows have references by then. This is faster
// with 8 bits, and slower with 16 [M32].
bool masks_in_step(const PassContext& context) {
  const KernelConfig& c = context.config;
  return is_narrow(c) && c.mask_is_range && !c.mask_has_holes && c.list_heads == 0 && rises(c) &&
         !same(context.problem.tiles.full_begin, Expr::integer(0));
}

// The main step takes references of earlier tiles: nothing waits for a maximum, and nothing is rescaled.
void take_old_references(const Steps& steps, const Maker& maker, const PassContext& context) {
  const KernelConfig& c = context.config;
  const Statement score = steps.in_main(Kind::Score).take(1).front();
  steps.in_main(Kind::Let, "factor").take(1);
  steps.in_main(Kind::When, "rose").take(1);
  const Site softmax = steps.in_main(Kind::Softmax);
  softmax.statement() = maker.make(Kind::Softmax, {"S", "rows"}, {"S", "rows"}, "quick");
  if (masks_in_step(context)) {
    Body quick = softmax.take(1),
         cut = {maker.make(Kind::Softmax, {"S", "rows"}, {"S", "rows"}, "quick_cut"), maker.make(Kind::Keep, {"S"})};
    softmax.insert_before({maker.when("cut", std::move(cut)), maker.otherwise(std::move(quick))});
  }
  steps.in_careful(Kind::Softmax).statement().form = "first";
  if (folds_scale(c)) return;
  // The two rows of a thread are found once for an item. Three warpgroups, and elements of 32 bits that have been read,
  // leave no registers to keep them from one tile to the next.
  const bool kept = c.hopper.warpgroups < 3 && c.inputs_32 == 0;
  Statement read = maker.make(Kind::Fragment, {}, {}, kept ? "kept_queries" : "queries");
  if (inputs_bytes(c) > 0) {
    // Inputs are read ahead from here on, until the last ones are exponentiated.
    read.inside = {score.inside.front()};
    for (const std::string_view form : {"quick", "quick_cut"}) {
      const Site reader = find_site(steps.main, [&](const Statement& s) { return s.form == form; });
      if (!reader) continue;
      reader.statement().reads.push_back(maker.p.buffer("Is"));
      reader.statement().inside = {score.inside.back()};
    }
  }
  const Site site = steps.in_main(Kind::Let, has_tile_scales(c) ? "keys_scale" : "here");
  site.insert_after({std::move(read)});
}

// Makes a few loops of main steps, with checks between them.
Body look_between(const Maker& maker, const PassContext& context) {
  const KernelConfig& c = context.config;
  const Statement step = maker.call("main_step"),
                  first = maker.let(masks_in_step(context) ? "first_of_all" : "first_full");
  const auto lower_when = [&](std::string_view large) { return maker.when(large, {maker.call("lower")}); };
  // Sums that the matrix unit adds up lie in O. Where no turn waits for it, checking them between main steps costs
  // nothing, and one loop less around all registers of a tile compiles faster [M33].
  if (looks_back(c) && sums_in_matrix(c) && !takes_turns(c))
    return {first, maker.loop("looks_inside", {step, lower_when("large_sum_now")})};
  if (!rises(c)) return {first, maker.loop("all", {step})};
  return {first,
          maker.loop("looks_between", {maker.let(looks_back(c) ? "few_tiles" : "this_tile"), maker.loop("part", {step}),
                                       lower_when(looks_back(c) ? "large_sum" : "large")})};
}

// Every row must have a reference from an earlier tile.
Body ask_for_references(const Maker& maker, bool masks) {
  const Statement no = maker.make(Kind::Return, {}, {}, "no"), yes = maker.make(Kind::Return, {}, {}, "yes");
  return {maker.when(masks ? "behind_full" : "not_full", {no}), maker.when("exact", {no}),
          maker.when(masks ? "all_begun_in_full" : "all_begun", {yes}), maker.when("was_full", {yes}),
          maker.make(Kind::Return, {}, {}, "if_all_have_references")};
}

Body lower(const Maker& maker, const KernelConfig& c) {
  Body body;
  if (is_narrow(c) && !interpolates(c)) body.push_back(maker.when("none_large", {maker.make(Kind::Return)}));
  body.push_back(maker.let("factor"));
  if (interpolates(c))
    body.push_back(maker.make(Kind::Lower, {"P", "S", "rows", "factor"}, {"S", "rows"}, "exponents"));
  else if (looks_back(c)) body.push_back(maker.make(Kind::Lower, {"P", "rows", "factor"}, {"P", "rows", "O"}, "sums"));
  else body.push_back(maker.make(Kind::Lower, {"P", "S", "rows", "factor"}, {"S", "rows"}, "probabilities"));
  body.push_back(maker.make(Kind::Rescale, {"O"}, {"O", "factor"}));
  return body;
}

}  // namespace

Result<Program> choose_softmax(Program p, const PassContext& context) {
  const KernelConfig& c = context.config;
  Maker maker{p, "choose_softmax"};
  find_body(p, "main_steps")->body = look_between(maker, context);
  if (!rises(c)) return p;
  find_site(p, p.body, Kind::Consumer).statement().body.push_back(maker.body("lower", lower(maker, c)));
  find_body(p, "takes_main_step")->body = ask_for_references(maker, masks_in_step(context));
  const Steps steps{p};
  take_old_references(steps, maker, context);
  // An old reference is right to the same rounding unless scores rise far above it, which the row sums show at the end.
  Body& finish = find_body(p, "finish_item")->body;
  const Site finalize = find_site(p, finish, Kind::Finalize);
  Statement& checked = finalize.statement();
  checked = maker.with(std::move(checked), "redo", std::string("tile"));
  if (remembers_failures(c)) {
    finalize.insert_after({maker.when(
        "failed_in_warp", {maker.call("note_failure"), maker.call("remember_failure"), maker.make(Kind::Return)})});
    find_site(p, finish, Kind::Store, "continued")
        .insert_before({maker.when("stored_before", {maker.make(Kind::Return)})});
  } else {
    finalize.insert_after({maker.when("failed", {maker.call("note_failure")})});
  }
  if (stages_output(c)) {
    // A repeated item is stored to the rows that this thread has stored before.
    find_site(p, finish, Kind::Store, "sent").insert_before({maker.when("exact", {maker.call("await_stores")})});
  }
  if (looks_at_tile(c) && sums_in_matrix(c) && !interpolates(c))
    steps.main.push_back(maker.make(Kind::Look, {"rows"}, {"P"}));
  if (interpolates(c)) steps.in_main(Kind::Convert).statement().form = "linear";
  if (!maker.failed) return maker.failed.error();
  return p;
}

// Lets the matrix unit sum up rows: by columns of ones beside V, or by a product of its own.
Result<Program> sum_rows(Program p, const PassContext& context) {
  const KernelConfig& c = context.config;
  if (!sums_in_matrix(c)) return p;
  const Maker maker{p, "sum_rows"};
  Body& finish = find_body(p, "finish_item")->body;
  Statement& reduce = find_site(p, finish, Kind::Reduce).statement();
  reduce = sums_apart(c) ? maker.make(Kind::Reduce, {"rows"}, {"rows"}, "products")
                         : maker.make(Kind::Reduce, {"rows"}, {"O"}, "columns");
  return p;
}

namespace {

// With products of 8 bits, a tile's product has registers of its own, T, and O takes it in by additions of fp32.
struct TileSums {
  Maker maker;
  const KernelConfig& c;
  Steps steps{maker.p};
  bool later = adds_product_later(c), units = has_tile_scales(c), apart = sums_apart(c);
  // Between two items O takes in the rest of one at once: its last product is added to the tiles before. (This cannot
  // be done where tiles of V have different scales.)
  bool joins = later && !units;
  int last_piece = product_pieces(c) - 1;

  Statement keep(std::string_view registers) const { return maker.make(Kind::Keep, {registers}); }
  // `unit` is the scale of V that has still to be found, where tiles have scales.
  Body find(std::string_view unit) const {
    if (units && !unit.empty()) return {maker.let(unit), keep("T")};
    return {keep("T")};
  }
  Statement add_product(int piece) {
    return maker.with(maker.make(Kind::Add, {"O"}, {"O", "T"}, units ? "unit" : ""), "piece", std::int64_t{piece});
  }
  Body add_products_of_tile() {
    Body body;
    if (apart) body = {keep("R"), maker.make(Kind::Add, {"rows"}, {"R", "rows"}, "sums")};
    body.push_back(add_product(last_piece));
    return body;
  }
  // O takes in the tile if there is one.
  Body when_output(bool always, Body body) {
    if (always) return body;
    return {maker.when("output", std::move(body))};
  }

  Body multiply_piece(const Statement& output, int piece, std::string_view on_top) {
    Body body;
    if (apart && piece == last_piece) {
      Statement ones = maker.make(Kind::Mma, {"R"}, {"P"}, "ones");
      body = {keep("R"), maker.make(Kind::Fence), maker.with(std::move(ones), "on_top", std::string(on_top))};
    }
    Statement product = maker.make(Kind::Mma, {"T"}, {"P", "Vs"}, overlaps(c) ? "tile" : "piece");
    product.product = output.product;
    product.attributes = output.attributes;
    if (overlaps(c)) product = maker.with(std::move(product), "on_top", std::string(on_top));
    else product = maker.with(std::move(product), "piece", std::int64_t{piece});
    append(body, {keep("T"), maker.make(Kind::Fence), std::move(product), maker.make(Kind::Commit)});
    return body;
  }

  // Pieces take the place of keep O, fence, mma, mark and commit. All pieces but the last are finished at once.
  void multiply(Body& body, bool always, std::string_view on_top) {
    const Site product = steps.in(body, Kind::Mma, "output");
    const Statement output = product.statement();
    const Statement wait = find_site(maker.p, body, Kind::Wait).statement();  // With pieces it waits for everything.
    const Site first{product.body, product.at - 2};
    first.take(5);
    Body pieces;
    for (int piece = 0; piece <= last_piece; ++piece) {
      if (piece > 0) {
        pieces.push_back(wait);
        append(pieces, find("unit"));
        append(pieces, when_output(always, {add_product(piece - 1)}));
      }
      append(pieces, multiply_piece(output, piece, on_top));
    }
    first.insert_before(std::move(pieces));
  }

  void add_in_main_loop() {
    Body& main = steps.main;
    if (tiles_of_sum(c) > 1) {
      find_site(maker.p, main, Kind::Await, "Vs").insert_before({maker.let("on_top")});
    }
    multiply(main, true, tiles_of_sum(c) > 1 ? "on_top" : "false");
    steps.in_main(Kind::Keep, "O").statement() = keep("T");
    Body taken = find(later ? "" : "unit");
    append(taken, add_products_of_tile());
    if (!later) {
      steps.in_main(Kind::Release, "Vs").insert_after(std::move(taken));
      return;
    }
    if (tiles_of_sum(c) > 1) taken = {maker.when("adds_anew", std::move(taken))};
    steps.in_main(Kind::Await, "Vs").insert_before(std::move(taken));
    if (units) Site{&main, steps.in_main(Kind::Mma, "tile").at + 1}.insert_after({maker.let("unit")});
  }

  void add_in_careful_loop() {
    Body& careful = steps.careful;
    multiply(careful, false, joins ? "true" : "false");
    if (later && !joins) {
      Body taken = find("");
      append(taken, add_products_of_tile());
      steps.in_careful(Kind::When, "output").insert_after(std::move(taken));
    }
    if (units) steps.in_careful(Kind::When, "output").insert_before({maker.let("multiplied")});
    const Site kept = steps.in_careful(Kind::Keep, "O");
    kept.take(1);
    Body taken = find("unit_before");
    append(taken, when_output(false, add_products_of_tile()));
    if (overlaps(c)) {
      if (later) {
        taken.push_back(maker.make(Kind::Fill, {"T"}));
        if (apart) taken.push_back(maker.make(Kind::Fill, {"R"}));
        if (units) taken.push_back(maker.let("no_unit"));
      }
      kept.insert_before(std::move(taken));
    } else {
      // The product has the registers of scores that are not being computed, and O takes it in before scores need them.
      steps.in_careful(Kind::When, "changes").insert_before(std::move(taken));
    }
    steps.in_careful(Kind::Fill, "rows").insert_after({maker.make(Kind::Fill, {"O"})});
  }

  void rescale() {
    const auto more = [&](Body& body, bool all) {
      const Site o = steps.in(body, Kind::Rescale, "O");
      if (!o) return;
      Body rescaled;
      if (apart) rescaled.push_back(maker.make(Kind::Rescale, {"rows"}, {"rows", "factor"}, "sums"));
      if (all) rescaled.push_back(maker.make(Kind::Rescale, {"T"}, {"T", "factor"}));
      if (all && apart) rescaled.push_back(maker.make(Kind::Rescale, {"R"}, {"R", "factor"}));
      o.insert_after(std::move(rescaled));
    };
    more(steps.main, later);
    more(steps.careful, false);
    if (Statement* lower = find_body(maker.p, "lower")) more(lower->body, later);
  }
};

}  // namespace

Result<Program> add_up_tiles(Program p, const PassContext& context) {
  const KernelConfig& c = context.config;
  if (!adds_tiles(c)) return p;
  const std::string rows = std::to_string(c.tile_q);
  p.buffers.push_back({"T", Space::Register, Dtype::F32, rows, std::to_string(product_columns(c)), "fragment"});
  p.buffers.back().code = overlaps(c) ? "t" : "piece()";
  if (sums_apart(c)) {
    p.buffers.push_back({"R", Space::Register, Dtype::F32, rows, std::to_string(kSumColumns), "fragment"});
    p.buffers.back().code = "of_tiles";
  }
  TileSums sums{{p, "add_up_tiles"}, c};
  sums.add_in_main_loop();
  sums.add_in_careful_loop();
  sums.rescale();
  if (!sums.maker.failed) return sums.maker.failed.error();
  return p;
}

// P is an operand until the product of the previous tile is done. The wait for that product stands behind the
// exponentials, or before them where they need its pipes or its registers. Where O takes in the product later, the wait
// stands where half of the scores are exponentiated, so that the others are converted as they come. Beside products
// with ones it does not [M34]: there ptxas puts exponentials behind the wait wherever the wait stands, and a wait
// between exponentials and their conversion keeps ptxas from merging halves of a word.
Result<Program> place_waits(Program p, const PassContext& context) {
  const KernelConfig& c = context.config;
  const bool halfway = adds_product_later(c) && !sums_in_matrix(c),
             first = waits_first(c) || (adds_product_later(c) && sums_in_matrix(c));
  if (!overlaps(c) || (!halfway && !first)) return p;
  const Maker maker{p, "place_waits"};
  const Steps steps{p};
  // The statements behind the exponentials: keep S, the wait for all, and everything up to the step to the next slot.
  Site kept = steps.in_main(Kind::Release, "Vs");
  const Site advance = steps.in_main(Kind::Advance);
  while (kept.statement().kind != Kind::Wait) --kept.at;
  --kept.at;
  Body complete = kept.take(advance.at - kept.at);
  complete.erase(complete.begin());
  if (first) {
    Site softmax = steps.in_main(Kind::Softmax);
    if (const Site cut = steps.in_main(Kind::When, "cut")) softmax = cut;
    if (reads_inputs_late(c)) {
      append(complete, steps.in_main(Kind::Fragment).take(1));
      --softmax.at;
    }
    softmax.insert_before(std::move(complete));
    return p;
  }
  if (const Site cut = steps.in_main(Kind::When, "cut")) append(cut.statement().body, complete);
  Statement& softmax = steps.in_main(Kind::Softmax, "quick").statement();
  softmax.form = "quick_halfway";
  Statement behind = steps.in_main(Kind::Await, "Vs").statement();
  behind.form = "behind_sum";
  softmax.body = {std::move(behind)};
  append(softmax.body, std::move(complete));
  return p;
}

// The warpgroups issue their products one after the other, so that one computes softmax under the others' products. The
// first warpgroup is given one turn more than it takes.
Result<Program> take_turns(Program p, const PassContext& context) {
  const KernelConfig& c = context.config;
  if (!takes_turns(c)) return p;
  const Maker maker{p, "take_turns"};
  const Steps steps{p};
  const Statement begin = maker.make(Kind::BeginTurn), end = maker.make(Kind::EndTurn);
  const Site product = steps.in_main(overlaps(c) ? Kind::Fence : Kind::Keep);
  product.insert_before({begin});
  steps.in_main(Kind::Let, "here").insert_before({end});
  steps.in_careful(Kind::When, "output").insert_after({begin});
  Site{&steps.careful, steps.in_careful(Kind::Mma, "scores").at + 1}.insert_after({end});
  if (Statement* pass_tile = find_body(p, "pass_tile")) {
    find_site(p, pass_tile->body, Kind::Call).insert_before({end});
    pass_tile->body.push_back(begin);
  }
  find_site(p, find_body(p, "pass_item")->body, Kind::Call).insert_before({begin, end});
  Body& run = find_body(p, "consume")->body;
  run.insert(run.begin(), maker.when("last_warpgroup", {end}));
  run.push_back(maker.when("first_warpgroup", {begin}));
  return p;
}

// The draw of kept weights does not depend on scores, so it is made while products run.
Result<Program> drop_weights(Program p, const PassContext& context) {
  const KernelConfig& c = context.config;
  if (c.dropped == 0) return p;
  const Maker maker{p, "drop_weights"};
  const Steps steps{p};
  const Statement kept = maker.let("kept"), draw = maker.make(Kind::Draw), drop = maker.make(Kind::Drop, {"P"}, {"P"});
  if (overlaps(c)) steps.in_main(Kind::Await, "Vs").insert_after({kept, draw});
  else Site{&steps.main, steps.in_main(Kind::Mma, "scores").at + 1}.insert_after({kept, draw});
  steps.in_main(Kind::Convert).insert_after({drop});
  steps.in_careful(Kind::Convert).insert_after({kept, draw, drop});
  return p;
}

// Once all rows have references, tiles that the mask cuts take a main step that masks, too. It is a body of its own,
// because a branch in the main step would slow the other tiles down [M35]. Warps vote on the mask while scores are
// multiplied.
Result<Program> vote_on_masks(Program p, const PassContext& context) {
  const KernelConfig& c = context.config;
  if (!c.mask_by_rows) return p;
  const Maker maker{p, "vote_on_masks"};
  const Steps steps{p};
  steps.in_careful(Kind::Let, "columns").take(1);
  steps.in_careful(Kind::Let, "mixed").insert_after({maker.let("columns")});
  if (!rises(c) || is_narrow(c)) return p;
  Body mixed = steps.main;
  steps.in(mixed, Kind::Softmax).statement().form = "quick_columns";
  steps.in(mixed, Kind::Let, "here").insert_before({maker.let("mixed_columns")});
  Body& all = find_body(p, "main_steps")->body;
  const Statement lower = maker.when(looks_back(c) ? "large_sum" : "large", {maker.call("lower")});
  Body full = {maker.when("tiles_left", std::move(all)), maker.mark("next_tile")},
       cut = {maker.loop("mixed", {maker.call("mixed_step"), lower})};
  append(cut, std::move(full));
  all = {maker.loop("tiles_left", std::move(cut))};
  const Statement no = maker.make(Kind::Return, {}, {}, "no"), yes = maker.make(Kind::Return, {}, {}, "yes");
  find_body(p, "takes_main_step")->body = {maker.when("none_left", {no}), maker.when("exact", {no}),
                                           maker.when("was_full", {yes}),
                                           maker.make(Kind::Return, {}, {}, "if_all_have_references")};
  Body& role = find_site(p, p.body, Kind::Consumer).statement().body;
  find_site(p, role, Kind::Body, "takes_main_step").insert_before({maker.body("mixed_step", std::move(mixed))});
  return p;
}

// With lists of tiles a step has the index of its tile in a list. The tile's number, on which positions depend, has
// come with K.
Result<Program> find_listed_tiles(Program p, const PassContext& context) {
  if (context.config.list_heads == 0) return p;
  const Maker maker{p, "find_listed_tiles"};
  const Steps steps{p};
  steps.in_careful(Kind::When, "scores").insert_after({maker.let("number")});
  for (const std::string_view name : {"main_step", "mixed_step", "careful_step"}) {
    Statement* step = find_body(p, name);
    if (!step) continue;
    if (name != "careful_step") steps.in(step->body, Kind::Await, "Ks").insert_after({maker.let("number")});
    steps.in(step->body, Kind::Let, "here").statement() = maker.let("here_by_number");
    if (const Site columns = steps.in(step->body, Kind::Let, "columns"))
      columns.statement() = maker.let("columns_of_number");
    if (const Site columns = steps.in(step->body, Kind::Let, "mixed_columns"))
      columns.statement() = maker.let("mixed_columns_of_number");
    if (const Site draw = steps.in(step->body, Kind::Draw)) draw.statement().form = "by_number";
  }
  return p;
}

}  // namespace flashjit

// Every row of the operand table against what is written down here: where it goes, and how a call without it, with too
// much of it or with a wrong one is refused, by its field and by its name.
#include "compiler/spec/operands.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "flashjit/flashjit.hpp"
#include "runtime/launch/arguments.h"
#include "tests/unit/runtime/narrow/filled.h"
#include "tests/unit/runtime/narrow/operand_rows.h"

namespace flashjit {
namespace {

struct Case {
  int layout;
  std::string spec() const {
    constexpr const char* kNames[] = {"bshd",   "bhsd", "packed", "paged(16)", "packed/paged(16)",
                                      "bshd",   "bhsd", "packed", "bshd",      "bhsd",
                                      "packed", "bshd", "bhsd",   "packed"};
    if (quantizes()) return std::string("quantize bf16 d=64 heads=4 layout=") + kNames[layout];
    if (backward()) return std::string("bwd bf16 out=fp32/fp16/bf16 d=64/32 heads=4/2 layout=") + kNames[layout];
    if (merges()) return std::string("merge bf16 out=fp32 d=32 heads=4 layout=") + kNames[layout];
    return std::string("fwd bf16 kv=e4m3 out=fp32 d=64/32 heads=4/2 layout=") + kNames[layout];
  }
  bool packed() const { return layout == kPacked || layout == kMixed || layout == kBackward + kPacked; }
  bool merges() const { return layout >= kMerge && layout <= kMergePacked; }
  bool backward() const { return layout >= kBackward && layout < kQuantize; }
  bool quantizes() const { return layout >= kQuantize; }
  bool attends() const { return layout < kMerge; }  // forward
  bool heads_first() const { return layout == kHeadsFirst || layout == kBackward + kHeadsFirst; }
  // All of what bwd reads is of its dtype.
  std::string dtype(const Expected& row) const {
    return backward() && (row.name == "k" || row.name == "v" || row.name == "o") ? "bf16" : row.dtype;
  }
  bool paged() const { return layout == kPaged || layout == kMixed; }
  const Shape& shape(const Expected& row) const { return row.shapes[layout]; }
  bool has(const Expected& row) const { return !shape(row).empty(); }
};
constexpr Case kCases[] = {{kDense},
                           {kHeadsFirst},
                           {kPacked},
                           {kPaged},
                           {kMixed},
                           {kMerge},
                           {kMergeHeadsFirst},
                           {kMergePacked},
                           {kBackward},
                           {kBackward + kHeadsFirst},
                           {kBackward + kPacked},
                           {kQuantize},
                           {kQuantize + kHeadsFirst},
                           {kQuantize + kPacked}};

// Is there no such tensor where a spec does not ask for the one of this name?
bool goes_with(const Expected& row, const std::string& name) {
  const auto named = std::ranges::find(expected(), name, &Expected::name);
  if (named == expected().end()) return false;
  if (row.word == named->word) return !row.word.empty();
  const auto pair = [&](std::string_view one, std::string_view other) {
    return (row.word == one && named->word == other) || (row.word == other && named->word == one);
  };
  return pair("k_lens", "shared_prefix") || (named->word == "append" && row.word.starts_with("rope")) ||
         (named->word == "sink" && row.name == "dsink");
}

std::string with_all(const Case& c, const std::string& but = "") {
  std::string spec = c.spec();
  for (const Expected& row : expected()) {
    const bool there = (spec + " ").find(" " + row.word + " ") != std::string::npos;
    if (!row.word.empty() && c.has(row) && !there && !goes_with(row, but)) spec += " " + row.word;
  }
  return spec;
}

// Addresses only: nothing is read or written through them.
Tensor tensor(const Case& c, const Expected& row) {
  const auto number = static_cast<std::uintptr_t>(&row - expected().data());
  return {reinterpret_cast<void*>(0x10000 * (number + 1)), c.dtype(row), c.shape(row), {}};
}

// Where a call has it: in its field, if there is one.
Tensor& place_of(Arguments& a, const Expected& row) { return row.field ? a.*row.field : a.params[row.name]; }

Arguments by_field(const Case& c) {
  Arguments a;
  if (c.packed()) a.max_q_len = 6;
  for (const Expected& row : expected()) {
    if (c.has(row)) place_of(a, row) = tensor(c, row);
  }
  return a;
}

Arguments by_name(const Case& c) {
  Arguments a;
  if (c.packed()) a.max_q_len = 6;
  for (const Expected& row : expected()) {
    if (c.has(row)) a.params[row.name] = tensor(c, row);
  }
  return a;
}

TEST(Operands, EveryRowIsWrittenDownHere) {
  ASSERT_EQ(kOperands.size(), expected().size());
  for (const Operand& operand : kOperands) {
    EXPECT_TRUE(std::ranges::any_of(expected(), [&](const Expected& row) { return row.name == operand.name; }))
        << operand.name << " is new: add a row to this test";
    EXPECT_FALSE(operand.what.empty()) << operand.name;
    EXPECT_EQ(operand.is_in == nullptr, operand.absent.empty()) << operand.name;
    EXPECT_EQ(operand.optional, operand.name.starts_with("scale_") || operand.name.starts_with("full_") ||
                                    operand.name == "positions" || operand.name == "key_count")
        << operand.name;
    EXPECT_EQ(operand.has_field, std::ranges::find(expected(), operand.name, &Expected::name)->field != nullptr);
  }
}

TEST(Operands, GoToTheirPlaceByFieldAndByName) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.spec());
    const auto fields = fill(with_all(c), by_field(c)), names = fill(with_all(c), by_name(c));
    ASSERT_TRUE(fields) << fields.error().message;
    ASSERT_TRUE(names) << names.error().message;
    for (const Expected& row : expected()) {
      const void* const wanted = c.has(row) ? tensor(c, row).data : nullptr;
      EXPECT_EQ(row.pointer(*fields), wanted) << row.name;
      EXPECT_EQ(row.pointer(*names), wanted) << row.name;
    }
    for (const auto& params : {fields, names}) {
      if (c.merges()) {
        const bool heads_first = c.layout == kMergeHeadsFirst, packed = c.layout == kMergePacked;
        EXPECT_EQ(params->k_len, 3);
        EXPECT_EQ(params->batch, packed ? 1 : 2);
        EXPECT_EQ(params->q_len, packed ? 10 : 5);
        EXPECT_EQ(params->o_parts_stride.part, 2 * 5 * 4 * 32);
        EXPECT_EQ(params->o_parts_stride.batch, packed ? 0 : 5 * 4 * 32);
        EXPECT_EQ(params->o_parts_stride.head, heads_first ? 5 * 32 : 32);
        EXPECT_EQ(params->o_parts_stride.token, heads_first ? 32 : 4 * 32);
        EXPECT_EQ(params->lse_parts_stride.part, 2 * 4 * 5);
        EXPECT_EQ(params->lse_parts_stride.batch, packed ? 0 : 4 * 5);
        EXPECT_EQ(params->lse_parts_stride.head, packed ? 10 : 5);
        EXPECT_EQ(params->lse_parts_stride.token, 1);
        EXPECT_EQ(params->max_parts_stride.head, packed ? 10 : 5);
        continue;
      }
      if (c.quantizes()) {
        const bool heads_first = c.layout == kQuantize + kHeadsFirst, packed = c.layout == kQuantize + kPacked;
        EXPECT_EQ(params->batch, packed ? 1 : 2);
        EXPECT_EQ(params->q_len, packed ? 10 : 5);
        for (const Strides& stride : {params->x_stride, params->y_stride}) {
          EXPECT_EQ(stride.batch, packed ? 0 : 5 * 4 * 64);
          EXPECT_EQ(stride.head, heads_first ? 5 * 64 : 64);
          EXPECT_EQ(stride.token, heads_first ? 64 : 4 * 64);
        }
        EXPECT_EQ(params->scale_y_stride.batch, packed ? 0 : 4);
        EXPECT_EQ(params->scale_y_stride.head, 1);
        continue;
      }
      EXPECT_EQ(params->v_stride.token, c.heads_first() ? 32 : 2 * 32);
      EXPECT_EQ(params->v_stride.head, c.heads_first() ? 9 * 32 : 32);
      EXPECT_EQ(params->v_stride.batch, c.paged() ? 16 * 2 * 32 : c.packed() ? 0 : 9 * 2 * 32);
      EXPECT_EQ(params->row_stride_head, c.packed() ? 10 : 5);
      EXPECT_EQ(params->row_stride_batch, c.packed() ? 0 : 4 * 5);
      EXPECT_EQ(params->table_stride_batch, c.paged() ? 4 : 0);
      EXPECT_EQ(params->table_stride_page, c.paged() ? 1 : 0);
      EXPECT_EQ(params->pages, c.paged() ? 6 : 0);
      EXPECT_EQ(params->batch, 2);
    }
  }
}

// What is wrong with one tensor, and how the message begins.
struct Wrong {
  Tensor tensor;
  std::string begin;
};

std::vector<Wrong> wrong_ones(const Case& c, const Expected& row) {
  const Tensor right = tensor(c, row);
  std::vector<Wrong> wrong;
  if (!kOperands[find_operand(row.name)].optional) wrong.push_back({{}, row.name + ": missing; this spec needs it"});
  Tensor one = right;
  one.dtype = "u8";
  wrong.push_back({one, row.name + ".dtype: 'u8', must be " + c.dtype(row)});
  one = right;
  one.shape.push_back(1);
  wrong.push_back({one, one.shape.size() > 5 ? row.name + ".shape: 6 dimensions, at most 5 are possible"
                                             : row.name + ".shape: " + std::to_string(one.shape.size()) +
                                                   " dimensions, must have " + std::to_string(right.shape.size())});
  one = right;
  one.data = nullptr;
  wrong.push_back({one, row.name + ".data: null"});
  one = right;
  one.data = static_cast<char*>(one.data) + 1;
  wrong.push_back(
      {one, row.name + (c.dtype(row) == "e4m3"
                            ? ".data: aligned to 1 bytes only, the kernel was made for 16; no spec takes less than 2"
                            : ".data: the address is no multiple of")});
  return wrong;
}

TEST(Operands, WrongOnesAreRefused) {
  for (const Case& c : kCases) {
    for (const Expected& row : expected()) {
      if (!c.has(row)) continue;
      SCOPED_TRACE(row.name + " of " + c.spec());
      for (const Wrong& wrong : wrong_ones(c, row)) {
        Arguments fields = by_field(c), names = by_name(c);
        place_of(fields, row) = wrong.tensor;
        names.params[row.name] = wrong.tensor;
        expect_refused(with_all(c), fields, wrong.begin);
        expect_refused(with_all(c), names, wrong.begin);
      }
    }
  }
}

// With every one of its sizes wrong in turn, some message speaks of a shape: of its own, or of the next that disagrees.
TEST(Operands, WrongSizesAreRefused) {
  for (const Case& c : kCases) {
    for (const Expected& row : expected()) {
      for (std::size_t i = 0; i < c.shape(row).size(); ++i) {
        const bool has_room = row.name == "block_table" ? i == 1 : row.name.ends_with("_index") && i == 3;
        if (has_room) continue;  // for any number
        SCOPED_TRACE(row.name + " of " + c.spec());
        Arguments arguments = by_field(c);
        place_of(arguments, row).shape[i] += 16;  // strides stay aligned
        const auto params = fill(with_all(c), arguments);
        ASSERT_FALSE(params) << "dimension " << i;
        EXPECT_NE(params.error().message.find(".shape["), std::string::npos) << params.error().message;
      }
    }
  }
}

// Why a call may not bring it.
std::string absent(const Expected& row) {
  if (row.name == "max_parts") return "the spec is no merge with max_logit; leave it out or add max_logit";
  if (row.name == "dlse") return "the spec does not ask for it; add dlse to the spec, a bwd, or leave it out";
  if (row.name == "do" || row.name == "dq" || row.name == "dk" || row.name == "dv")
    return "the spec is no bwd; leave it out or use bwd";
  if (row.name == "x" || row.name == "y" || row.name == "scale")
    return "the spec is no quantize; leave it out or use quantize";
  if (row.name == "positions") return "the spec does not ask for it; add rope=half(N) to a quantize or leave it out";
  if (row.name == "o")
    return "quantize writes y, and index scores, or with select=keys(N) key_index; leave it out or use fwd";
  if (row.name == "weights") return "the spec is no index; leave it out or use index";
  if (row.name == "scores") return "the spec is no index that writes it; leave it out, or use index without select=";
  if (!row.word.empty()) {
    return "the spec does not ask for it; add " +
           (row.word == "rope=half(32)" ? "rope=half(N), without rope_base,"
            : row.word == "dropout=0.1" ? "dropout=P"
                                        : row.word) +
           " to the spec or leave it out";
  }
  if (row.name == "o_parts" || row.name == "lse_parts") return "the spec is no merge; leave it out or use merge";
  if (row.name == "block_table") return "the spec's layout is not paged; leave it out or use layout=paged(N)";
  if (row.name.starts_with("offsets")) return "the spec's layout is not packed; leave it out or use layout=packed";
  if (row.name.starts_with("scale_")) return "the elements of " + row.name.substr(6) + " have no scale in this spec";
  if (row.name == "v") return "this spec reads none: V is the first columns of k with v_in_k, a merge has o_parts";
  return "a merge reads o_parts and lse_parts, and quantize reads x; leave it out or use fwd";
}

TEST(Operands, SuperfluousOnesAreRefused) {
  for (const Case& c : kCases) {
    for (const Expected& row : expected()) {
      if (!c.has(row)) {
        Arguments arguments = by_field(c);
        const auto owner = std::ranges::find_if(kCases, [&](const Case& o) { return o.has(row); });
        place_of(arguments, row) = tensor(owner == std::end(kCases) ? c : *owner, row);  // what none has has no shape
        expect_refused(with_all(c), arguments, row.name + ": given, and " + absent(row));
      } else if (!row.word.empty() && !(row.name == "k_lens" && c.paged()) && !(row.name == "lse" && c.backward())) {
        const std::string begin = row.name + ": given, and " + absent(row);
        Arguments fields = by_field(c), names = by_name(c);
        for (const Expected& other : expected()) {
          if (&other == &row || !goes_with(other, row.name)) continue;
          if (other.field) fields.*other.field = {};
          fields.params.erase(other.name);
          names.params.erase(other.name);
        }
        expect_refused(with_all(c, row.name), fields, begin);
        expect_refused(with_all(c, row.name), names, begin);
      }
    }
  }
}

TEST(Operands, ScalesMayBeLeftOutOrCountForMore) {
  for (const Case& c : kCases) {
    if (!c.attends()) continue;
    SCOPED_TRACE(c.spec());
    Arguments arguments = by_field(c);
    arguments.params.erase("scale_v");
    float scales[8] = {};
    const struct {
      Shape shape, strides;
      std::int64_t batch, head;
    } rows[] = {{{2, 2}, {}, 2, 1},     {{2, 2}, {1, 2}, 1, 2}, {{2, 2}, {0, 0}, 0, 0}, {{1}, {}, 0, 0},
                {{2}, {}, 0, 1},        {{2}, {3}, 0, 3},       {{2, 1}, {}, 1, 0},     {{1, 2}, {}, 0, 1},
                {{1, 1}, {7, 7}, 0, 0}, {{}, {}, 0, 0}};
    for (const auto& row : rows) {
      arguments.params["scale_k"] = {scales, "fp32", row.shape, row.strides};
      const auto params = fill(with_all(c), arguments);
      ASSERT_TRUE(params) << params.error().message;
      EXPECT_EQ(params->scale_k, scales);
      EXPECT_EQ(params->scale_k_stride.batch, row.batch);
      EXPECT_EQ(params->scale_k_stride.head, row.head);
      EXPECT_EQ(params->scale_v, nullptr);
    }
    arguments.params["scale_k"] = {scales, "fp32", {3}, {}};
    expect_refused(with_all(c), arguments, "scale_k.shape[1]: 3, must be 2 (KV heads of the spec)");
    arguments.params["scale_k"] = {scales, "fp32", {2, 9, 2}, {}};
    expect_refused(with_all(c), arguments,
                   "scale_k.shape: 3 dimensions, must have 2; keys have scales of their own with token_scales");
    arguments.params["scale_k"] = {scales, "bf16", {1}, {}};
    expect_refused(with_all(c), arguments, "scale_k.dtype: 'bf16', must be fp32");
  }
}

TEST(Operands, ElementsOfQsTypeHaveNoScales) {
  const Case c = {kDense};
  Arguments arguments = by_field(c);
  arguments.k.dtype = arguments.v.dtype = "bf16";
  arguments.params.erase("scale_v");
  std::string spec = with_all(c);
  spec.replace(spec.find(" kv=e4m3"), 8, "");
  expect_refused(spec, arguments, "scale_k: given, and the elements of k have no scale in this spec");
}

// V is then K, with K's strides.
TEST(Operands, ValuesInKeys) {
  for (const Case& c : kCases) {
    if (!c.attends()) continue;
    SCOPED_TRACE(c.spec());
    Arguments arguments = by_field(c);
    const std::string spec = with_all(c) + " v_in_k";
    expect_refused(spec, arguments, "v: given, and this spec reads none: V is the first columns of k with v_in_k");
    arguments.v = {};
    expect_refused(spec, arguments, "scale_v: given, and the elements of v have no scale in this spec");
    arguments.params.erase("scale_v");
    expect_refused(spec, arguments, "v_new: given, and the spec does not ask for it");
    arguments.params.erase("v_new");
    const auto params = fill(spec, arguments);
    ASSERT_TRUE(params) << params.error().message;
    EXPECT_EQ(params->scale_v, arguments.params["scale_k"].data);
    EXPECT_EQ(params->scale_v_stride.batch, params->scale_k_stride.batch);
    EXPECT_EQ(params->v, arguments.k.data);
    EXPECT_EQ(params->k, arguments.k.data);
    EXPECT_EQ(params->v_stride.token, params->k_stride.token);
    EXPECT_EQ(params->v_stride.batch, params->k_stride.batch);
    EXPECT_EQ(params->v_stride.head, params->k_stride.head);
  }
}

TEST(Operands, GivenTwice) {
  for (const Case& c : kCases) {
    for (const Expected& row : expected()) {
      if (!c.has(row) || !row.field) continue;  // of one name a map has one
      Arguments arguments = by_field(c);
      arguments.params[row.name] = tensor(c, row);
      expect_refused(with_all(c), arguments, row.name + ": given twice");
    }
  }
}

TEST(Operands, ParametersOfTheSpecHideThem) {
  const Case c = {kDense};
  const std::string spec = with_all(c) + " params=\"sink: fp32[1], o: fp32\" score=\"s * o + sink[h]\"";
  Arguments arguments = by_field(c);
  void* const own = reinterpret_cast<void*>(0x900000);
  arguments.params["sink"] = {own, "fp32", {4}, {}};
  arguments.scalars["o"] = 2;
  const auto params = fill(spec, arguments);
  ASSERT_TRUE(params) << params.error().message;
  EXPECT_EQ(params->extra[0].data, own);
  EXPECT_EQ(params->sink, arguments.sink.data);
  EXPECT_EQ(params->o, arguments.o.data);
  arguments.sink = {};
  expect_refused(spec, arguments, "sink: missing");
}

TEST(Operands, NumbersAreNoTensors) {
  const Case c = {kDense};
  Arguments arguments = by_field(c);
  arguments.sink = {};
  arguments.scalars["sink"] = 1;
  expect_refused(with_all(c), arguments, "scalars.sink: it is a tensor");
}

}  // namespace
}  // namespace flashjit

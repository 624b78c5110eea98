// A key that forgets something gives an old kernel for a new problem. What must be in it is read from the definitions
// of the structs, so that a field that is added later fails here until somebody says what it changes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <set>

#include "runtime/compile/kernel_key.h"
#include "tests/requests.h"

namespace flashjit {
namespace {

// The names of the data members of a struct, in order.
std::vector<std::string> fields_of_struct(const std::string& header, const std::string& name) {
  std::ifstream file(std::string(FLASHJIT_TESTS_DIR) + "/../" + header);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  text = std::regex_replace(text, std::regex("//[^\n]*"), "");
  const std::size_t begin = text.find("struct " + name + " {");
  EXPECT_NE(begin, std::string::npos) << header << " has no struct " << name;
  std::string body = text.substr(text.find('{', begin) + 1);
  body.resize(body.find("\n};"));
  body = std::regex_replace(body, std::regex("<[^;<>]*>|\\{[^}]*\\}"), "");
  std::vector<std::string> names;
  std::size_t at = 0;
  for (std::size_t end; (end = body.find(';', at)) != std::string::npos; at = end + 1) {
    const std::string member = body.substr(at, end - at);
    if (member.find('(') != std::string::npos || member.find("operator") != std::string::npos) continue;
    // type name [= value] [, name [= value]]...
    static const std::regex declared("^\\s*[A-Za-z_:0-9]+\\s+([^]*)$");
    std::smatch parts;
    if (!std::regex_match(member, parts, declared)) continue;
    std::string list = parts[1];
    static const std::regex one("(?:^|,)\\s*([A-Za-z_][A-Za-z_0-9]*)");
    for (std::sregex_iterator i(list.begin(), list.end(), one), none; i != none; ++i) names.push_back((*i)[1]);
  }
  return names;
}

template <class Rows>
void expect_all_named(const std::vector<std::string>& fields, const Rows& rows, const char* what) {
  EXPECT_GT(fields.size(), 1u);
  for (const std::string& field : fields) {
    EXPECT_TRUE(std::ranges::any_of(rows, [&](const auto& row) { return row.field == field; }))
        << what << "::" << field << " is new: add a row that says how it changes the key";
  }
  for (const auto& row : rows)
    EXPECT_TRUE(std::ranges::count(fields, row.field)) << what << " has no field " << row.field;
}

StoreKey key_for(const Plan& plan, const KernelSource& source) {
  return key_of(plan, source, "nvrtc 13.0", {"-std=c++17"});
}

StoreKey key_for(const Plan& plan) {
  const auto source = emit_cuda(plan);
  EXPECT_TRUE(source) << source.error().message;
  return key_for(plan, *source);
}

struct SpecRow {
  std::string field;
  const char* text;  // a spec that differs from the base in this field
  std::function<bool(const AttentionSpec&, const AttentionSpec&)> differs;
};
#define FLASHJIT_ROW(field, text) \
  {#field, text, [](const AttentionSpec& a, const AttentionSpec& b) { return !(a.field == b.field); }}

constexpr char kBase[] = "fwd bf16 d=64 heads=4/2 mask=\"causal\" score=\"s + extra[h]\" params=\"extra: fp32[1]\"";

bool same_params(const std::vector<Param>& a, const std::vector<Param>& b) { return a == b; }
bool same_text(const Expr& a, const Expr& b) { return a && b ? same(a, b) : !a && !b; }

const SpecRow kSpecRows[] = {
    FLASHJIT_ROW(operation, "bwd bf16 d=64 heads=4/2 mask=\"causal\""),
    FLASHJIT_ROW(dtype, "fwd fp16 d=64 heads=4/2 mask=\"causal\" score=\"s + extra[h]\" params=\"extra: fp32[1]\""),
    FLASHJIT_ROW(kv_dtype,
                 "fwd bf16 kv=e4m3 d=64 heads=4/2 mask=\"causal\" score=\"s + extra[h]\" params=\"extra: fp32[1]\""),
    FLASHJIT_ROW(cache_format, "fwd bf16 kv=latent656 d=576/512 heads=4/1 mask=\"causal\" v_in_k"),
    FLASHJIT_ROW(out_dtype,
                 "fwd bf16 out=fp32 d=64 heads=4/2 mask=\"causal\" score=\"s + extra[h]\" params=\"extra: fp32[1]\""),
    FLASHJIT_ROW(out_dq, "bwd bf16 out=fp32/bf16/bf16 d=64 heads=4/2 mask=\"causal\""),
    FLASHJIT_ROW(out_dk, "bwd bf16 out=bf16/fp32/bf16 d=64 heads=4/2 mask=\"causal\""),
    FLASHJIT_ROW(out_dv, "bwd bf16 out=bf16/bf16/fp32 d=64 heads=4/2 mask=\"causal\""),
    FLASHJIT_ROW(d_qk, "fwd bf16 d=72/64 heads=4/2 mask=\"causal\" score=\"s + extra[h]\" params=\"extra: fp32[1]\""),
    FLASHJIT_ROW(d_v, "fwd bf16 d=64/72 heads=4/2 mask=\"causal\" score=\"s + extra[h]\" params=\"extra: fp32[1]\""),
    FLASHJIT_ROW(heads_q, "fwd bf16 d=64 heads=6/2 mask=\"causal\" score=\"s + extra[h]\" params=\"extra: fp32[1]\""),
    FLASHJIT_ROW(heads_kv, "fwd bf16 d=64 heads=4 mask=\"causal\" score=\"s + extra[h]\" params=\"extra: fp32[1]\""),
    FLASHJIT_ROW(
        layout,
        "fwd bf16 d=64 heads=4/2 layout=packed mask=\"causal\" score=\"s + extra[h]\" params=\"extra: fp32[1]\""),
    FLASHJIT_ROW(page_size, "fwd bf16 d=64 heads=4/2 layout=paged(16) mask=\"causal\""),
    FLASHJIT_ROW(selected, "fwd bf16 d=64 heads=4/2 select=keys(40) score=\"s + extra[h]\" params=\"extra: fp32[1]\""),
    FLASHJIT_ROW(whole_pages, "fwd bf16 d=64 heads=4/2 layout=paged(16) select=pages(3)"),
    {"blocks", "fwd bf16 d=64 heads=4/2 blocks=128 mask=\"causal\" score=\"s + extra[h]\" params=\"extra: fp32[1]\"",
     [](const AttentionSpec& a, const AttentionSpec& b) { return a.blocks.q != b.blocks.q; }},
    FLASHJIT_ROW(mask_text,
                 "fwd bf16 d=64 heads=4/2 mask=\"k <= qpos + 1\" score=\"s + extra[h]\" params=\"extra: fp32[1]\""),
    FLASHJIT_ROW(score_text,
                 "fwd bf16 d=64 heads=4/2 mask=\"causal\" score=\"s - extra[h]\" params=\"extra: fp32[1]\""),
    {"mask", "fwd bf16 d=64 heads=4/2 mask=\"k <= qpos + 2\" score=\"s + extra[h]\" params=\"extra: fp32[1]\"",
     [](const AttentionSpec& a, const AttentionSpec& b) { return !same_text(a.mask, b.mask); }},
    {"list_mask", "fwd bf16 d=64 heads=4/2 select=keys(40) mask=\"causal\"",
     [](const AttentionSpec& a, const AttentionSpec& b) { return !same_text(a.list_mask, b.list_mask); }},
    {"score", "fwd bf16 d=64 heads=4/2 mask=\"causal\" score=\"s * extra[h]\" params=\"extra: fp32[1]\"",
     [](const AttentionSpec& a, const AttentionSpec& b) { return !same_text(a.score, b.score); }},
    {"declared", "fwd bf16 d=64 heads=4/2 mask=\"causal\" score=\"s + extra[h]\" params=\"extra: fp16[1]\"",
     [](const AttentionSpec& a, const AttentionSpec& b) { return !same_params(a.declared, b.declared); }},
    {"params", "fwd bf16 d=64 heads=4/2 mask=\"causal\" score=\"s + extra[h]\" params=\"extra: bf16[1]\"",
     [](const AttentionSpec& a, const AttentionSpec& b) { return !same_params(a.params, b.params); }},
    FLASHJIT_ROW(scale,
                 "fwd bf16 d=64 heads=4/2 mask=\"causal\" score=\"s + extra[h]\" params=\"extra: fp32[1]\" scale=0.5"),
    FLASHJIT_ROW(
        alignment,
        "fwd bf16 d=64 heads=4/2 align=top_left mask=\"causal\" score=\"s + extra[h]\" params=\"extra: fp32[1]\""),
    FLASHJIT_ROW(lse,
                 "fwd bf16 d=64 heads=4/2 mask=\"causal\" score=\"s + extra[h]\" params=\"extra: fp32[1]\" lse=ln"),
    FLASHJIT_ROW(max_logit,
                 "fwd bf16 d=64 heads=4/2 mask=\"causal\" score=\"s + extra[h]\" params=\"extra: fp32[1]\" max_logit"),
    FLASHJIT_ROW(sink, "fwd bf16 d=64 heads=4/2 mask=\"causal\" score=\"s + extra[h]\" params=\"extra: fp32[1]\" sink"),
    FLASHJIT_ROW(k_lens,
                 "fwd bf16 d=64 heads=4/2 mask=\"causal\" score=\"s + extra[h]\" params=\"extra: fp32[1]\" k_lens"),
    FLASHJIT_ROW(v_in_k,
                 "fwd bf16 d=64 heads=4/2 mask=\"causal\" score=\"s + extra[h]\" params=\"extra: fp32[1]\" v_in_k"),
    FLASHJIT_ROW(v_transposed, "fwd e4m3 d=64 heads=4/2 mask=\"causal\" v_transposed"),
    FLASHJIT_ROW(token_scales, "fwd bf16 kv=e4m3 d=64 heads=4/2 mask=\"causal\" token_scales"),
    FLASHJIT_ROW(scale_block, "fwd bf16 kv=e4m3 d=64 heads=4/2 mask=\"causal\" scales=block(128)"),
    FLASHJIT_ROW(compute, "fwd bf16 d=64 heads=4/2 mask=\"causal\" compute=e4m3"),
    FLASHJIT_ROW(rotate, "fwd bf16 d=64 heads=4/2 mask=\"causal\" compute=e4m3 rotate"),
    FLASHJIT_ROW(linear_exp, "fwd e4m3 d=64 heads=4/2 mask=\"causal\" linear_exp"),
    FLASHJIT_ROW(accumulate, "fwd bf16 out=fp32 d=64 heads=4/2 mask=\"causal\" lse=ln accumulate"),
    FLASHJIT_ROW(places, "fwd bf16 d=64 heads=4/2 mask=\"causal\" places"),
    FLASHJIT_ROW(head_tables, "fwd bf16 d=64 heads=4/2 layout=paged(16) mask=\"causal\" head_tables"),
    FLASHJIT_ROW(dlse, "bwd bf16 d=64 heads=4/2 mask=\"causal\" dlse"),
    FLASHJIT_ROW(grads, "bwd bf16 d=64 heads=4/2 mask=\"causal\" score=\"alibi\" grads=\"slope\""),
    FLASHJIT_ROW(append, "fwd bf16 d=64 heads=4/2 mask=\"causal\" append"),
    FLASHJIT_ROW(shared_prefix, "fwd bf16 d=64 heads=4/2 layout=paged(16) mask=\"causal\" shared_prefix"),
    FLASHJIT_ROW(rope, "fwd bf16 d=64 heads=4/2 mask=\"causal\" append rope=interleaved(64)"),
    FLASHJIT_ROW(rope_dims, "fwd bf16 d=64 heads=4/2 mask=\"causal\" append rope=half(32)"),
    FLASHJIT_ROW(rope_from, "fwd bf16 d=64 heads=4/2 mask=\"causal\" append rope=half(32) rope_from=32"),
    FLASHJIT_ROW(rope_base, "fwd bf16 d=64 heads=4/2 mask=\"causal\" append rope=half(64) rope_base=10000"),
    FLASHJIT_ROW(dropout, "fwd bf16 d=64 heads=4/2 mask=\"causal\" dropout=0.25"),
    FLASHJIT_ROW(batch,
                 "fwd bf16 d=64 heads=4/2 mask=\"causal\" score=\"s + extra[h]\" params=\"extra: fp32[1]\" b<=64"),
    FLASHJIT_ROW(
        q_len, "fwd bf16 d=64 heads=4/2 mask=\"causal\" score=\"s + extra[h]\" params=\"extra: fp32[1]\" q_len<=4096"),
    FLASHJIT_ROW(
        k_len, "fwd bf16 d=64 heads=4/2 mask=\"causal\" score=\"s + extra[h]\" params=\"extra: fp32[1]\" k_len<=4096"),
    FLASHJIT_ROW(align_bytes,
                 "fwd bf16 d=64 heads=4/2 mask=\"causal\" score=\"s + extra[h]\" params=\"extra: fp32[1]\" bytes=2"),
    FLASHJIT_ROW(
        numerics,
        "fwd bf16 d=64 heads=4/2 mask=\"causal\" score=\"s + extra[h]\" params=\"extra: fp32[1]\" numerics=deterministic"),
};
#undef FLASHJIT_ROW

TEST(KeyFault, EveryFieldOfTheSpec) {
  expect_all_named(fields_of_struct("compiler/spec/spec.h", "AttentionSpec"), kSpecRows, "AttentionSpec");
  const auto base = parse_spec(kBase);
  ASSERT_TRUE(base) << base.error().message;
  const auto plan = plan_spec(kBase, "sm_80", "");
  ASSERT_TRUE(plan);
  std::map<std::string, std::string> digests = {{key_for(*plan).digest, "the base"}};
  int unsupported = 0;
  for (const SpecRow& row : kSpecRows) {
    SCOPED_TRACE(row.field);
    const auto spec = parse_spec(row.text);
    ASSERT_TRUE(spec) << spec.error().message;
    EXPECT_TRUE(row.differs(*base, *spec)) << "the row does not change the field";
    EXPECT_NE(print(*base), print(*spec));
    if (!check_supported(*spec)) {
      ++unsupported;  // nothing compiles it; its text, which is part of every key, differs
      continue;
    }
    const auto other = plan_spec(row.text, "sm_80", "");
    ASSERT_TRUE(other) << other.error().message;
    const auto [place, is_new] = digests.emplace(key_for(*other).digest, row.field);
    EXPECT_TRUE(is_new) << "same key as " << place->second;
  }
  EXPECT_LE(unsupported, 4);
}

TEST(KeyFault, OrderAndSpacesAreNoPartOfIt) {
  const auto key = [](const char* text) { return key_for(*plan_spec(text, "sm_80", "")).digest; };
  EXPECT_EQ(key("fwd bf16 d=64 heads=4 mask=\"causal\" lse=ln"),
            key("fwd  bf16 lse=ln heads=4/4 mask=\"causal\"  d=64/64"));
}

// What the emitters of a host kernel read, which has no source that would tell.
TEST(KeyFault, EveryPartOfAHostPlan) {
  const auto base = plan_spec("fwd fp32 d=64 heads=4/2 mask=\"causal\"", "x86-64-v3", "");
  ASSERT_TRUE(base) << base.error().message;
  constexpr char kCompiler[] = "llvm 19.1.7 build 1234";
  std::map<std::string, std::string> digests = {{host_key_of(*base, kCompiler).digest, "the base"}};
  const auto differs = [&](const std::string& what, const StoreKey& key) {
    const auto [place, is_new] = digests.emplace(key.digest, what);
    EXPECT_TRUE(is_new) << what << ": same key as " << place->second;
  };
  differs("LLVM's version", host_key_of(*base, "llvm 19.1.8 build 1234"));
  differs("another build of the library", host_key_of(*base, "llvm 19.1.7 build 1235"));
  for (const char* text : {"fwd bf16 d=64 heads=4/2 mask=\"causal\"", "fwd fp32 d=64 heads=4/2 mask=\"k < qpos\""})
    differs(text, host_key_of(*plan_spec(text, "x86-64-v3", ""), kCompiler));
  differs("target", host_key_of(*plan_spec("fwd fp32 d=64 heads=4/2 mask=\"causal\"", "x86-64-v4", ""), kCompiler));
  differs("pins",
          host_key_of(*plan_spec("fwd fp32 d=64 heads=4/2 mask=\"causal\"", "x86-64-v3", "tile_q=16"), kCompiler));
  struct Row {
    std::string field;
    std::function<void(Plan&)> change;
  };
  const Expr seven = Expr::integer(7);
  const Row tiles[] = {{"along", nullptr},              // that of keys, always
                       {"may_see_in_blocks", nullptr},  // processors have maps of tiles instead
                       {"begin", [&](Plan& p) { p.tiles.begin = seven; }},
                       {"end", [&](Plan& p) { p.tiles.end = seven; }},
                       {"full_begin", [&](Plan& p) { p.tiles.full_begin = seven; }},
                       {"full_end", [&](Plan& p) { p.tiles.full_end = seven; }},
                       {"may_see", [&](Plan& p) { p.tiles.may_see = Expr::boolean(false); }},
                       {"line_is_range", [](Plan& p) { p.tiles.line_is_range = !p.tiles.line_is_range; }}};
  expect_all_named(fields_of_struct("compiler/analysis/interval.h", "TileAnalysis"), tiles, "TileAnalysis");
  std::vector<Row> rows(std::begin(tiles), std::end(tiles));
  rows.push_back({"wide_ints", [](Plan& p) { p.wide_ints = !p.wide_ints; }});
  rows.push_back({"avx2", [](Plan& p) { p.target.can.avx2 = !p.target.can.avx2; }});
  rows.push_back({"avx512", [](Plan& p) { p.target.can.avx512 = true; }});
  rows.push_back({"avx512_bf16", [](Plan& p) { p.target.can.avx512_bf16 = true; }});
  rows.push_back({"amx_bf16", [](Plan& p) { p.target.can.amx_bf16 = true; }});
  for (const Row& row : rows) {
    if (!row.change) continue;
    Plan changed = *base;
    row.change(changed);
    differs(row.field, host_key_of(changed, kCompiler));
  }
  const auto spaced = plan_spec("fwd  fp32 mask=\" k<=qpos\" d=64 heads=4/2", "x86-64-v3", "");
  EXPECT_EQ(host_key_of(*spaced, kCompiler).digest, host_key_of(*base, kCompiler).digest);
}

struct ScheduleRow {
  std::string field;
  const char *one, *other;
};
const ScheduleRow kScheduleRows[] = {
    {"family", "family=sync", "family=hopper"},
    {"tile_q", "tile_q=64", "tile_q=128"},
    {"tile_kv", "tile_kv=64", "tile_kv=128"},
    {"warps", "warps=4", "warps=8"},
    {"q_in", "q_in=shared", "q_in=registers"},
    {"blocks_per_sm", "blocks_per_sm=1", "blocks_per_sm=2"},
    {"unroll_d", "unroll_d=1", "unroll_d=2"},
    {"stages", "stages=1", "stages=2"},
    {"order", "order=natural", "order=longest_first"},
    {"warpgroups", "warpgroups=1", "warpgroups=2"},
    {"q_stages", "q_stages=1", "q_stages=2"},
    {"overlap", "overlap=none", "overlap=qk_pv"},
    {"exclusive", "exclusive=none", "exclusive=issue"},
    {"reference", "reference=tile", "reference=first"},
    {"row_sum", "row_sum=adds", "row_sum=matrix"},
    {"grid", "grid=tiles", "grid=persistent"},
    {"head_tiles", "head_tiles=single", "head_tiles=grouped"},
    {"transpose", "transpose=loop", "transpose=launch"},
    {"keys", "keys=whole", "keys=parts"},
    {"tiles", "tiles=range", "tiles=list"},
    {"copies", "copies=rows", "copies=boxes"},
    {"dq", "dq=launch", "dq=atomics"},
};

TEST(KeyFault, EveryFieldOfTheSchedule) {
  expect_all_named(fields_of_struct("compiler/spec/schedule.h", "Schedule"), kScheduleRows, "Schedule");
  auto plan = plan_spec(kBase, "sm_90a", "");
  ASSERT_TRUE(plan);
  const auto source = emit_cuda(*plan);
  ASSERT_TRUE(source);
  std::set<std::string> digests;
  for (const ScheduleRow& row : kScheduleRows) {
    for (const char* text : {row.one, row.other}) {
      const auto schedule = parse_schedule(text);
      ASSERT_TRUE(schedule) << schedule.error().message;
      plan->schedule = *schedule;
      EXPECT_TRUE(digests.insert(key_for(*plan, *source).digest).second) << text;
    }
  }
}

struct CoveredRow {
  std::string field;
  const char* by;
};

TEST(KeyFault, EveryFieldOfAPlanAndItsSourceIsNamed) {
  const CoveredRow plan_rows[] = {{"spec", "its own field"},
                                  {"target", "its name; what it can do is seen in schedule and source"},
                                  {"schedule", "its own field"},
                                  {"config", "config.gen.cuh, see below"},
                                  {"before", "follows from config"},
                                  {"launches", "follow from config"},
                                  {"rotated_q", "follows from config"},
                                  {"value_rows", "follows from config"},
                                  {"wide_rows", "follows from config"},
                                  {"shown_keys", "follows from spec"},
                                  {"merged_lists", "follows from config"},
                                  {"block_states", "follows from spec"},
                                  {"tile_lists", "follows from config"},
                                  {"reads_columns", "follows from config"},
                                  {"key_reach", "follows from config"},
                                  {"linear_weights", "follows from config"},
                                  {"maps", "follow from spec and config; of a call, not of the binary"},
                                  {"input_maps", "the same"},
                                  {"head_groups", "the same"},
                                  {"workspace", "follows from config"},
                                  {"tiles", "variant.gen.cuh"},
                                  {"query_tiles", "variant.gen.cuh"},
                                  {"wide_ints", "variant.gen.cuh"},
                                  {"notes", "texts"},
                                  {"why_family", "a text"},
                                  {"candidates", "not compiled"},
                                  {"program", "text"}};
  expect_all_named(fields_of_struct("compiler/plan.h", "Plan"), plan_rows, "Plan");
  const CoveredRow source_rows[] = {{"generated", "below"}, {"headers", "below"}};
  expect_all_named(fields_of_struct("codegen/cuda/emit.h", "KernelSource"), source_rows, "KernelSource");
}

TEST(KeyFault, EveryByteOfASource) {
  auto plan = plan_spec(kBase, "sm_90a", "family=hopper");
  ASSERT_TRUE(plan) << plan.error().message;
  auto source = emit_cuda(*plan);
  ASSERT_TRUE(source);
  std::map<std::string, std::string> digests = {{key_for(*plan, *source).digest, "the base"}};
  const auto differs = [&](const std::string& what, const StoreKey& key) {
    const auto [place, is_new] = digests.emplace(key.digest, what);
    EXPECT_TRUE(is_new) << what << ": same key as " << place->second;
  };
  ASSERT_GE(source->generated.size(), 4u);
  ASSERT_GE(source->headers.size(), 5u);
  for (auto* files : {&source->generated, &source->headers}) {
    for (SourceFile& file : *files) {
      const SourceFile before = file;
      file.text.back() ^= 1;
      differs("the last byte of " + file.name, key_for(*plan, *source));
      file.text = before.text + " ";
      differs("a byte more in " + file.name, key_for(*plan, *source));
      file = {before.name + "x", before.text};
      differs("the name of " + before.name, key_for(*plan, *source));
      file = before;
    }
  }
  differs("compiler", key_of(*plan, *source, "nvrtc 13.1", {"-std=c++17"}));
  differs("an option more", key_of(*plan, *source, "nvrtc 13.0", {"-std=c++17", "-G"}));
  differs("another option", key_of(*plan, *source, "nvrtc 13.0", {"-std=c++20"}));
  plan->target.name = "sm_90";
  differs("target", key_for(*plan, *source));
}

constexpr char kUnwritten[] =
    " of KernelConfig is in no source that `rows` gives, and kernels that differ in it alone would share a key. A new "
    "field needs a row in compiler/program/config_fields.cpp, which writes it into the source, and in `rows` a spec with "
    "pins whose plan sets it to something else than its default";

// What the templates are told is in the generated text, or it would be missing there as well as in the key.
TEST(KeyFault, EveryFieldOfTheKernelConfigIsWritten) {
  // What is at its default is not: between them these set every field to something else.
  std::string long_mask = "fwd bf16 d=64 heads=4/2 mask=\"k % 2 == 0";
  for (int i = 3; i < 24; ++i) long_mask += fmt::format(" | k % {} == q % {}", i, i + 1);
  long_mask += "\"";
  const std::pair<const char*, const char*> rows[] = {
      {"fwd fp16 d=64 heads=4/2 layout=packed lse=ln max_logit sink mask=\"causal\"",
       "family=hopper,reference=tile,order=longest_first"},
      {"fwd bf16 d=64 heads=4/2 score=\"softcap(50)\" accumulate places", "family=hopper"},
      {"fwd bf16 d=64 heads=4/2 score=\"s + extra[h, q, k]\" params=\"extra: bf16[3]\"", "family=hopper"},
      {"fwd bf16 d=64 heads=4/2 score=\"s + extra[h, q, k]\" params=\"extra: fp32[3]\"", "family=hopper"},
      {"fwd bf16 d=64 heads=4/2 mask=\"k < 4 | q - k < 64\" bytes=8", "family=sync,q_in=registers,blocks_per_sm=2"},
      {"fwd bf16 d=128 heads=4", "family=hopper,row_sum=matrix"},
      {"fwd bf16 d=128 heads=4", "family=hopper,keys=parts"},
      {"fwd bf16 d=64 heads=8/2 q_len=8", "family=hopper,head_tiles=grouped"},
      {"fwd bf16 d=64 heads=8 mask=\"document(doc)\"", "family=hopper"},
      {"fwd bf16 d=64 heads=8/2 q_len=1 mask=\"k < 100 * b\" numerics=batch_invariant",
       "family=decode,stages=2,copies=boxes"},
      {"fwd bf16 d=64 heads=8/2 layout=paged(64) select=pages(3) q_len=4", "family=decode,blocks_per_sm=2"},
      {"fwd bf16 d=64 heads=8 layout=bhsd q_len=1", "family=decode"},
      {"fwd bf16 d=64 heads=64/8 q_len=8", "family=decode"},
      {"fwd bf16 kv=e4m3 d=64 heads=8/2 layout=paged(16) k_lens token_scales head_tables", "family=sync"},
      {"fwd e4m3 d=64 heads=8/2 scales=block(128)", "family=sync"},
      {"fwd bf16 kv=latent656 d=576/512 heads=8/1 layout=paged(16) v_in_k select=pages(3) mask=\"k<9\"", "family=sync"},
      {"fwd e4m3 d=64 heads=8/2 v_transposed linear_exp", "family=hopper,transpose=launch"},
      {"fwd bf16 kv=e4m3 d=576/512 heads=128/1 v_in_k", "family=mla,tile_q=128"},
      {"fwd bf16 d=64 heads=8/2 append rope=half(32) rope_from=32 rope_base=10000", "family=sync"},
      {"merge bf16 d=64 heads=8 max_logit shared_prefix", ""},
      {"quantize bf16 d=64 heads=8 rotate", ""},
      {"index bf16 d=64 heads=8/2 select=keys(40)", ""},
      {"bwd bf16 d=64 heads=8 dlse", "family=sync_backward,dq=atomics"},
      {"bwd bf16 d=64 heads=8 score=\"alibi\" sink grads=\"slope, sink\"", "family=sync_backward"},
      {"bwd bf16 d=64 heads=8 mask=\"causal\" score=\"alibi\"", "family=hopper_backward"},
      {"bwd bf16 d=64 heads=8 score=\"bias(t, bf16)\" grads=\"t\"", "family=hopper_backward"},
      {"bwd bf16 d=256 heads=8", "family=hopper_backward,dq=atomics"},
      {"bwd bf16 d=64 heads=8 dropout=0.1", "family=naive_backward"},
      {long_mask.c_str(), "family=sync"},
  };
  std::string text;
  for (const auto& [spec, pins] : rows) {
    const auto plan = plan_spec(spec, "sm_90a", pins);
    ASSERT_TRUE(plan) << plan.error().message;
    text += emit_cuda(*plan)->generated[0].text;
  }
  const std::map<std::string, std::string> parts = {{"sync", "SyncConfig"},
                                                    {"sync_backward", "SyncBackwardConfig"},
                                                    {"hopper", "HopperConfig"},
                                                    {"hopper_backward", "HopperBackwardConfig"},
                                                    {"decode", "DecodeConfig"}};
  std::vector<std::string> fields;
  for (const std::string& field : fields_of_struct("templates/kernel_config.h", "KernelConfig")) {
    if (!parts.contains(field)) fields.push_back(field);
    else
      for (const std::string& inside : fields_of_struct("templates/kernel_config.h", parts.at(field)))
        fields.push_back(field + "." + inside);
  }
  EXPECT_GE(fields.size(), 80u);
  for (const std::string& field : fields)
    EXPECT_NE(text.find("  c." + field + " = "), std::string::npos) << field << kUnwritten;
}

}  // namespace
}  // namespace flashjit

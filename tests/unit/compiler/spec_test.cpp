#include "compiler/spec/spec.h"

#include <cmath>
#include <random>
#include <span>

#include <gtest/gtest.h>

#include "compiler/language/expr_lex.h"
#include "compiler/language/named.h"
#include "compiler/spec/fields/outputs.h"
#include "tests/unit/random_spec.h"

namespace flashjit {
namespace {

AttentionSpec read(const std::string& text) {
  auto spec = parse_spec(text);
  EXPECT_TRUE(spec) << text << "\n" << spec.error().message << "\n" << spec.error().detail;
  return spec ? *spec : AttentionSpec{};
}

TEST(Spec, EveryFieldIsRead) {
  const AttentionSpec s = read(
      "fwd fp16 kv=fp16 out=fp32 d=192/128 heads=32/8 layout=bhsd mask=\"causal & window(64, 0)\" score=\"s * gain[h] + cap\" "
      "params=\"gain: fp32[1], cap: fp32\" scale=0.25 align=top_left lse=log2 max_logit sink b<=64 q_len=1 k_len<=131072 bytes=8 "
      "numerics=deterministic");
  EXPECT_EQ(s.dtype, Dtype::F16);
  EXPECT_EQ(s.out_dtype, Dtype::F32);
  EXPECT_EQ(s.d_qk, 192);
  EXPECT_EQ(s.d_v, 128);
  EXPECT_EQ(s.heads_q, 32);
  EXPECT_EQ(s.heads_kv, 8);
  EXPECT_EQ(s.layout, Layout::Bhsd);
  EXPECT_TRUE(s.mask);
  EXPECT_TRUE(s.score);
  ASSERT_EQ(s.params.size(), 2u);
  EXPECT_EQ(s.params[0], (Param{"gain", Dtype::F32, 1}));
  EXPECT_EQ(s.params[1], (Param{"cap", Dtype::F32, 0}));
  EXPECT_EQ(s.scale, 0.25);
  EXPECT_EQ(s.alignment, Alignment::TopLeft);
  EXPECT_EQ(s.lse, Lse::log2);
  EXPECT_TRUE(s.max_logit);
  EXPECT_TRUE(s.sink);
  EXPECT_EQ(s.batch.max, 64);
  EXPECT_EQ(s.batch.min, 0);
  EXPECT_TRUE(s.q_len.pinned());
  EXPECT_EQ(s.k_len.max, 131072);
  EXPECT_EQ(s.align_bytes, 8);
  EXPECT_EQ(s.numerics, Numerics::Deterministic);
}

TEST(Spec, DefaultsFollowTheDtype) {
  const AttentionSpec s = read("fwd fp16 d=64");
  EXPECT_EQ(s.kv_dtype, Dtype::F16);
  EXPECT_EQ(s.out_dtype, Dtype::F16);
  EXPECT_EQ(s.d_v, 64);
  EXPECT_EQ(s.heads_kv, 1);
  EXPECT_FALSE(static_cast<bool>(s.mask));
  EXPECT_DOUBLE_EQ(s.effective_scale(), 0.125);
}

TEST(Spec, GradientsHaveDtypesOfTheirOwn) {
  const AttentionSpec alike = read("bwd bf16 d=64 out=fp32"), each = read("bwd bf16 d=64 out=fp32/bf16/fp16"),
                      usual = read("bwd fp16 d=64");
  for (const OutField& out : out_fields(alike)) {
    EXPECT_EQ(alike.*out.dtype, Dtype::F32) << out.tensor;
    EXPECT_EQ(usual.*out.dtype, Dtype::F16) << out.tensor;
  }
  EXPECT_EQ(each.out_dq, Dtype::F32);
  EXPECT_EQ(each.out_dk, Dtype::BF16);
  EXPECT_EQ(each.out_dv, Dtype::F16);
}

TEST(Spec, PagesAreOfKeysAndValues) {
  const AttentionSpec dense = read("fwd bf16 d=64 layout=paged(32)"),
                      packed = read("fwd bf16 d=64 layout=packed/paged(7)");
  EXPECT_EQ(dense.layout, Layout::Bshd);
  EXPECT_EQ(dense.page_size, 32);
  EXPECT_TRUE(dense.k_lens);
  EXPECT_EQ(packed.layout, Layout::Packed);
  EXPECT_EQ(packed.page_size, 7);
  EXPECT_FALSE(read("fwd bf16 d=64 layout=packed").k_lens);
}

TEST(Spec, PrintsCanonically) {
  const std::pair<const char*, const char*> rows[] = {
      {"fwd bf16 d=128 heads=32/8 mask=\"causal & window(4096, 0)\" score=\"softcap(50)\"",
       "fwd bf16 d=128 heads=32/8 mask=\"causal & window(4096, 0)\" score=\"softcap(50)\""},
      {"fwd   bf16\n d=128/128 heads=1/1 out=bf16 kv=bf16 lse=none bytes=16 layout=bshd numerics=fast b<=1073741823",
       "fwd bf16 d=128"},
      {"fwd fp16 k_len<=4096 sink q_len=1 d=64 heads=4 mask=causal",
       "fwd fp16 d=64 heads=4 mask=\"causal\" sink q_len=1 k_len<=4096"},
      {"fwd bf16 d=64 params=\" a : fp32 [2] ,c:i32\" score=\"s + a[h, q] * c\"",
       "fwd bf16 d=64 score=\"s + a[h, q] * c\" params=\"a: fp32[2], c: i32\""},
      {"fwd bf16 d=64 scale=-2.5e-1", "fwd bf16 d=64 scale=-0.25"},
      {"bwd bf16 d=64 sink params=\"a: fp32, c: fp32[1]\" grads=\" sink,c , a\" score=\"s * c[h] + a\"",
       "bwd bf16 d=64 score=\"s * c[h] + a\" params=\"a: fp32, c: fp32[1]\" grads=\"a, c, sink\" sink"},
      {"bwd bf16 d=64 out=fp32/fp32/fp32", "bwd bf16 out=fp32 d=64"},
      {"bwd bf16 d=64 out=bf16/bf16/bf16", "bwd bf16 d=64"},
      {"bwd bf16 d=64 out=bf16/fp16/bf16", "bwd bf16 out=bf16/fp16/bf16 d=64"},
      {"bwd e4m3 d=64 dropout=0.1 lse=ln dlse layout=packed", "bwd e4m3 d=64 layout=packed dlse dropout=0.1"},
      {"fwd bf16 d=64 k_lens layout=paged(16)", "fwd bf16 d=64 layout=paged(16)"},
      {"fwd bf16 d=64 layout=bshd/paged(16)", "fwd bf16 d=64 layout=paged(16)"},
      {"fwd bf16 d=64 layout=packed/paged(1) k_lens", "fwd bf16 d=64 layout=packed/paged(1)"},
      {"fwd bf16 d=64 k_lens sink layout=bhsd", "fwd bf16 d=64 layout=bhsd sink k_lens"},
      {"fwd bf16 token_scales d=64 append kv=int8", "fwd bf16 kv=int8 d=64 token_scales append"},
      {"fwd e4m3 d=64 kv=e4m3 out=bf16", "fwd e4m3 d=64"},
      {"fwd e5m2 scales=block(64) d=64 kv=e4m3 out=fp16 max_logit",
       "fwd e5m2 kv=e4m3 out=fp16 d=64 max_logit scales=block(64)"},
      {"fwd bf16 v_in_k heads=16/1 d=576/512 k_lens", "fwd bf16 d=576/512 heads=16/1 k_lens v_in_k"},
      {"fwd bf16 v_in_k heads=16/1 d=576/512 kv=latent656", "fwd bf16 kv=latent656 d=576/512 heads=16/1 v_in_k"},
      {"fwd bf16 v_in_k layout=paged(64) d=512/512 kv=latent584",
       "fwd bf16 kv=latent584 d=512 layout=paged(64) v_in_k"},
      {"fwd bf16 d=64 rope_base=1e4 rope=half(32) append lse=ln",
       "fwd bf16 d=64 lse=ln append rope=half(32) rope_base=10000"},
      {"quantize bf16 rope=half(32) d=64 rotate rope_base=10000 scales=block(64)",
       "quantize bf16 d=64 rotate scales=block(64) rope=half(32) rope_base=10000"},
      {"index e4m3 token_scales mask=\"causal\" out=fp32 select=keys(8) heads=4/1 d=64",
       "index e4m3 d=64 heads=4/1 select=keys(8) mask=\"causal\" token_scales"},
      {"fwd bf16 linear_exp d=64 rotate compute=e4m3", "fwd bf16 compute=e4m3 d=64 linear_exp rotate"},
      {"fwd bf16 rope=half(64) d=64 rotate compute=e4m3", "fwd bf16 compute=e4m3 d=64 rotate rope=half(64)"},
      {"fwd bf16 rope_from=512 d=576/512 rope_base=1e4 v_in_k append rope=interleaved(64)",
       "fwd bf16 d=576/512 v_in_k append rope=interleaved(64) rope_from=512 rope_base=10000"},
      {"fwd bf16 d=64 append rope=half(32) rope_from=0", "fwd bf16 d=64 append rope=half(32)"},
      {"fwd bf16 d=64 rope=interleaved(64) append k_lens b<=8",
       "fwd bf16 d=64 k_lens append rope=interleaved(64) b<=8"},
      {"fwd bf16 d=64 mask=\" causal\n & k > 3 \"", "fwd bf16 d=64 mask=\"causal  & k > 3\""},
  };
  for (const auto& [text, canonical] : rows) EXPECT_EQ(print(read(text)), canonical) << text;
}

// ---- parse(print(s)) == s ----

TEST(Spec, MeaningIsTheSameInOtherWords) {
  const auto meaning_of = [](const std::string& text) {
    const auto spec = parse_spec(text);
    EXPECT_TRUE(spec) << text << ": " << spec.error().message;
    return spec ? meaning(*spec) : text;
  };
  const std::string base = "fwd bf16 d=64 heads=4 ";
  const std::pair<const char*, const char*> same[] = {
      {"", "  bytes=16   layout=bshd align=bottom_right"},
      {"mask=\"causal & window(64, 0)\"", "mask=\" causal&window( 64,0 )\""},
      {"mask=\"causal\"", "mask=\"k <= qpos\""},
      {"score=\"s * 2.0\"", "score=\"(s*(2.0))\""},
      {"dropout=0.1", "dropout=0.1015625"},
      {"score=\"s + t[h]\" params=\"t: fp32[1]\"", "params=\" t:fp32[1]\" score=\"s+t[h]\""},
  };
  for (const auto& [one, other] : same) EXPECT_EQ(meaning_of(base + one), meaning_of(base + other));
  const std::pair<const char*, const char*> different[] = {
      {"mask=\"causal\"", "mask=\"causal\" align=top_left"},
      {"mask=\"k <= q\"", "mask=\"k < q\""},
      {"score=\"s + t[h]\" params=\"t: fp32[1]\"", "score=\"s + t[h]\" params=\"t: bf16[1]\""},
      {"score=\"s + t[h]\" params=\"t: fp32[1]\"", "score=\"s + u[h]\" params=\"u: fp32[1]\""},
      {"score=\"s * 2.0\"", "score=\"s * 2.000001\""},
      {"score=\"bias(t)\"", "score=\"bias_b(t)\""},
      {"", "lse=ln"},
      {"dropout=0.1", "dropout=0.106"},
      {"", "dropout=0.00390625"},
  };
  for (const auto& [one, other] : different) EXPECT_NE(meaning_of(base + one), meaning_of(base + other));
}

TEST(Spec, ParsePrintRoundTrip) {
  constexpr std::uint64_t kSeed = 20261121;
  RandomSpec source{std::mt19937_64(kSeed)};
  for (int i = 0; i < 500; ++i) {
    AttentionSpec spec = source.draw();
    const auto valid = validate(spec);
    const std::string text = print(spec);
    ASSERT_TRUE(valid) << "seed " << kSeed << " spec " << i << ": " << text << "\n" << valid.error().message;
    const auto again = parse_spec(text);
    ASSERT_TRUE(again) << "seed " << kSeed << " spec " << i << ": " << text << "\n" << again.error().message;
    expect_equal(spec, *again, text);
    EXPECT_EQ(print(*again), text);
  }
}

TEST(Spec, RandomBytesNeverCrash) {
  constexpr std::uint64_t kSeed = 7;
  std::mt19937_64 random(kSeed);
  const std::string seed_text =
      "fwd bf16 d=128 heads=32/8 mask=\"causal & window(4096, 0)\" params=\"a: fp32[1]\" b<=64 sink layout=paged(16)";
  for (int i = 0; i < 5000; ++i) {
    std::string text = seed_text;
    for (int edits = 1 + static_cast<int>(random() % 4); edits > 0; --edits) {
      const std::size_t at = random() % text.size();
      switch (random() % 3) {
        case 0: text[at] = static_cast<char>(random()); break;
        case 1: text.erase(at, random() % 8); break;
        default: text.insert(at, 1, text[random() % text.size()]); break;
      }
      if (text.empty()) text = " ";
    }
    if (const auto spec = parse_spec(text)) {
      EXPECT_TRUE(parse_spec(print(*spec))) << "seed " << kSeed << ": " << text;
    } else {
      EXPECT_FALSE(spec.error().message.empty());
      EXPECT_EQ(spec.error().message.find('\n'), std::string::npos);
      EXPECT_EQ(spec.error().kind, ErrorKind::Invalid) << text << spec.error().message;
    }
  }
}

// ---- refusals ----

void expect_refused(std::span<const std::pair<const char*, const char*>> rows) {
  for (const auto& [text, message] : rows) {
    const auto spec = parse_spec(text);
    ASSERT_FALSE(spec) << text;
    EXPECT_EQ(spec.error().kind, ErrorKind::Invalid) << text;
    EXPECT_NE(spec.error().message.find(message), std::string::npos)
        << text << "\n got: " << spec.error().message << "\nwant: " << message;
  }
}

TEST(Spec, RefusalsNameFieldValueAndLimit) {
  const std::pair<const char*, const char*> rows[] = {
      {"", "the operation (fwd, bwd, merge, quantize or index) is missing"},
      {"fwd", "the dtype is missing"},
      {"forward bf16 d=64", "`forward` is none of fwd, bwd"},
      {"fwd b16 d=64", "dtype: `b16` is none of fp16, bf16, fp32, e4m3, e5m2, did you mean `bf16`?"},
      {"fwd i32 d=64", "dtype: `i32` is none of"},
      {"fwd bf16", "d: the head dim is missing"},
      {"fwd bf16 d=0", "d: 0 is below 8"},
      {"fwd bf16 d=264", "d: 264 is above 256, the largest head dim; split the head or use d=256"},
      {"fwd bf16 d=576/512",
       "d: QK dim 576 is above 256, the largest head dim; where V is the first 512 columns of K, "
       "write v_in_k, which has dims up to 576/512"},
      {"fwd bf16 d=584/512 v_in_k", "d: QK dim 584 is above 576, the largest head dim; split the head or use d=576"},
      {"fwd bf16 d=576/520 v_in_k", "d: V dim 520 is above 512"},
      {"fwd bf16 d=64/72 v_in_k",
       "v_in_k: V is the first 72 columns of K, and K has 64; write d=72/64 with the larger"},
      {"fwd bf16 d=64 v_in_k=1", "v_in_k: this is a flag"},
      {"fwd bf16 d=100", "d: 100 is not a multiple of 8; pad with zeros to d=104"},
      {"fwd bf16 d=64/100", "d: V dim 100 is not a multiple of 8"},
      {"fwd bf16 d=64 d=64", "d: the field is given twice"},
      {"fwd bf16 d=64 heads=32/5", "heads: 32 query heads are no multiple of 5 KV heads"},
      {"fwd bf16 d=64 heads=0", "heads: 0 is outside 1..65535"},
      {"fwd bf16 d=64 haeds=8", "there is no field `haeds`, did you mean `heads`? The fields are kv, out,"},
      {"fwd bf16 d=64 colour=red", "there is no field `colour`; the fields are kv, out,"},
      {"fwd bf16 d=64 mask=\"causal", "mask: the quote that opens here is never closed"},
      {"fwd bf16 d=64 mask='causal'", "mask: use double quotes"},
      {"fwd bf16 d=64 mask=\"causal\"sink", "mask: a space must follow the closing quote"},
      {"fwd bf16 d=64 mask=\"\"", "mask: the text is empty"},
      {"fwd bf16 d=64 mask=\"s > 0.0\"", "mask: "},
      {"fwd bf16 d=64 \"causal\"", "a quote must follow a field"},
      {"fwd bf16 d=64 sink=yes", "sink: this is a flag; write sink alone"},
      {"fwd bf16 d=64 lse", "lse: the value is missing; write lse=..."},
      {"fwd bf16 d=64 lse=", "lse: the value is missing"},
      {"fwd bf16 d=64 lse=log10", "lse: `log10` is none of none, ln, log2"},
      {"fwd bf16 d=64 q_len<3", "is not a bound; write `q_len`<=N"},
      {"fwd bf16 d=64 bytes<=3", "bytes: only b, q_len and k_len take `<=`"},
      {"fwd bf16 d=64 bytes=3", "bytes: 3 is none of 16, 8, 4, 2"},
      {"fwd fp32 d=64 bytes=2", "bytes: 2 is below 4, the size of an element"},
      {"fwd bf16 d=64 q_len=0", "q_len: `0` is not a size from 1 to 1073741823"},
      {"fwd bf16 d=64 k_len<=9999999999", "k_len: `9999999999` is not a size from 1 to"},
      {"fwd bf16 d=64 scale=nan", "scale: `nan` is not a finite number"},
      {"fwd bf16 d=64 scale=0", "scale: 0 makes every score equal"},
      {"fwd bf16 d=64 scale=1e300", "scale: 1e+300 is not a finite, non-zero 32-bit number"},
      {"fwd bf16 d=64 dropout=1", "dropout: 1 is outside 0 <= p < 1"},
      {"fwd bf16 d=64 dropout=0.001",
       "dropout: 0.001 is nearest to 0 of 256 weights, steps are of 1/256; use 0.00390625"},
      {"fwd bf16 d=64 layout=paged", "layout: paged needs the tokens per page"},
      {"fwd bf16 d=64 layout=paged(0)", "layout: a page of 0 tokens holds nothing"},
      {"fwd bf16 d=64 params=\"x\"", "params: `x` is not name: type"},
      {"fwd bf16 d=64 params=\"x: fp31\"", "params: `x`: `fp31` is none of fp16, bf16, fp32, i32, i64, u32, u8, did"},
      {"fwd bf16 d=64 params=\"x: fp32[5]\"", "[1] to [4]"},
      {"fwd bf16 d=64 params=\"q: fp32\"", "params: q is a word of the language"},
      {"fwd bf16 d=64 params=\"x: fp32\"", "params: x is declared, but neither mask nor score uses it"},
      {"fwd bf16 d=64 params=\"x: fp32, x: i32\" score=\"s * x\"", "params: x is declared twice"},
      {"fwd bf16 d=64 =3", "there is no field name before `=`"},
  };
  expect_refused(rows);
}

TEST(Spec, NumbersThatAreNotWrittenAsTheFieldHasThem) {
  const std::pair<const char*, const char*> rows[] = {
      {"fwd bf16 d=99999999999999999999",
       "d: `99999999999999999999` is not written as d=128 or d=192/128, in whole numbers up to 576"},
      {"fwd bf16 d=72/40, heads=4", "d: `72/40,` is not written as d=128 or d=192/128, in whole numbers up to 576"},
      {"fwd bf16 d=64 heads=8,2",
       "heads: `8,2` is not written as heads=16 or heads=32/8, in whole numbers up to 65535"},
      {"fwd bf16 d=64 blocks=(64,128)",
       "blocks: `(64,128)` is not written as blocks=128, blocks=64/128 or blocks=64/128/8, in whole numbers up to "
       "65536"},
      {"fwd bf16 d=64 layout=paged(16,)", "is not written as layout=paged(16) or layout=packed/paged(16), in whole"},
      {"fwd e4m3 d=64 scales=block(x)", "is not written as scales=block(128), in whole numbers up to 1024"},
      {"fwd bf16 d=64 append rope=half(8) rope_from=x", "rope_from: `x` is not written as rope_from=512, in whole"},
      {"fwd bf16 d=64 append rope=half(x)", "is not written as rope=half(64) or rope=interleaved(64), in whole"},
      {"fwd bf16 d=64 bytes=x", "bytes: `x` is not written as bytes=16, bytes=8, bytes=4 or bytes=2"},
  };
  expect_refused(rows);
}

// Dtypes that a message offers are those that the field of this operation takes.
TEST(Spec, WordsOfOthersForDtypesAndFields) {
  const std::pair<const char*, const char*> rows[] = {
      {"fwd float32 d=64", "dtype: `float32` is none of fp16, bf16, fp32, e4m3, e5m2, did you mean `fp32`?"},
      {"bwd bfloat16 d=64", "dtype: `bfloat16` is none of fp16, bf16, fp32, did you mean `bf16`?"},
      {"quantize int8 d=64", "dtype: `int8` is none of fp16, bf16, fp32"},
      {"quantize bf16 d=64 out=int8", "out: `int8` is none of e4m3, e5m2, latent656, latent584"},
      {"fwd bf16 d=64 out=float32", "out: `float32` is none of fp16, bf16, fp32, did you mean `fp32`?"},
      {"fwd bf16 d=64 kv=float8_e5m2",
       "kv: `float8_e5m2` is none of bf16, e4m3, e5m2, int8, latent656, latent584, did you mean `e5m2`?"},
      {"fwd bf16 d=64 params=\"n: bool\" mask=\"k<n\"", "u8, did you mean `u8`?"},
      {"fwd bf16 d=64 params=\"n: int8\" mask=\"k<n\"", "use one of fp16, bf16, fp32, i32, i64, u32, u8"},
      {"fwd bf16 d=64 batch=4", "there is no field `batch`, did you mean `b`? The fields are kv, out,"},
      {"fwd bf16 d=64 tokens=5", "there is no field `tokens`, did you mean `q_len` or `k_len`? The fields are"},
      {"fwd bf16 d=64 causal", "there is no field `causal`, did you mean `mask=\"causal\"`? The fields are"},
      {"fwd bf16 d=64 window(9,0)", "did you mean `mask=\"window(l, r)\"`? The fields are"},
      {"fwd bf16 d=64 widnow(9,0)", "did you mean `mask=\"window(l, r)\"`? The fields are"},
      {"fwd bf16 d=64 softcapp(9)", "did you mean `score=\"softcap(c)\"`? The fields are"},
      {"fwd bf16 d=64 softcap=50", "did you mean `score=\"softcap(c)\"`? The fields are"},
  };
  expect_refused(rows);
}

TEST(Spec, ParametersThatADiscardedStageReadsAreToldFromUnusedOnes) {
  constexpr char kDiscarded[] = "params: c is read only by stages of the score";
  const std::pair<const char*, const char*> rows[] = {
      {"fwd bf16 d=64 params=\"c: fp32\" score=\"s * c; 1.5\"", kDiscarded},
      {"fwd bf16 d=64 params=\"c: fp32[1]\" score=\"c[h]; float(k)\"", kDiscarded},
      {"fwd bf16 d=64 params=\"c: fp32\" score=\"softcap(5)\"", "params: c is declared, but neither"},
  };
  expect_refused(rows);
  EXPECT_TRUE(parse_spec("fwd bf16 d=64 params=\"c: fp32\" score=\"s * c; s + 1\""));
}

TEST(Spec, AValueEndsAtTheBlankUnlessItStandsInQuotes) {
  const std::pair<const char*, const char*> rows[] = {
      {"fwd bf16 d=64 mask=causal & window(3, 0)", "mask: the value ends at the blank; one"},
      {"fwd bf16 d=64 mask=window(3, 0)", "stands in double quotes, as in mask=\"...\""},
      {"fwd bf16 d=64 mask=k <= q", "mask: the value ends at the blank; one"},
      {"fwd bf16 d=64 mask=k < q", "mask: the value ends at the blank; one"},
      {"fwd bf16 d=64 score=max(s, q) + 1", "score: the value ends at the blank; one"},
      {"fwd bf16 d=64 params=a:fp32, b:fp32", "params: the value ends at the blank; one"},
      {"fwd bf16 d=64 params=a: fp32", "params: the value ends at the blank; one"},
      {"fwd bf16 d=64 mask=causal haeds=8", "there is no field `haeds`, did you mean `heads`?"},
      {"fwd bf16 d=64 mask=\"causal\" 3=4", "there is no field `3`"},
  };
  expect_refused(rows);
}

TEST(Spec, RefusesBytesAndLengthsThatNoTextHas) {
  const auto nul = parse_spec(std::string_view("fwd bf16\0d=64", 13));
  ASSERT_FALSE(nul);
  EXPECT_NE(nul.error().message.find("byte 0x00 at position 8"), std::string::npos) << nul.error().message;
  const auto huge = parse_spec(std::string(kMaxSpecText + 1, ' '));
  ASSERT_FALSE(huge);
  EXPECT_NE(huge.error().message.find("16385 bytes, the limit is 16384"), std::string::npos) << huge.error().message;
}

TEST(Spec, CaretStandsUnderThePlace) {
  const auto spec = parse_spec("fwd bf16 d=64 colour=red");
  ASSERT_FALSE(spec);
  EXPECT_EQ(spec.error().detail, "fwd bf16 d=64 colour=red\n              ^");
  const auto value = parse_spec("fwd bf16 d=64 lse=log10");
  ASSERT_FALSE(value);
  EXPECT_EQ(value.error().detail, "fwd bf16 d=64 lse=log10\n                  ^");
}

TEST(Spec, ParametersAreNoWordsOfTheLanguage) {
  std::vector<std::string_view> words = {"q", "k",    "b",    "h",     "hk",  "q_len", "k_len",
                                         "s", "qpos", "true", "false", "inf", "nan"};
  for (const Function& function : functions()) words.push_back(function.name);
  for (const NamedRow& row : named_rows()) words.push_back(row.name);
  for (const std::string_view word : words) {
    const std::string param = "params: " + std::string(word) + " is a word of the language";
    const auto spec = parse_spec("fwd bf16 d=64 params=\"" + std::string(word) + ": i32\" mask=\"causal\"");
    ASSERT_FALSE(spec) << word;
    EXPECT_TRUE(spec.error().message.starts_with(param)) << spec.error().message;
    EXPECT_NE(spec.error().message.find("choose another name"), std::string::npos) << spec.error().message;
  }
}

// Operands, dtypes, and the ends of tiles, which no text can name.
TEST(Spec, OtherWordsAreNamesOfParameters) {
  for (const std::string word : {"v", "o", "sink", "lse", "offsets_q", "fp32", "i32", "q_lo", "k_hi", "slope", "Q"}) {
    const auto unknown = parse_spec("fwd bf16 d=64 score=\"s + " + word + "\"");
    ASSERT_FALSE(unknown) << word;
    EXPECT_NE(unknown.error().message.find("unknown name `" + word + "`"), std::string::npos);
    read("fwd bf16 d=64 params=\"" + word + ": fp32\" score=\"s + " + word + "\"");
  }
}

TEST(Spec, APinnedLengthIsPositive) {
  read("fwd bf16 d=64 q_len=4 mask=\"k % q_len == 0\"");
  read("fwd bf16 d=64 k_len=9 score=\"s + q / k_len\"");
  for (const char* fields : {"", " q_len<=4", " layout=packed q_len=4"}) {
    const auto spec = parse_spec("fwd bf16 d=64 mask=\"k % q_len == 0\"" + std::string(fields));
    ASSERT_FALSE(spec) << fields;
    EXPECT_NE(spec.error().message.find("can be 0, and must be positive; write max(q_len, 1)"), std::string::npos);
  }
}

// ---- specs built in C++ ----

TEST(Spec, BuiltInCpp) {
  AttentionSpec s;
  s.d_qk = s.d_v = 64;
  const Param slope{"slope", Dtype::F32, 1};
  s.score = Expr::variable(Variable::S) + Expr::load(slope, {Expr::variable(Variable::H)});
  s.mask = Expr::variable(Variable::K) <= Expr::variable(Variable::Q);
  const auto valid = validate(s);
  ASSERT_TRUE(valid) << valid.error().message;
  ASSERT_EQ(s.params.size(), 1u);
  EXPECT_EQ(s.params[0], slope);
  const auto again = parse_spec(print(s));
  ASSERT_TRUE(again) << print(s) << again.error().message;
  EXPECT_TRUE(same(again->score, s.score));
  ASSERT_TRUE(validate(s)) << "validate is idempotent";

  s.mask_text = "causal";
  const auto conflict = validate(s);
  ASSERT_FALSE(conflict);
  EXPECT_NE(conflict.error().message.find("mask_text disagree"), std::string::npos) << conflict.error().message;

  AttentionSpec hostile;
  hostile.d_qk = hostile.d_v = 64;
  hostile.mask_text = "causal\" sink scale=\"3";
  const auto refused = validate(hostile);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("without double quotes"), std::string::npos);
}

TEST(Spec, NotYetSupportedNamesTheField) {
  const std::pair<const char*, const char*> rows[] = {
      {"bwd e4m3 d=64", "dtype: e4m3"},
      {"merge e5m2 d=64", "dtype: e5m2"},
      {"quantize e4m3 d=64", "dtype: e4m3 has 8 bits already"},
      {"fwd e4m3 kv=int8 d=64", "kv: int8 under a Q of e4m3"},
      {"fwd e4m3 kv=bf16 d=64", "kv: bf16 under a Q of e4m3"},
      {"fwd e4m3 d=64 append", "append: new rows"},
      {"fwd e4m3 d=64 dropout=0.1", "dropout: 0.1 of a spec with a dtype of 8 bits"},
      {"fwd bf16 d=64 compute=e4m3 dropout=0.1", "dropout: 0.1 of a spec with compute"},
      {"fwd bf16 kv=fp16 d=64", "kv: fp16"},
      {"fwd bf16 out=e5m2 d=64", "out: e5m2"},
      {"bwd bf16 out=fp32/bf16/e4m3 d=64", "out: e4m3"},
      {"fwd bf16 d=64 layout=paged(16) dropout=0.1", "dropout: 0.1 of a spec with layout=paged"},
      {"fwd bf16 d=64 append dropout=0.1", "dropout: 0.1 of a spec with append"},
      {"fwd bf16 d=64 v_in_k dropout=0.1", "dropout: 0.1 of a spec with v_in_k"},
      {"fwd bf16 kv=e4m3 d=64 dropout=0.1", "dropout: 0.1 of a spec with kv"},
  };
  for (const auto& [text, message] : rows) {
    const auto supported = check_supported(read(text));
    ASSERT_FALSE(supported) << text;
    EXPECT_EQ(supported.error().kind, ErrorKind::Unsupported);
    EXPECT_NE(supported.error().message.find(message), std::string::npos) << supported.error().message;
  }
  EXPECT_TRUE(check_supported(read("fwd fp32 d=64 out=bf16")));
  for (const char* kv : {"e4m3", "e5m2", "int8"})
    EXPECT_TRUE(check_supported(read(std::string("fwd bf16 d=64 kv=") + kv))) << kv;
  for (const char* text : {"fwd e4m3 d=64", "fwd e5m2 kv=e4m3 d=64 scales=block(128)", "fwd e4m3 d=64 layout=packed"})
    EXPECT_TRUE(check_supported(read(text))) << text;
}

}  // namespace
}  // namespace flashjit

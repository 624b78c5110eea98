#include "codegen/cuda/expr.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "codegen/cuda/emit.h"
#include "compiler/analysis/interval.h"
#include "compiler/language/gradient.h"
#include "compiler/plan.h"

namespace flashjit {
namespace {

std::string body_of(std::string_view text, bool wide = false, bool symbolic = false) {
  std::vector<Param> params = {
      {"n", Dtype::I32, 0}, {"cap", Dtype::F32, 0}, {"lens", Dtype::I32, 1}, {"far", Dtype::I64, 0}};
  Result<Expr> expr = parse_expr(text, {&params, true, false});
  if (!expr) expr = parse_expr(text, {&params, true, true});
  EXPECT_TRUE(expr) << text << ": " << (expr ? "" : expr.error().message);
  return expr ? cuda_function_body(*expr, {&params, wide, symbolic}) : "";
}

TEST(CudaExpr, Bodies) {
  static const char* const kRows[][2] = {
      {"causal", "  return k <= q + k_len - q_len;\n"},
      {"window(1024, 0)",
       "  const int qpos = q + k_len - q_len;\n"
       "  return k >= qpos - 1024 && k <= qpos;\n"},
      {"k < 4 | window(1024, 0)",
       "  const int qpos = q + k_len - q_len;\n"
       "  return k < 4 || (k >= qpos - 1024 && k <= qpos);\n"},
      {"chunk(64)",
       "  const int block_begin = floor_div(q + k_len - q_len, 64) * 64;\n"
       "  return k >= block_begin && k < block_begin + 64;\n"},
      // No helper where the numerator cannot be negative.
      {"k / 64 == q / 64", "  return k / 64 == q / 64;\n"},
      {"(q - k) % 128 == 0", "  return floor_mod(q - k, 128) == 0;\n"},
      {"document(ids)", "  return load_i32(params, 4, b, max_i(q + k_len - q_len, 0)) == load_i32(params, 4, b, k);\n"},
      {"tree(words)",
       "  const int clamped = max_i(k + q_len - k_len, 0);\n"
       "  return k < k_len - q_len || bit_(load_i64(params, 4, b, q, clamped / 64), clamped % 64);\n"},
      {"!(bit(n, 3) | h < 2) & k < lens[b]",
       "  return !(bit_(scalar_i32(params, 0), 3) || h < 2) && k < load_i32(params, 2, b);\n"},
      {"true", "  return true;\n"},
      {"softcap(50)", "  return 50.0f * tanh_(s * 0.02f);\n"},
      {"alibi", "  return s + load_f32(params, 4, h) * to_float(k + q_len - q - k_len);\n"},
      {"bias(x, fp16)", "  return s + load_f16(params, 4, h, q, k);\n"},
      {"where(h < 4, s * cap, -inf)", "  return h < 4 ? s * scalar_f32(params, 1) : -kInfinity;\n"},
      {"where(h < 4, s, s * 2) + 1e-20", "  return (h < 4 ? s : s * 2.0f) + 1e-20f;\n"},
      {"s - (s - nan)", "  return s - (s - __uint_as_float(0x7fc00000u));\n"},
      {"-s * -2", "  return -s * -2.0f;\n"},
      {"min(s, exp(s)) / max(abs(s), sigmoid(s) + sqrt(log(s)))",
       "  return min_f(s, exp_(s)) / max_f(abs_f(s), sigmoid_(s) + sqrt_(log_(s)));\n"},
  };
  for (const auto& [text, expected] : kRows) EXPECT_EQ(body_of(text), expected) << text;
}

// What is made of s and k may be of any type there; what is read is a number.
TEST(CudaExpr, SymbolicNumbers) {
  static const char* const kRows[][2] = {
      {"softcap(50)", "  return 50.0f * math.tanh_(s * 0.02f);\n"},
      {"s * (s + q / 8.0) + exp(s + q / 8.0)",
       "  const auto x = s + to_float(q) / 8.0f;\n"
       "  return s * x + exp_(x);\n"},
      {"where(abs(k - q) < 8, s, s - abs(k - q) * 0.5)",
       "  const auto distance = abs_i(k - q);\n"
       "  return distance < 8 ? s : s - to_float(distance) * 0.5f;\n"},
      {"where(cap * (q + 3.5) > s, cap * (q + 3.5), s)",
       "  const float x = scalar_f32(params, 1) * (to_float(q) + 3.5f);\n"
       "  return s < x ? x : s;\n"},
      {"lens[k] * q - lens[k]",
       "  const int element = load_i32(params, 2, k);\n  return to_float(element * q - element);\n"},
  };
  for (const auto& [text, expected] : kRows) EXPECT_EQ(body_of(text, false, true), expected) << text;
}

// What they share is one line.
TEST(CudaExpr, ScoresWithTheirSlopes) {
  static const char* const kRows[][2] = {
      {"s", "  return {s, 1.0f};\n"},
      {"alibi", "  return {s + load_f32(params, 1, h) * to_float(k + q_len - q - k_len), 1.0f};\n"},
      {"softcap(50)",
       "  const float squashed = tanh_(s * 0.02f);\n"
       "  return {50.0f * squashed, 1.0f - squashed * squashed};\n"},
      {"where(s < 5000, s * cap * (s + 1.5) * (s - 2.5), cap * (s + 3.5) * s)",
       "  const float scalar = scalar_f32(params, 0);\n"
       "  const float x = s * scalar * (s + 1.5f);\n"
       "  const float x_2 = scalar * (s + 3.5f);\n"
       "  return {s < 5000.0f ? x * (s - 2.5f) : x_2 * s,\n"
       "          s < 5000.0f ? (s - 2.5f) * ((s + 1.5f) * scalar + s * scalar) + x : s * scalar + x_2};\n"},
      {"exp(s * cap)",
       "  const float scalar = scalar_f32(params, 0);\n"
       "  const float power = exp_(s * scalar);\n"
       "  return {power, power * scalar};\n"},
      {"where(k <= q, s * sigmoid(s), -inf)",
       "  const float squashed = sigmoid_(s);\n"
       "  return {k <= q ? s * squashed : -kInfinity, k <= q ? squashed + s * (squashed * (1.0f - squashed)) : 0.0f};\n"},
  };
  for (const auto& [text, expected] : kRows) {
    std::vector<Param> params = {{"cap", Dtype::F32, 0}};
    const Result<Expr> score = parse_expr(text, {&params, true, true});
    ASSERT_TRUE(score) << text;
    const Result<ScoreGradients> gradients = gradients_of(*score, {}, {});
    ASSERT_TRUE(gradients) << text;
    EXPECT_EQ(cuda_function_body({gradients->score, gradients->by_s}, {&params}), expected) << text;
  }
}

std::string variant_of(std::string_view text, std::string_view target) {
  const auto plan = make_plan(*parse_spec(text), **find_target(target), {});
  EXPECT_TRUE(plan) << text;
  const Result<KernelSource> source = emit_cuda(*plan);
  EXPECT_TRUE(source) << text;
  return source->generated.at(1).text;
}

// Of kernels that go backward alone.
TEST(CudaExpr, VariantsHaveSlopes) {
  const auto variant = [](std::string_view text) { return variant_of(text, "sm_80"); };
  EXPECT_EQ(variant("fwd bf16 d=64 score=\"softcap(50)\"").find("slope"), std::string::npos);
  const std::string softcap = variant("bwd bf16 d=64 score=\"softcap(50)\"");
  EXPECT_NE(softcap.find(R"(
  template <class Params>
  __device__ static ScoreAndSlope score_and_slope(const Params& params, const Sequence& seq, float s, int q, int k) {
    const float squashed = tanh_(s * 0.02f);
    return {50.0f * squashed, 1.0f - squashed * squashed};
  }
)"),
            std::string::npos)
      << softcap;
  const std::string wide = variant("bwd bf16 d=64 params=\"n: i64\" score=\"where(k < n, s, h * s)\"");
  EXPECT_NE(wide.find("float s, Int64 q, Int64 k) {\n    const Int64 h = seq.h;\n"), std::string::npos) << wide;
}

// What a producer copies, and the gradients of that.
TEST(CudaExpr, VariantsOfBackwardKnowTheirInputs) {
  const std::string text = variant_of(
      "bwd bf16 d=64 params=\"t: bf16[3], w: fp32[1]\" "
      "score=\"s + t[h, q, k] + w[h]\" grads=\"w, t\"",
      "sm_90a");
  for (const char* line :
       {"kLoadsByPosition = false;", "constexpr bool values[] = {true, false};", "visit(Parameter<0>(), h, 0);",
        "input_element(Parameter<0>, const KernelParams& params, const Sequence& seq, int q, int k)",
        "static_cast<Int64>(k) * params.extra[0].stride[2];"})
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
}

// What another tensor holds may lead anywhere.
TEST(CudaExpr, IndicesThatAreLookedUpAreCut) {
  const std::string forward =
      variant_of("fwd bf16 d=64 params=\"t: fp32[2], a: i64[2], e: i32[1]\" score=\"s + t[h, a[b, e[k]]]\"", "sm_90a");
  for (const char* text : {"inside(params, 1, 1, load_i32(params, 2, k))", "Number s, int q, Key k"})
    EXPECT_NE(forward.find(text), std::string::npos) << text << "\n" << forward;
  EXPECT_NE(forward.find("load_f32(params, 0, h, inside(params, 0, 1, "), std::string::npos) << forward;
  EXPECT_EQ(forward.find("Int64 k"), std::string::npos) << "an index takes 64 bits as they are\n" << forward;
  const std::string backward =
      variant_of("bwd bf16 d=64 params=\"t: fp32[2], a: i32[1]\" score=\"s + t[a[q], k]\" grads=\"t\"", "sm_80");
  for (const char* text :
       {"static_cast<Int64>(inside(params, 0, 0, load_i32(params, 1, q))) * params.d_extra[0].stride[2]",
        "load_f32(params, 0, inside(params, 0, 0, load_i32(params, 1, q)), k)"})
    EXPECT_NE(backward.find(text), std::string::npos) << text << "\n" << backward;
  EXPECT_EQ(backward.find("prefetch_element"), std::string::npos) << backward;
}

TEST(CudaExpr, InputsAndTheirOuterIndices) {
  std::vector<Param> params = {{"a", Dtype::BF16, 3}, {"b", Dtype::F32, 4}, {"c", Dtype::I32, 1}};
  const auto q = Expr::variable(Variable::Q), k = Expr::variable(Variable::K), h = Expr::variable(Variable::H),
             b = Expr::variable(Variable::B);
  const std::vector<Expr> inputs = {Expr::load(params[1], {b % Expr::integer(64), q, h, k}),
                                    Expr::load(params[0], {h, q, k}), Expr::load(params[2], {k})};
  EXPECT_EQ(cuda_visit_inputs(inputs, {&params}),
            "  visit(Parameter<1>(), b % 64, h);\n"
            "  visit(Parameter<0>(), h, 0);\n"
            "  visit(Parameter<2>(), 0, 0);\n");
  EXPECT_EQ(cuda_visit_inputs({inputs[1]}, {&params, true}), "  visit(Parameter<0>(), static_cast<int>(h), 0);\n");
}

// With 64-bit ints nothing may be computed from 32-bit operands alone.
TEST(CudaExpr, WideInts) {
  static const char* const kRows[][2] = {
      {"n * n < k", "  const Int64 scalar = Int64{scalar_i32(params, 0)};\n  return k > scalar * scalar;\n"},
      {"lens[b] * 3 < k", "  return k > Int64{load_i32(params, 2, b)} * 3LL;\n"},
      {"k < 5000000000", "  return k < 5000000000LL;\n"},
      {"k > -9223372036854775808", "  return k > (-9223372036854775807LL - 1);\n"},
      {"far % 64 == k", "  return floor_mod(scalar_i64(params, 3), 64LL) == k;\n"},
  };
  for (const auto& [text, expected] : kRows) EXPECT_EQ(body_of(text, true), expected) << text;
}

// Names of parameters are the user's; generated code refers to them by number.
TEST(CudaExpr, NoTextOfTheUser) {
  std::vector<Param> params = {{"__syncthreads", Dtype::F32, 0}, {"asm", Dtype::I32, 2}};
  const Result<Expr> expr = parse_expr("where(asm[b, q] < k, s * __syncthreads, s)", {&params, true, true});
  ASSERT_TRUE(expr);
  const std::string body = cuda_function_body(*expr, {&params, false});
  EXPECT_EQ(body, "  return k > load_i32(params, 1, b, q) ? s * scalar_f32(params, 0) : s;\n");
}

TEST(CudaExpr, LongExpressionsAreBroken) {
  std::string text = "causal";
  for (int i = 0; i < 12; ++i) {
    text +=
        " & (k + " + std::to_string(i) + ") * (q + " + std::to_string(i) + ") % 7 != max(h, " + std::to_string(i) + ")";
  }
  const std::string body = body_of(text);
  std::size_t longest = 0, begin = 0;
  for (std::size_t end = body.find('\n'); end != std::string::npos; begin = end + 1, end = body.find('\n', begin)) {
    longest = std::max(longest, end - begin);
  }
  EXPECT_LE(longest, 120u) << body;
  EXPECT_NE(body.find("\n      && "), std::string::npos) << body;
}

}  // namespace
}  // namespace flashjit

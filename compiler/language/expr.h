// The language of masks and scores consists of typed, immutable expression DAGs.
// The types are bool, int (64-bit in the host evaluator; printers use 32 bits where the interval analysis proves them
// enough) and float (32-bit). `/` and `%` on ints are floor division and its remainder, and the divisor must be
// provably positive. Where an int meets a float it is converted to float. There is no implicit conversion to or from
// bool.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/spec/dtype.h"
#include "compiler/result.h"
#include "templates/kernel_config.h"

namespace flashjit {

enum class Type { Bool, Int, Float };

enum class Op {
  // Leaves.
  BoolConst,
  IntConst,
  FloatConst,
  Variable,
  Scalar,
  Load,  // A tensor parameter, indexed by the int arguments.
  // Arithmetic: both arguments have the node's type, Int or Float.
  Add,
  Sub,
  Mul,
  Div,
  Mod,
  Neg,
  Min,
  Max,
  Abs,
  // Comparisons of Int or Float give Bool; > and >= are built by swapping.
  Lt,
  Le,
  Eq,
  Ne,
  // Logic.
  And,
  Or,
  Not,
  Where,    // where(bool, a, b)
  ToFloat,  // int -> float
  Exp,
  Log,
  Sqrt,
  Tanh,
  Sigmoid,
  Bit,  // bit(x, i): bit i (0..63) of the int x, as bool
};

enum class Variable {
  Q,
  K,  // position in its sequence, from 0
  B,
  H,
  Hk,  // batch index, query head, KV head
  QLen,
  KLen,  // lengths of this sequence
  S,     // The score, a float already multiplied by the scale. Only scores have it.
  // Only derived expressions have these: the first and last (inclusive) position of a tile.
  QLo,
  QHi,
  KLo,
  KHi,
};
std::string_view name(Variable variable);  // For example "q", "hk", "q_len" or "q_lo".

// The numbers that a tensor typically holds. Data that is drawn for measuring depends on it, and no code does.
enum class Contents {
  Plain,      // Any numbers.
  Documents,  // The number of its document for each position, along the last dimension.
  Tree,       // [.., node, word of 64 bits]: for each node of a tree the set of its ancestors and itself.
  Slopes,     // The slopes of ALiBi, one for each head: 2^(-8 (h + 1) / heads).
};

// A run-time parameter of a mask or score: rank 0 is a scalar, otherwise an indexed tensor.
struct Param {
  std::string name;
  Dtype dtype = Dtype::F32;
  int rank = 0;  // 0..4
  Contents contents = Contents::Plain;
  // Equal parameters are the same tensor, whatever is known of its contents.
  bool operator==(const Param& other) const { return name == other.name && dtype == other.dtype && rank == other.rank; }
};
inline constexpr int kMaxParamRank = 4;

class Expr;
struct Node;

class Expr {
 public:
  Expr() = default;  // It is empty where there is no mask or no score.
  explicit Expr(std::shared_ptr<const Node> node) : node_(std::move(node)) {}
  static Expr boolean(bool value);
  static Expr integer(std::int64_t value);
  static Expr real(double value);
  static Expr variable(Variable variable);
  static Expr scalar(const Param& param);
  static Expr load(const Param& param, std::vector<Expr> index);
  // Builds and type-checks any other node. An int is converted to float where the other argument is a float.
  static Result<Expr> make(Op op, std::vector<Expr> args);

  explicit operator bool() const { return node_ != nullptr; }
  const Node& operator*() const { return *node_; }
  const Node* operator->() const { return node_.get(); }
  const Node* get() const { return node_.get(); }

 private:
  std::shared_ptr<const Node> node_;
};

struct Node {
  Op op = Op::BoolConst;
  Type type = Type::Bool;
  std::int64_t integer = 0;  // IntConst; BoolConst (0 or 1)
  double real = 0;           // FloatConst
  Variable variable = Variable::Q;
  Param param;  // Scalar, Load
  std::vector<Expr> args;
  // The size of the expression written out as a tree. make() refuses more than kMaxTreeDepth and kMaxTreeNodes, so code
  // that walks an expression may recurse, and may visit a shared node once for each use.
  int depth = 1;
  int tree_nodes = 1;
  // The operations and variables that occur in the expression, as bits, because each step of an analysis calls uses().
  std::uint32_t variables = 0, ops = 0;
  // It is equal for equal expressions, so that most unequal ones need not be walked through.
  std::size_t hash = 0;
};
inline constexpr int kMaxTreeDepth = 1024;
inline constexpr int kMaxTreeNodes = 1 << 15;

// C++ operators build expressions. After a type error the result is an empty Expr, and so is everything built on it.
Expr operator+(const Expr&, const Expr&);
Expr operator-(const Expr&, const Expr&);
Expr operator*(const Expr&, const Expr&);
Expr operator/(const Expr&, const Expr&);
Expr operator%(const Expr&, const Expr&);
Expr operator-(const Expr&);
Expr operator<(const Expr&, const Expr&);
Expr operator<=(const Expr&, const Expr&);
Expr operator>(const Expr&, const Expr&);
Expr operator>=(const Expr&, const Expr&);
Expr operator==(const Expr&, const Expr&);
Expr operator!=(const Expr&, const Expr&);
Expr operator&(const Expr&, const Expr&);
Expr operator|(const Expr&, const Expr&);
Expr operator~(const Expr&);  // It means "not", because ! asks whether an Expr is empty.
Expr where(const Expr& condition, const Expr& yes, const Expr& no);
Expr min(const Expr&, const Expr&);
Expr max(const Expr&, const Expr&);
Expr call(Op op, const Expr& argument);  // Abs Exp Log Sqrt Tanh Sigmoid ToFloat

bool same(const Expr& a, const Expr& b);   // Structural equality.
std::size_t node_count(const Expr& expr);  // It counts the nodes of the DAG, shared ones once.
// Returns true if the operations show that the score is a number, not NaN, where `s` is 0.
bool is_number_at_zero(const Expr& score);
std::size_t function_count(const Expr& expr);  // It counts exp, log, tanh and sigmoid.
bool uses(const Expr& expr, Variable variable);
bool uses(const Expr& expr, Op op);
// Returns true if the index of a Load itself reads a tensor, so that it is known only when there are values. On
// processors a call looks through the values and refuses indices outside. Kernels on GPUs, and evaluate(), clamp such
// an index to the tensor.
bool is_looked_up(const Expr& index);
std::vector<Param> params_of(const Expr& expr);  // Each is listed once, in order of first use.

// The limits of the language. Text beyond them is refused with the limit in the message.
inline constexpr std::size_t kMaxExprText = 4096;  // Bytes.
inline constexpr int kMaxExprDepth = 64;           // Levels of nesting.
inline constexpr std::size_t kMaxExprNodes = 512;  // Nodes of the DAG after expansion of named rows.
// Kernels are unrolled over the scores of a thread, so each function is long code 32 to 192 times. With ten log NVRTC
// takes 10 s.
inline constexpr std::size_t kMaxFunctions = 16;

// The input of parse_expr. `params` are the declared run-time parameters. With `bottom_right`, named rows and the
// derived name `qpos` line queries up with keys by qpos = q + k_len - q_len, otherwise by qpos = q. Named rows
// (compiler/language/named.h) may declare further parameters, which are appended to `params`. An error has kind
// Invalid, a one-line message, and as detail the text with a caret under the error.
struct ParseContext {
  std::vector<Param>* params = nullptr;
  bool bottom_right = true;
  // A score has the variable s and a float result; a mask has no s and a bool result.
  bool score = false;
};
Result<Expr> parse_expr(std::string_view text, const ParseContext& context);

// Prints with the fewest parentheses. parse_expr(print(e)) gives e again, unless the text is beyond the limits, because
// it writes out shared nodes and the stages of a score.
std::string print(const Expr& expr);

// Folds constants, applies identities (x & true, x + 0, where(true, a, b), !!x ...), and shares common sub-expressions.
// The value stays the same for every input, and floats are folded in 32 bits as the device computes them.
Expr simplify(const Expr& expr);

// Evaluation on the host, one element at a time, is slow and plain.
struct ParamValue {            // The value of a run-time parameter.
  const void* data = nullptr;  // With rank 0 it points to the value.
  std::int64_t shape[kMaxParamRank] = {};
  std::int64_t stride[kMaxParamRank] = {};  // Strides count elements.
};
struct Environment {
  std::int64_t variables[12] = {};  // The index is a Variable; S is not among them.
  float s = 0;
  const std::vector<Param>* params = nullptr;
  const ParamValue* values = nullptr;  // It is parallel to *params.
};
struct Value {
  Type type = Type::Bool;
  std::int64_t integer = 0;  // It holds Int and Bool.
  float real = 0;
};
Value evaluate(const Expr& expr, const Environment& environment);

}  // namespace flashjit

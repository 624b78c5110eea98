// Emits the facts that gradients need of each query, and the code that stores gradients.
#include <numbers>

#include "codegen/host/emit/backward.h"
#include "codegen/host/emit/math.h"
#include "codegen/host/emit/pack.h"
#include "codegen/host/emit/softmax.h"

namespace flashjit::host {
namespace {

class QueryPacker {
 public:
  QueryPacker(Ir& ir, const Plan& plan) : ir_(ir), b_(ir.b), c_(ir.config), plan_(plan) {}

  void emit() {
    llvm::Function* function = ir_.function(kPackQueriesName, {ir_.ptr}, true);
    call_ = function->getArg(0);
    Value* rows = ir_.member(call_, offsetof(QueryPackCall, rows), ir_.i64, "rows");
    Value* padded =
        b_.CreateMul(b_.CreateSDiv(b_.CreateAdd(rows, ir_.integer(c_.row_block - 1)), ir_.integer(c_.row_block)),
                     ir_.integer(c_.row_block));
    Value *q = pointer(offsetof(QueryPackCall, q)), *d_o = pointer(offsetof(QueryPackCall, d_o));
    Value* q_rows = pointer(offsetof(QueryPackCall, q_rows));
    Value* do_rows = pointer(offsetof(QueryPackCall, do_rows));
    ir_.loop(ir_.integer(0), padded, 1, "row", [&](Value* row) {
      copy_row(ir_.row(q, row), ir_.word(q_rows, b_.CreateMul(row, ir_.integer(c_.q_stride()))), c_.words_qk, c_.d_qk);
      copy_row(ir_.row(d_o, row), ir_.word(do_rows, b_.CreateMul(row, ir_.integer(c_.do_stride()))), c_.words_v,
               c_.d_v);
      emit_facts(row, rows);
    });
    // A query with an infinity or NaN has them in all of its visible scores, and passes them to the gradients of
    // visible keys. Times the 0 of a hidden key they would reach that key's gradients as well, so zeros stand for them
    // here.
    transpose_rows(q, pointer(offsetof(QueryPackCall, q_transposed)), padded, c_.d_qk, true);
    transpose_rows(d_o, pointer(offsetof(QueryPackCall, do_transposed)), padded, c_.d_v, false);
    ir_.finish();
  }

 private:
  Value* pointer(std::size_t offset) { return ir_.member(call_, offset, ir_.ptr, "pointer"); }

  // The last vector may run into the padding between rows, which nothing reads.
  void copy_row(Value* from, Value* to, int words, int d) {
    for (int first = 0; first < words; first += c_.lanes)
      ir_.store(load_words(ir_, from, first, d), ir_.word(to, first));
  }

  // Rows behind the last one only fill up blocks. They get the facts of rows that see no key.
  void emit_facts(Value* row, Value* rows) {
    Value* exists = b_.CreateICmpSLT(row, rows);
    Value* at = b_.CreateSelect(exists, row, ir_.integer(0));
    auto given = [&](std::size_t offset) { return ir_.load(ir_.f32, ir_.word(pointer(offset), at)); };
    Value* lse = emit_lse_fact(ir_, plan_, given(offsetof(QueryPackCall, lse)));
    lse = b_.CreateSelect(exists, lse, Ir::real(ir_.f32, kInfinity));
    ir_.store(lse, ir_.word(pointer(offsetof(QueryPackCall, lse_facts)), row));
    Value* delta = emit_delta(row);
    if (plan_.spec.dlse) {
      Value* of_lse = b_.CreateFMul(given(offsetof(QueryPackCall, d_lse)), Ir::real(ir_.f32, 1 / natural_lse(plan_)));
      delta = b_.CreateFSub(delta, of_lse);
    }
    ir_.store(delta, ir_.word(pointer(offsetof(QueryPackCall, delta)), row));
  }

  // Returns the sum of dO O.
  Value* emit_delta(Value* row) {
    llvm::Type* element = element_type(ir_);
    Value* o = ir_.row(pointer(offsetof(QueryPackCall, o)), row);
    Value* d_o = ir_.row(pointer(offsetof(QueryPackCall, d_o)), row);
    Value* sum = Ir::real(ir_.f32v, 0);
    for (int first = 0; first < c_.d_v; first += c_.lanes) {
      auto values = [&](Value* of) {
        Value* raw = load_elements(ir_, element, b_.CreateConstGEP1_64(element, of, first), c_.lanes, c_.d_v - first);
        return widen(ir_, raw, c_.dtype);
      };
      sum = ir_.fma(values(d_o), values(o), sum);
    }
    return sum_lanes(ir_, sum);
  }

  // Turns rows into columns, with queries in words. With `finite`, zeros replace values that are not finite.
  void transpose_rows(Value* sources, Value* target, Value* padded, int d, bool finite) {
    std::vector<Value*> found(static_cast<std::size_t>(c_.pack), llvm::Constant::getNullValue(ir_.vector_of(ir_.i1)));
    Value* words = b_.CreateSDiv(padded, ir_.integer(c_.pack));
    ir_.loop(ir_.integer(0), words, c_.lanes, "word", [&](Value* first) {
      for (int column = 0; column < d; column += c_.lanes) {
        std::vector<Value*> square;
        for (int lane = 0; lane < c_.lanes; ++lane) {
          Value* row = b_.CreateMul(b_.CreateAdd(first, ir_.integer(lane)), ir_.integer(c_.pack));
          std::vector<Value*> rows;
          for (int i = 0; i < c_.pack; ++i) rows.push_back(ir_.row(sources, b_.CreateAdd(row, ir_.integer(i))));
          square.push_back(load_pairs(ir_, rows, column, d, finite ? &found : nullptr));
        }
        transpose(ir_, square);
        Value* to = ir_.word(target, first);
        for (int lane = 0; lane < c_.lanes && column + lane < d; ++lane)
          ir_.store(square[static_cast<std::size_t>(lane)], ir_.word(to, std::int64_t{column + lane} * c_.tile_words));
      }
    });
  }

  Ir& ir_;
  llvm::IRBuilder<>& b_;
  const BackwardConfig c_;
  const Plan& plan_;
  Value* call_ = nullptr;
};

// Returns the share of existing gradients, to which calls add with accumulate, or null if gradients are written.
Value* share_of_earlier(Ir& ir, const Plan& plan) { return plan.spec.accumulate ? Ir::real(ir.f32, 1) : nullptr; }

// Returns the sums of some columns for each of as many keys, which lie the other way round.
std::vector<Value*> rows_of_sums(Ir& ir, const BackwardConfig& c, Value* sums, int column, Value* key) {
  std::vector<Value*> square;
  for (int lane = 0; lane < c.lanes; ++lane) {
    Value* row = ir.word(sums, std::int64_t{column + lane} * c.gradient_stride());
    square.push_back(ir.load(ir.i32v, ir.word(row, key)));
  }
  transpose(ir, square);
  for (Value*& row : square) row = ir.b.CreateBitCast(row, ir.f32v);
  return square;
}

// With v_in_k dK gets its scale, and dV is added to its first columns.
void add_values(Ir& ir, const BackwardConfig& c, double scale, Value* sums_of_values, int column, Value* key,
                std::vector<Value*>& square) {
  for (Value*& row : square) row = ir.b.CreateFMul(row, Ir::real(ir.f32v, scale));
  if (column >= c.d_v) return;
  const std::vector<Value*> values = rows_of_sums(ir, c, sums_of_values, column, key);
  std::vector<llvm::Constant*> is_value;
  for (int lane = 0; lane < c.lanes; ++lane) is_value.push_back(ir.b.getInt1(column + lane < c.d_v));
  llvm::Constant* const mask = llvm::ConstantVector::get(is_value);
  for (std::size_t i = 0; i < square.size(); ++i)
    square[i] = ir.b.CreateSelect(mask, ir.b.CreateFAdd(square[i], values[i]), square[i]);
}

}  // namespace

double natural_lse(const Plan& plan) { return plan.spec.lse == Lse::log2 ? std::numbers::ln2 : 1.0; }

Value* emit_lse_fact(Ir& ir, const Plan& plan, Value* lse) {
  // In floats ln2 log2(e) is not 1.
  const double unit = plan.spec.lse == Lse::log2 && logit_unit(plan) != 1 ? 1.0 : natural_lse(plan) * logit_unit(plan);
  Value* sees = ir.b.CreateFCmpUNE(lse, Ir::real(ir.f32, -kInfinity));
  return ir.b.CreateSelect(sees, ir.b.CreateFMul(lse, Ir::real(ir.f32, unit)), Ir::real(ir.f32, kInfinity));
}

void emit_pack_queries(Ir& ir, const Plan& plan) { QueryPacker(ir, plan).emit(); }

void emit_store_keys(Ir& ir, const Plan& plan) {
  auto& b = ir.b;
  const BackwardConfig c(ir.config);
  llvm::Function* function = ir.function(kStoreKeysName, {ir.ptr}, true);
  Value* call = function->getArg(0);
  Value* scratch = ir.member(call, offsetof(KeyStoreCall, scratch), ir.ptr, "scratch");
  Value* keys = ir.member(call, offsetof(KeyStoreCall, keys), ir.i64, "keys");
  Value* unused = ir.byte_offset(scratch, c.unused_row_at());
  // Shares of queries with lists are added up later, and continue from earlier gradients then.
  const bool is_share = selects(plan.spec);
  Value* earlier = is_share ? nullptr : share_of_earlier(ir, plan);
  const bool once = plan.spec.v_in_k && !is_share;
  const double scale = plan.spec.effective_scale();
  auto store = [&](std::size_t at, std::size_t token_at, Dtype dtype, std::int64_t sums_at, int d, double factor) {
    llvm::Type* element = element_type(ir, dtype);
    Value* base = ir.member(call, at, ir.ptr, "gradient");
    Value* token = ir.member(call, token_at, ir.i64, "token");
    ir.loop(ir.integer(0), keys, c.lanes, "key", [&](Value* key) {
      for (int column = 0; column < d; column += c.lanes) {
        std::vector<Value*> square = rows_of_sums(ir, c, ir.byte_offset(scratch, sums_at), column, key);
        if (once) add_values(ir, c, scale, ir.byte_offset(scratch, c.dv_at()), column, key, square);
        for (int lane = 0; lane < c.lanes; ++lane) {
          Value* number = b.CreateAdd(key, ir.integer(lane));
          Value* target = b.CreateGEP(element, base, b.CreateMul(number, token));
          target =
              b.CreateGEP(element, b.CreateSelect(b.CreateICmpSLT(number, keys), target, unused), ir.integer(column));
          Value* values = square[static_cast<std::size_t>(lane)];
          emit_store_row(
              ir, target, dtype, std::min(c.lanes, d - column), Ir::real(ir.f32, factor), [&](int) { return values; },
              earlier);
        }
      }
    });
  };
  store(offsetof(KeyStoreCall, dk), offsetof(KeyStoreCall, dk_token), is_share ? Dtype::F32 : plan.spec.out_dk,
        c.dk_at(), c.d_qk, once ? 1 : scale);
  if (!once)
    store(offsetof(KeyStoreCall, dv), offsetof(KeyStoreCall, dv_token), is_share ? Dtype::F32 : plan.spec.out_dv,
          c.dv_at(), c.d_v, dropout_factor(c.dropped));
  ir.finish();
}

void emit_store_queries(Ir& ir, const Plan& plan) {
  auto& b = ir.b;
  const BackwardConfig c(ir.config);
  llvm::Type* element = element_type(ir, plan.spec.out_dq);
  llvm::Function* function = ir.function(kStoreQueriesName, {ir.ptr}, true);
  Value* call = function->getArg(0);
  Value* sums = ir.member(call, offsetof(QueryStoreCall, sums), ir.ptr, "sums");
  Value* dq = ir.member(call, offsetof(QueryStoreCall, dq), ir.ptr, "dq");
  Value* token = ir.member(call, offsetof(QueryStoreCall, dq_token), ir.i64, "token");
  Value* chunk_words = ir.member(call, offsetof(QueryStoreCall, chunk_words), ir.i64, "chunk_words");
  Value* chunks = ir.member(call, offsetof(QueryStoreCall, chunks), ir.i64, "chunks");
  Value* rows = ir.member(call, offsetof(QueryStoreCall, rows), ir.i64, "rows");
  ir.loop(ir.integer(0), rows, 1, "row", [&](Value* row) {
    Value* of_row = ir.word(sums, b.CreateMul(row, ir.integer(c.width_qk)));
    Value* target = b.CreateGEP(element, dq, b.CreateMul(row, token));
    const auto sum_of = [&](int first) {
      return ir.loop(ir.integer(0), chunks, 1, "chunk", {Ir::real(ir.f32v, 0)},
                     [&](Value* chunk, const Ir::Values& sum) {
                       Value* from = ir.word(ir.word(of_row, first), b.CreateMul(chunk, chunk_words));
                       return Ir::Values{b.CreateFAdd(sum[0], ir.load(ir.f32v, from))};
                     })[0];
    };
    emit_store_row(ir, target, plan.spec.out_dq, c.d_qk, Ir::real(ir.f32, plan.spec.effective_scale()), sum_of,
                   share_of_earlier(ir, plan));
  });
  ir.finish();
}

}  // namespace flashjit::host

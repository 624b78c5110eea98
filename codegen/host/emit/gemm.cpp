#include "codegen/host/emit/gemm.h"

#include <llvm/IR/IntrinsicsX86.h>

namespace flashjit::host {
namespace {

constexpr int kTileRows = 16;
constexpr int kTileWords = 16;  // They are 64 bytes.

// Returns acc + a b, where a is one word for all lanes.
Value* multiply_add(Ir& ir, Value* a, Value* b, Value* acc) {
  if (ir.config.product == Product::Fma) return ir.fma(a, b, acc);
  llvm::Type* pairs = ir.vector_of(ir.b.getBFloatTy(), 2 * ir.config.lanes);
  return ir.call(llvm::Intrinsic::x86_avx512bf16_dpbf16ps_512, {},
                 {acc, ir.b.CreateBitCast(a, pairs), ir.b.CreateBitCast(b, pairs)});
}

void emit_vector_body(Ir& ir, const MicroKernel& kernel, llvm::Function* function) {
  auto& b = ir.b;
  Value *A = function->getArg(0), *B = function->getArg(1), *C = function->getArg(2), *words = function->getArg(3);
  const int rows = ir.config.row_block, lanes = ir.config.lanes, panel = ir.config.panel;
  llvm::Type* word = ir.config.product == Product::Fma ? ir.f32 : ir.i32;
  const Ir::Values start(static_cast<std::size_t>(2 * rows), Ir::real(ir.f32v, 0));
  const Ir::Values sums =
      ir.loop(ir.integer(0), words, kernel.unroll, "word", start, [&](Value* i, const Ir::Values& carried) {
        Ir::Values acc = carried;
        Value* a = ir.word(A, i);
        Value* right = ir.word(B, b.CreateMul(i, ir.integer(panel)));
        for (int u = 0; u < kernel.unroll; ++u) {
          Value* columns[2];
          for (int v = 0; v < 2; ++v)
            columns[v] = ir.load(ir.vector_of(word), ir.word(right, u * panel + v * lanes), 64);
          for (int row = 0; row < rows; ++row) {
            Value* left = ir.splat(ir.load(word, ir.word(a, row * kernel.a_stride + u)));
            for (int v = 0; v < 2; ++v) acc[row * 2 + v] = multiply_add(ir, left, columns[v], acc[row * 2 + v]);
          }
        }
        return acc;
      });
  // The products of one KV tile are summed by themselves before they are added to C: shorter chains of additions round
  // less.
  for (int row = 0; row < rows; ++row) {
    for (int v = 0; v < 2; ++v) {
      Value *at = ir.word(C, row * kernel.c_stride + v * lanes), *sum = sums[row * 2 + v];
      ir.store(kernel.accumulate ? b.CreateFAdd(ir.load(ir.f32v, at), sum) : sum, at);
    }
  }
}

// Tile registers 0..3 hold C as 2 x 2 tiles, 4 and 5 hold two row blocks of A, 6 and 7 two column blocks of B.
void emit_amx_body(Ir& ir, const MicroKernel& kernel, llvm::Function* function) {
  auto& b = ir.b;
  Value *A = function->getArg(0), *B = function->getArg(1), *C = function->getArg(2), *words = function->getArg(3);
  auto tile = [&](int number) { return b.getInt8(static_cast<std::uint8_t>(number)); };
  auto load = [&](int number, Value* address, int stride_words) {
    ir.call(llvm::Intrinsic::x86_tileloadd64, {}, {tile(number), address, ir.integer(stride_words * 4)});
  };
  auto c_address = [&](int t) { return ir.word(C, t / 2 * kTileRows * kernel.c_stride + t % 2 * kTileWords); };
  for (int t = 0; t < 4; ++t) {
    if (kernel.accumulate) {
      load(t, c_address(t), kernel.c_stride);
    } else {
      ir.call(llvm::Intrinsic::x86_tilezero, {}, {tile(t)});
    }
  }
  ir.loop(ir.integer(0), words, kTileWords, "word", [&](Value* i) {
    Value* right = ir.word(B, b.CreateMul(i, ir.integer(ir.config.panel)));
    Value* left = ir.word(A, i);
    load(6, right, ir.config.panel);
    load(4, left, kernel.a_stride);
    load(7, ir.word(right, kTileWords), ir.config.panel);
    load(5, ir.word(left, kTileRows * kernel.a_stride), kernel.a_stride);
    for (int t = 0; t < 4; ++t) {
      ir.call(llvm::Intrinsic::x86_tdpbf16ps, {}, {tile(t), tile(4 + t / 2), tile(6 + t % 2)});
    }
  });
  for (int t = 0; t < 4; ++t) {
    ir.call(llvm::Intrinsic::x86_tilestored64, {}, {tile(t), c_address(t), ir.integer(kernel.c_stride * 4)});
  }
}

}  // namespace

llvm::Function* emit_micro_kernel(Ir& ir, const MicroKernel& kernel) {
  llvm::Function* function = ir.function(kernel.name, {ir.ptr, ir.ptr, ir.ptr, ir.i64}, false);
  if (ir.config.product == Product::Amx) {
    emit_amx_body(ir, kernel, function);
  } else {
    emit_vector_body(ir, kernel, function);
  }
  ir.finish();
  return function;
}

void emit_amx_begin(Ir& ir) {
  // Palette 1 has eight tiles, each of 16 rows of 64 bytes. Bytes per row are 16-bit fields from byte 16 on, and rows
  // are bytes from 48 on.
  std::vector<std::uint8_t> config(64, 0);
  config[0] = 1;
  for (int tile = 0; tile < 8; ++tile) {
    config[16 + 2 * tile] = 4 * kTileWords;
    config[48 + tile] = kTileRows;
  }
  llvm::Constant* data = llvm::ConstantDataArray::get(ir.module.getContext(), config);
  auto* global = new llvm::GlobalVariable(ir.module, data->getType(), true, llvm::GlobalValue::PrivateLinkage, data,
                                          "tile_config");
  global->setAlignment(llvm::Align(64));
  ir.call(llvm::Intrinsic::x86_ldtilecfg, {}, {global});
}

void emit_amx_end(Ir& ir) { ir.call(llvm::Intrinsic::x86_tilerelease, {}, {}); }

}  // namespace flashjit::host

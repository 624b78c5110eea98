#include "tests/host_check/amx_emulator.h"

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>
#include <unistd.h>

namespace flashjit::testing {
namespace {

struct Tiles {
  bool configured = false;
  std::uint8_t rows[8] = {};
  std::uint16_t bytes[8] = {};
  std::uint8_t data[8][16][64] = {};
};
thread_local Tiles tiles;

[[noreturn]] void refuse(const char* why) {
  const char prefix[] = "amx emulator: ";
  (void)!write(2, prefix, sizeof prefix - 1);
  (void)!write(2, why, std::strlen(why));
  (void)!write(2, "\n", 1);
  _exit(3);
}

struct Instruction {
  int prefix = 0;  // 0 none, 1 66, 2 F3, 3 F2
  int opcode = 0, mod = 0, reg = 0, rm = 0, vvvv = 0;
  std::uint64_t address = 0;  // memory operand without the index
  std::uint64_t index = 0;    // index register times scale: the stride
  int length = 0;
};

std::uint64_t register_value(const ucontext_t& context, int number) {
  static constexpr int kOrder[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                     REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
  return static_cast<std::uint64_t>(context.uc_mcontext.gregs[kOrder[number]]);
}

template <class T>
T read(const std::uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

Instruction decode(const ucontext_t& context) {
  const auto* start = reinterpret_cast<const std::uint8_t*>(context.uc_mcontext.gregs[REG_RIP]);
  const std::uint8_t* at = start;
  if (at[0] != 0xc4 || (at[1] & 0x1f) != 2) refuse("an illegal instruction that is not AMX");
  Instruction i;
  const int extend_index = at[1] & 0x40 ? 0 : 8, extend_base = at[1] & 0x20 ? 0 : 8;
  i.vvvv = ~(at[2] >> 3) & 15;
  i.prefix = at[2] & 3;
  i.opcode = at[3];
  i.mod = at[4] >> 6;
  i.reg = at[4] >> 3 & 7;
  i.rm = at[4] & 7;
  at += 5;
  if (i.mod != 3) {
    bool rip_relative = false;
    if (i.rm == 4) {
      const int scale = *at >> 6, index = (*at >> 3 & 7) + extend_index, base = (*at & 7);
      ++at;
      if (index != 4) i.index = register_value(context, index) << scale;
      if (base == 5 && i.mod == 0) {
        i.address = static_cast<std::uint64_t>(std::int64_t{read<std::int32_t>(at)});
        at += 4;
      } else {
        i.address = register_value(context, base + extend_base);
      }
    } else if (i.rm == 5 && i.mod == 0) {
      i.address = static_cast<std::uint64_t>(std::int64_t{read<std::int32_t>(at)});
      at += 4;
      rip_relative = true;
    } else {
      i.address = register_value(context, i.rm + extend_base);
    }
    if (i.mod == 1) i.address += static_cast<std::uint64_t>(std::int64_t{read<std::int8_t>(at)}), at += 1;
    if (i.mod == 2) i.address += static_cast<std::uint64_t>(std::int64_t{read<std::int32_t>(at)}), at += 4;
    if (rip_relative) i.address += reinterpret_cast<std::uint64_t>(at);
  }
  i.length = static_cast<int>(at - start);
  return i;
}

void configure(const std::uint8_t* config) {
  if (config[0] != 1 || config[1] != 0) refuse("tile configuration: not palette 1");
  for (int i = 2; i < 16; ++i) {
    if (config[i] != 0) refuse("tile configuration: a reserved byte is set");
  }
  tiles = {};
  for (int t = 0; t < 8; ++t) {
    tiles.bytes[t] = read<std::uint16_t>(config + 16 + 2 * t);
    tiles.rows[t] = config[48 + t];
    if (tiles.bytes[t] > 64 || tiles.rows[t] > 16) refuse("tile configuration: a tile is too large");
  }
  tiles.configured = true;
}

float bf16(const std::uint8_t* at) {
  const std::uint32_t bits = std::uint32_t{read<std::uint16_t>(at)} << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// C[m][n] += A[m][2k] B[k][2n] + A[m][2k+1] B[k][2n+1]
void multiply(int c, int a, int b) {
  if (tiles.rows[c] != tiles.rows[a] || tiles.bytes[a] != 4 * tiles.rows[b] || tiles.bytes[b] != tiles.bytes[c]) {
    refuse("tdpbf16ps: the shapes of the tiles do not fit");
  }
  for (int m = 0; m < tiles.rows[c]; ++m) {
    for (int n = 0; n < tiles.bytes[c] / 4; ++n) {
      float sum = read<float>(&tiles.data[c][m][4 * n]);
      for (int k = 0; k < tiles.rows[b]; ++k) {
        for (int half = 0; half < 4; half += 2) {
          sum += bf16(&tiles.data[a][m][4 * k + half]) * bf16(&tiles.data[b][k][4 * n + half]);
        }
      }
      std::memcpy(&tiles.data[c][m][4 * n], &sum, 4);
    }
  }
}

void execute(const Instruction& i) {
  if (i.opcode == 0x49 && i.prefix == 0 && i.mod != 3)
    return configure(reinterpret_cast<const std::uint8_t*>(i.address));
  if (!tiles.configured) refuse("a tile instruction without a configuration");
  if (i.opcode == 0x49 && i.prefix == 0) {
    tiles = {};
  } else if (i.opcode == 0x49 && i.prefix == 3) {
    std::memset(tiles.data[i.reg], 0, sizeof tiles.data[i.reg]);
  } else if (i.opcode == 0x4b && (i.prefix == 3 || i.prefix == 2)) {
    for (int row = 0; row < tiles.rows[i.reg]; ++row) {
      auto* memory = reinterpret_cast<std::uint8_t*>(i.address + i.index * static_cast<std::uint64_t>(row));
      if (i.prefix == 3) {
        std::memcpy(tiles.data[i.reg][row], memory, tiles.bytes[i.reg]);
      } else {
        std::memcpy(memory, tiles.data[i.reg][row], tiles.bytes[i.reg]);
      }
    }
  } else if (i.opcode == 0x5c && i.prefix == 2 && i.mod == 3) {
    multiply(i.reg, i.rm, i.vvvv);
  } else {
    refuse("an instruction that is not emulated");
  }
}

void on_illegal_instruction(int, siginfo_t*, void* raw) {
  auto* context = static_cast<ucontext_t*>(raw);
  const Instruction instruction = decode(*context);
  execute(instruction);
  context->uc_mcontext.gregs[REG_RIP] += instruction.length;
}

}  // namespace

void install_amx_emulator() {
  struct sigaction action = {};
  action.sa_sigaction = on_illegal_instruction;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGILL, &action, nullptr);
}

}  // namespace flashjit::testing

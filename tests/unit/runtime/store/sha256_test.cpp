#include "runtime/store/sha256.h"

#include <gtest/gtest.h>

#include "codegen/cuda/embedded_templates.h"

namespace flashjit {
namespace {

// FIPS 180-4 examples and the NIST test vectors for byte-oriented messages.
struct Vector {
  std::string message;
  const char* digest;
};

TEST(Sha256, KnownVectors) {
  const Vector vectors[] = {
      {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
      {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
      {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
       "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
      {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu",
       "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
      {std::string(1000000, 'a'), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
      {"\xbd", "68325720aabd7c82f30f554b313d0570c95accbb7dc4b5aae11204c08ffe732b"},
      {"\xc9\x8c\x8e\x55", "7abc22c0ae5af26ce93dbb94433a0e0b2e119d014f8e7f65bd56c61ccccd9504"},
      {std::string(55, '\0'), "02779466cdec163811d078815c633f21901413081449002f24aa3e80f0b88ef7"},
      {std::string(56, '\0'), "d4817aa5497628e7c77e6b606107042bbba3130888c5f47a375e6179be789fbb"},
      {std::string(64, '\0'), "f5a5fd42d16a20302798ef6ed309979b43003d2320d9f0e8ea9831a92759fb4b"},
  };
  for (const Vector& vector : vectors)
    EXPECT_EQ(sha256_hex(vector.message), vector.digest) << vector.message.size() << " bytes";
}

TEST(Sha256, TheCutDoesNotMatter) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>(i * 7);
  for (std::size_t piece = 1; piece < 140; ++piece) {
    Sha256 hash;
    for (std::size_t at = 0; at < text.size(); at += piece) hash.update(std::string_view(text).substr(at, piece));
    EXPECT_EQ(hex(hash.finish()), sha256_hex(text)) << piece;
  }
}

// Keys take these in place of reading the templates.
TEST(Sha256, TheBuildsDigestsOfTemplatesAreOfTheirTexts) {
  for (const EmbeddedFile& file : embedded_templates()) EXPECT_EQ(file.sha256, sha256_hex(file.text)) << file.name;
}

// Which of the two ways the vectors above took depends on the processor.
TEST(Sha256, BlocksWithoutTheProcessorsHelp) {
  std::array<std::uint8_t, 64> block = {'a', 'b', 'c', 0x80};
  block[63] = 24;  // bits
  Sha256::State state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  Sha256::portable_blocks(state, block.data(), 1);
  EXPECT_EQ(state, (Sha256::State{0xba7816bf, 0x8f01cfea, 0x414140de, 0x5dae2223, 0xb00361a3, 0x96177a9c, 0xb410ff61,
                                  0xf20015ad}));
}

}  // namespace
}  // namespace flashjit

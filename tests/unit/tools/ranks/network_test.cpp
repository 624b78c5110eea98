#include "tools/ranks/network.h"

#include <limits>

#include <gtest/gtest.h>

namespace flashjit {
namespace {

TEST(Network, ReadsHostsAndTheirGpus) {
  const auto one = parse_network("8x450GB/s"), many = parse_network("8x0.45TB/s,16x50GB/s");
  ASSERT_TRUE(one && many);
  EXPECT_EQ(one->ranks(), 8);
  EXPECT_FALSE(one->has_hosts());
  EXPECT_EQ(many->ranks(), 128);
  EXPECT_EQ(many->between.count, 16);
  EXPECT_DOUBLE_EQ(many->within.gb_per_s, 450);
  EXPECT_DOUBLE_EQ(many->between.gb_per_s, 50);
  EXPECT_EQ(print(*many), "128 ranks: 16 hosts of 8, 450 GB/s within a host and 50 GB/s between them");
  EXPECT_EQ(print(*one), "8 ranks of one host, 450 GB/s");
}

TEST(Network, RefusesWhatIsNoneAndSaysTheForm) {
  const std::pair<const char*, const char*> rows[] = {{"", "COUNTxBANDWIDTH"},
                                                      {"8", "'8' is not COUNTxBANDWIDTH"},
                                                      {"8x450", "GB/s"},
                                                      {"8x450MB/s", "GB/s"},
                                                      {"x450GB/s", "COUNTxBANDWIDTH"},
                                                      {"eightx450GB/s", "COUNTxBANDWIDTH"},
                                                      {"0x450GB/s", "0 is not from 1 to 2048"},
                                                      {"-8x450GB/s", "-8 is not from 1 to 2048"},
                                                      {"8xinfGB/s", "not from 0.001 to 100000 GB/s"},
                                                      {"8x0GB/s", "not from 0.001 to 100000 GB/s"},
                                                      {"8xnanGB/s", "not from 0.001 to 100000 GB/s"},
                                                      {"8x450GB/s,", "COUNTxBANDWIDTH"},
                                                      {"8x450GB/s,2x50GB/s,2x5GB/s", "more than two levels"},
                                                      {"64x450GB/s,64x50GB/s", "4096 ranks"}};
  for (const auto& [text, says] : rows) {
    const auto network = parse_network(text);
    ASSERT_FALSE(network) << text;
    EXPECT_TRUE(network.error().message.starts_with("--ranks: ")) << network.error().message;
    EXPECT_NE(network.error().message.find(says), std::string::npos) << text << ": " << network.error().message;
  }
}

TEST(Network, AnExchangeTakesItsLatencyAndItsBytesBesideEachOther) {
  const Network network{{8, 100, 5}, {4, 10, 20}};
  EXPECT_DOUBLE_EQ(exchange_us(network, 0, 0), 0);
  EXPECT_DOUBLE_EQ(exchange_us(network, 1e6, 0), 5 + 10);
  EXPECT_DOUBLE_EQ(exchange_us(network, 0, 1e6), 20 + 100);
  EXPECT_DOUBLE_EQ(exchange_us(network, 1e6, 1e6), 120) << "the slower of both";
  const double infinite = std::numeric_limits<double>::infinity();
  EXPECT_DOUBLE_EQ(exchange_us({{8, infinite, 0}, {1, 0, 0}}, 1e12, 0), 0);
}

}  // namespace
}  // namespace flashjit

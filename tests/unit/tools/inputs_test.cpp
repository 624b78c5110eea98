#include "tools/support/inputs.h"

#include <limits>

#include <gtest/gtest.h>

namespace flashjit {
namespace {

Result<InputFiles> with_param(const std::string& param) {
  InputArgs args;
  args.params = {param};
  return input_files(args);
}

TEST(Inputs, ScalarsAreTakenAsTheyAreWritten) {
  const std::pair<const char*, double> rows[] = {{"t=3", 3},
                                                 {"t=-0.5", -0.5},
                                                 {"t=1e3", 1000},
                                                 {"t=inf", std::numeric_limits<double>::infinity()},
                                                 {"t=9007199254740992", 0x1p53},
                                                 {"t=-9007199254740992", -0x1p53}};
  for (const auto& [param, value] : rows) {
    const auto inputs = with_param(param);
    ASSERT_TRUE(inputs) << param << ": " << inputs.error().message;
    EXPECT_EQ(inputs->scalars.at("t"), value) << param;
  }
  EXPECT_EQ(with_param("t=7.npy")->files.at("t"), "7.npy");
}

TEST(Inputs, NoWholeNumberIsRoundedSilently) {
  for (const char* param : {"t=9007199254740993", "t=-9007199254740993", "t=9223372036854775807",
                            "t=99999999999999999999", "t=+9007199254740993"}) {
    const auto inputs = with_param(param);
    ASSERT_FALSE(inputs) << param;
    EXPECT_NE(inputs.error().message.find("would be rounded to"), std::string::npos) << inputs.error().message;
  }
}

}  // namespace
}  // namespace flashjit

// These are the parts of fmt that are not in its headers. Packaged fmt is a shared library, so a user of this library
// would need it in the same version. The header-only form would make every file take longer to build.
#ifndef FMT_HEADER_ONLY

#include <fmt/format-inl.h>

// The instantiations are those of fmt's src/format.cc.
template auto fmt::detail::dragonbox::to_decimal(float) noexcept -> dragonbox::decimal_fp<float>;
template auto fmt::detail::dragonbox::to_decimal(double) noexcept -> dragonbox::decimal_fp<double>;
template auto fmt::detail::locale_ref::get<std::locale>() const -> std::locale;
template auto fmt::detail::thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template auto fmt::detail::decimal_point_impl<char>(locale_ref) -> char;

#endif

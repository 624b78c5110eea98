// Is this build one of a sanitizer? GCC says so by macros, clang by features.
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FLASHJIT_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define FLASHJIT_SANITIZED 1
#endif
#endif
#ifndef FLASHJIT_SANITIZED
#define FLASHJIT_SANITIZED 0
#endif

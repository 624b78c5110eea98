// Numbers that remember what they are made of. The main step of a hopper kernel evaluates the score function on them:
// constants meet constants when the kernel is compiled, numbers that are the same for a whole row are computed once,
// and the rest becomes part of the exponent. Each converts to the number that it stands for, and does so in every
// operation that is not written down here. This file includes nothing: a test compiles it for the host.
#pragma once

namespace flashjit {

// Is `Result` only where X is `Wanted` itself: other operands must not be converted to fit.
template <class X, class Wanted, class Result>
struct IfSame;
template <class X, class Result>
struct IfSame<X, X, Result> {
  using type = Result;
};
template <class X, class Result>
using IfInt = typename IfSame<X, int, Result>::type;
template <class X, class Result>
using IfFloat = typename IfSame<X, float, Result>::type;

// ---- ints ----

// The position of a key, as the thread's first column of the tile and a distance, which is a constant once the loop
// over the columns is unrolled. A number that is added goes to the base, so that converting k - q to float takes one
// conversion for a row of a tile: conversions run at an eighth of the rate of additions.
template <class Int>
struct KeyPosition {
  Int base;
  int distance;
  __device__ operator Int() const { return base + distance; }
};
template <class Int, class X>
__device__ inline IfInt<X, KeyPosition<Int>> operator+(KeyPosition<Int> k, X x) {
  return {k.base + x, k.distance};
}
template <class Int, class X>
__device__ inline IfInt<X, KeyPosition<Int>> operator+(X x, KeyPosition<Int> k) {
  return {k.base + x, k.distance};
}
template <class Int, class X>
__device__ inline IfInt<X, KeyPosition<Int>> operator-(KeyPosition<Int> k, X x) {
  return {k.base - x, k.distance};
}
template <class Int, class X>
__device__ inline IfInt<X, KeyPosition<Int>> operator-(X x, KeyPosition<Int> k) {
  return {x - k.base, -k.distance};
}
template <class Int>
__device__ inline KeyPosition<Int> operator-(KeyPosition<Int> k) {
  return {-k.base, -k.distance};
}
// Comparisons are with the distance, a constant.
template <class Int, class X>
__device__ inline IfInt<X, bool> operator<(KeyPosition<Int> k, X x) {
  return k.distance < x - k.base;
}
template <class Int, class X>
__device__ inline IfInt<X, bool> operator<=(KeyPosition<Int> k, X x) {
  return k.distance <= x - k.base;
}
template <class Int, class X>
__device__ inline IfInt<X, bool> operator>(KeyPosition<Int> k, X x) {
  return k.distance > x - k.base;
}
template <class Int, class X>
__device__ inline IfInt<X, bool> operator>=(KeyPosition<Int> k, X x) {
  return k.distance >= x - k.base;
}
template <class Int, class X>
__device__ inline IfInt<X, bool> operator==(KeyPosition<Int> k, X x) {
  return k.distance == x - k.base;
}
template <class Int, class X>
__device__ inline IfInt<X, bool> operator!=(KeyPosition<Int> k, X x) {
  return k.distance != x - k.base;
}

// The absolute value of a key's position.
template <class Int>
struct KeyDistance {
  KeyPosition<Int> k;
  __device__ operator Int() const { return k < 0 ? -static_cast<Int>(k) : static_cast<Int>(k); }
};
template <class Int>
__device__ inline KeyDistance<Int> abs_i(KeyPosition<Int> k) {
  return {k};
}

// ---- floats ----

// x * factor: the score is a product that has not been scaled yet.
struct Scaled {
  float x, factor;
  __device__ operator float() const { return x * factor; }
};
__device__ inline Scaled scaled(Scaled s) { return s; }
__device__ inline Scaled scaled(float x) { return {x, 1.0f}; }
__device__ inline Scaled operator-(Scaled s) { return {s.x, -s.factor}; }
template <class X>
__device__ inline IfFloat<X, Scaled> operator*(Scaled s, X x) {
  return {s.x, s.factor * x};
}
template <class X>
__device__ inline IfFloat<X, Scaled> operator*(X x, Scaled s) {
  return {s.x, x * s.factor};
}
template <class X>
__device__ inline IfFloat<X, Scaled> operator/(Scaled s, X x) {
  return {s.x, s.factor / x};
}

// base + slope * distance, where the distance is a constant like a key's.
struct Linear {
  float base, slope, distance;
  __device__ operator float() const { return base + slope * distance; }
};
__device__ inline Linear operator-(Linear l) { return {-l.base, -l.slope, l.distance}; }
template <class X>
__device__ inline IfFloat<X, Linear> operator+(Linear l, X x) {
  return {l.base + x, l.slope, l.distance};
}
template <class X>
__device__ inline IfFloat<X, Linear> operator+(X x, Linear l) {
  return {x + l.base, l.slope, l.distance};
}
template <class X>
__device__ inline IfFloat<X, Linear> operator-(Linear l, X x) {
  return {l.base - x, l.slope, l.distance};
}
template <class X>
__device__ inline IfFloat<X, Linear> operator-(X x, Linear l) {
  return {x - l.base, -l.slope, l.distance};
}
template <class X>
__device__ inline IfFloat<X, Linear> operator*(Linear l, X x) {
  return {l.base * x, l.slope * x, l.distance};
}
template <class X>
__device__ inline IfFloat<X, Linear> operator*(X x, Linear l) {
  return {x * l.base, x * l.slope, l.distance};
}
template <class X>
__device__ inline IfFloat<X, Linear> operator/(Linear l, X x) {
  return {l.base / x, l.slope / x, l.distance};
}

template <class Int>
__device__ inline Linear to_float(KeyPosition<Int> k) {
  return {static_cast<float>(k.base), 1.0f, static_cast<float>(k.distance)};
}
template <class Int>
__device__ inline float to_float(KeyDistance<Int> d) {
  return fabsf(to_float(d.k));
}

// A scaled number plus another number: a float or a Linear.
template <class Addend>
struct Shifted {
  Scaled s;
  Addend addend;
  __device__ operator float() const { return s.x * s.factor + addend; }
};
template <class X, class Result>
struct IfAddendOf;
template <class Result>
struct IfAddendOf<float, Result> {
  using type = Result;
};
template <class Result>
struct IfAddendOf<Linear, Result> {
  using type = Result;
};
template <class X, class Result>
using IfAddend = typename IfAddendOf<X, Result>::type;
template <class X>
__device__ inline IfAddend<X, Shifted<X>> operator+(Scaled s, X x) {
  return {s, x};
}
template <class X>
__device__ inline IfAddend<X, Shifted<X>> operator+(X x, Scaled s) {
  return {s, x};
}
template <class X>
__device__ inline IfAddend<X, Shifted<X>> operator-(Scaled s, X x) {
  return {s, -x};
}
template <class X>
__device__ inline IfAddend<X, Shifted<X>> operator-(X x, Scaled s) {
  return {-s, x};
}
template <class A, class X>
__device__ inline IfAddend<X, Shifted<decltype(A() + X())>> operator+(Shifted<A> s, X x) {
  return {s.s, s.addend + x};
}
template <class A, class X>
__device__ inline IfAddend<X, Shifted<decltype(A() + X())>> operator+(X x, Shifted<A> s) {
  return {s.s, x + s.addend};
}
template <class A, class X>
__device__ inline IfAddend<X, Shifted<decltype(A() - X())>> operator-(Shifted<A> s, X x) {
  return {s.s, s.addend - x};
}
template <class A, class X>
__device__ inline IfAddend<X, Shifted<decltype(X() - A())>> operator-(X x, Shifted<A> s) {
  return {-s.s, x - s.addend};
}

// Returns logit * scale - offset, the exponent of 2.
__device__ inline float exponent(float logit, float scale, float offset) { return fmaf(logit, scale, -offset); }
__device__ inline float exponent(Scaled logit, float scale, float offset) {
  return fmaf(logit.x, logit.factor * scale, -offset);
}
__device__ inline float exponent(Linear logit, float scale, float offset) {
  return fmaf(logit.slope * scale, logit.distance, exponent(logit.base, scale, offset));
}
template <class A>
__device__ inline float exponent(Shifted<A> logit, float scale, float offset) {
  return fmaf(logit.s.x, logit.s.factor * scale, exponent(logit.addend, scale, offset));
}

// ---- tanh of small arguments ----

// x * (c0 + c1 * square + c2 * square^2), where square is x * x. Factors go into the coefficients, which are constants
// if the factors are.
struct Odd {
  float x, square, c0, c1, c2;
  __device__ operator float() const { return x * fmaf(fmaf(c2, square, c1), square, c0); }
};
__device__ inline Odd operator-(Odd o) { return {o.x, o.square, -o.c0, -o.c1, -o.c2}; }
template <class X>
__device__ inline IfFloat<X, Odd> operator*(Odd o, X x) {
  return {o.x, o.square, o.c0 * x, o.c1 * x, o.c2 * x};
}
template <class X>
__device__ inline IfFloat<X, Odd> operator*(X x, Odd o) {
  return o * x;
}
template <class X>
__device__ inline IfFloat<X, Odd> operator/(Odd o, X x) {
  return {o.x, o.square, o.c0 / x, o.c1 / x, o.c2 / x};
}
__device__ inline float exponent(Odd logit, float scale, float offset) {
  const float p = fmaf(fmaf(logit.c2 * scale, logit.square, logit.c1 * scale), logit.square, logit.c0 * scale);
  return fmaf(logit.x, p, -offset);
}

// Takes tanh of arguments up to kLargest by an odd polynomial of degree 5, with a relative error of 2.9e-6 and no
// special function. The polynomial grows with its argument everywhere, and beyond kLargest faster than tanh.
struct SmallArguments {
  static constexpr float kLargest = 0.35f, kValueThere = 0.336377f;
  static constexpr float c0 = 0.999997131f, c1 = -0.332909541f, c2 = 0.123950313f;
  template <class X>
  __device__ Odd tanh_(X argument) const {
    const Scaled s = scaled(argument);
    const float f = s.factor, f2 = f * f;
    return {s.x, s.x * s.x, c0 * f, c1 * f * f2, c2 * f * f2 * f2};
  }
};

// The exponent cap * tanh(factor * x) - offset, by the same polynomial. In t = root * x its leading coefficient is 1,
// and it is t * ((t^2 + half)^2 + rest): as many operations as Horner's scheme takes, with fewer registers read, which
// they share with the products beside them [M94].
struct CappedExponent {
  float root, half, rest;

  __device__ static constexpr float fifth_root(float x) {
    float root = 1;
    for (int i = 0; i < 64; ++i) root = (4 * root + x / (root * root * root * root)) / 5;
    return root;
  }
  __device__ constexpr CappedExponent(float cap, float factor)
      : root(fifth_root(SmallArguments::c2 * cap)), half(0), rest(0) {
    half = SmallArguments::c1 * cap / (root * root * root) / 2;
    rest = SmallArguments::c0 * cap / root - half * half;
    root *= factor;
  }

  __device__ float of(float x, float offset) const {
    const float t = x * root, v = fmaf(t, t, half);
    return fmaf(fmaf(v, v, rest), t, -offset);
  }
};

// Finds out whether SmallArguments will do. An argument that contains another tanh is computed with SmallArguments:
// where this is wrong, the inner argument has already been found too large.
struct Probe {
  struct Largest {
    float x[4] = {};  // The arguments as they are scaled, in four chains of dependent instructions.
    float factor = 0;
    int arguments = 0;
  };
  Largest& largest;

  template <class X>
  __device__ Odd tanh_(X argument) const {
    const Scaled s = scaled(argument);
    float& x = largest.x[largest.arguments++ % 4];
    x = fmaxf(x, fabsf(s.x));
    largest.factor = fmaxf(largest.factor, fabsf(s.factor));
    return SmallArguments().tanh_(s);
  }

  // Bounds keep coefficients and powers in the range of fp32. Maxima pass over NaN, which stays NaN either way.
  __device__ bool small() const {
    const float x = fmaxf(fmaxf(largest.x[0], largest.x[1]), fmaxf(largest.x[2], largest.x[3]));
    return x * largest.factor <= SmallArguments::kLargest && x <= 0x1p16f && largest.factor <= 0x1p20f;
  }
};

}  // namespace flashjit

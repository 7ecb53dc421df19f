// Vector exp, sigmoid and erf in f32 for any Highway target, used by activations, softmax and the
// attention runner. Include inside the foreach_target part of a file, after hwy/highway.h.
//
// The polynomials are minimax fits on the ranges given with them.
#if defined(KINORA_OPS_SIMD_MATH_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KINORA_OPS_SIMD_MATH_INL_H
#undef KINORA_OPS_SIMD_MATH_INL_H
#else
#define KINORA_OPS_SIMD_MATH_INL_H
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kinora {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// e^x within 2 units in the last place for −87.3 ≤ x ≤ 88.3. Below, results that would be subnormal
// are 0 (so exp(−∞) is 0); above, the result stays at about 2.4e38. NaN stays NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V simd_exp(D d, V x) {
  const hn::RebindToSigned<D> di;
  // Comparisons, since Min and Max lose NaN on some targets.
  const V low = hn::Set(d, -88.0f), high = hn::Set(d, 88.3762f);
  V limited = hn::IfThenElse(hn::Lt(x, low), low, x);
  limited = hn::IfThenElse(hn::Gt(limited, high), high, limited);
  // x = n ln 2 + r with |r| ≤ ln 2 / 2; ln 2 in two parts keeps r exact.
  const V n = hn::Round(hn::Mul(limited, hn::Set(d, 1.44269504f)));
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693145752f), limited);
  r = hn::NegMulAdd(n, hn::Set(d, 1.42860677e-6f), r);
  // e^r = 1 + r + r² p(r), |r| ≤ 0.3475, largest relative error 3.1e-9
  V p = hn::Set(d, 0.001381422160193324f);
  p = hn::MulAdd(p, r, hn::Set(d, 0.00836889911442995f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.04166840389370918f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.1666651964187622f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.4999999403953552f));
  p = hn::MulAdd(p, hn::Mul(r, r), r);
  // × 2^n; n = −127 makes the scale 0
  const auto exponent = hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127));
  const V power = hn::BitCast(d, hn::ShiftLeft<23>(exponent));
  return hn::MulAdd(p, power, power);
}

// 1 / (1 + e^−x)
template <class D, class V = hn::Vec<D>>
HWY_INLINE V simd_sigmoid(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  return hn::Div(one, hn::Add(one, simd_exp(d, hn::Neg(x))));
}

// erf(z) with an absolute error below 1.5e-7.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V simd_erf(D d, V z) {
  const V magnitude = hn::Abs(z);
  // |z| < 0.95: z + z p(z²), largest relative error 6.2e-10
  const V square = hn::Mul(z, z);
  V p = hn::Set(d, 8.178505231626332e-05f);
  p = hn::MulAdd(p, square, hn::Set(d, -0.000809605116955936f));
  p = hn::MulAdd(p, square, hn::Set(d, 0.005196797661483288f));
  p = hn::MulAdd(p, square, hn::Set(d, -0.026857638731598854f));
  p = hn::MulAdd(p, square, hn::Set(d, 0.11283662915229797f));
  p = hn::MulAdd(p, square, hn::Set(d, -0.37612631916999817f));
  p = hn::MulAdd(p, square, hn::Set(d, 0.12837916612625122f));
  const V small = hn::MulAdd(p, z, z);
  // |z| ≥ 0.95: 1 − e^−q(|z|), q fitted to −log erfc on [0.9, 4.05]; from 4.05 on erf is 1 in f32
  const V m = hn::Min(hn::Set(d, 4.05f), magnitude);
  V q = hn::Set(d, 1.690644603513647e-05f);
  q = hn::MulAdd(q, m, hn::Set(d, -0.00037836231058463454f));
  q = hn::MulAdd(q, m, hn::Set(d, 0.0038616457022726536f));
  q = hn::MulAdd(q, m, hn::Set(d, -0.02420859783887863f));
  q = hn::MulAdd(q, m, hn::Set(d, 0.10673322528600693f));
  q = hn::MulAdd(q, m, hn::Set(d, 0.6348650455474854f));
  q = hn::MulAdd(q, m, hn::Set(d, 1.128715991973877f));
  q = hn::MulAdd(q, m, hn::Set(d, -3.6010874282510486e-07f));
  const V large = hn::Sub(hn::Set(d, 1.0f), simd_exp(d, hn::Neg(q)));
  return hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0.95f)), small, hn::CopySign(large, z));
}

}  // namespace HWY_NAMESPACE
}  // namespace kinora
HWY_AFTER_NAMESPACE();

#endif

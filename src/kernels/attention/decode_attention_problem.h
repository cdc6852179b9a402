// What decode_attention's implementations are given (internal to kernels/).
#pragma once

#include <cstdint>

#include "kernels/attention/decode_attention.h"

namespace switchyard {

inline constexpr std::int64_t kKeysOfPiece = 128;

// DecodeAttentionArgs without the matrices.
struct DecodeAttentionSpec {
  std::int64_t batch = 0;
  std::int64_t capacity = 0;  // C
  std::int64_t kv_heads = 0;
  std::int64_t group = 0;  // G
  std::int64_t qk_dim = 0;
  std::int64_t v_dim = 0;
  float scale = 1;
  DType dtype = DType::f32;         // of queries and results
  bool int8 = false;                // keys and values are int8 with scales
  std::int64_t key_scales = 0;      // of a key in int8
  std::int64_t first_key_part = 0;  // numbers of a key that its first scale is of: all without a second

  DType stored() const { return int8 ? DType::i8 : dtype; }  // of keys and values
};

// Some keys of one row.
struct DecodeAttentionPiece {
  const DecodeAttentionSpec* args;
  const void* q;          // [Nkv,G,D]
  const void* k;          // [keys,Nkv,D]
  const void* v;          // [keys,Nkv,Dv]
  std::int64_t keys;      // 1 to kKeysOfPiece
  const float* k_scales;  // of int8: [keys,Nkv,key_scales]
  const float* v_scales;  // of int8: [keys,Nkv]
  float* sums;  // out: [Nkv,G] times largest score, sum of weights exp(score - largest), [Dv] weighted values

  std::int64_t width() const { return args->v_dim + 2; }  // of sums
};

using DecodeAttentionRun = void(const DecodeAttentionPiece&);

namespace cpu {
DecodeAttentionRun decode_attention_avx512;
DecodeAttentionRun decode_attention_avx2;
}  // namespace cpu
namespace ref {
DecodeAttentionRun decode_attention;
}  // namespace ref

}  // namespace switchyard

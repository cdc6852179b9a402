// The kernels behind decode_attention.h, of every device. Internal to kernels/attention.
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
  // From a value to the next, and from its scale to the next: a key's where values are parts of keys.
  std::int64_t v_row = 0, v_scale_row = 0;

  bool values_in_keys() const { return v_row != v_dim; }
  std::int64_t sums_width() const { return v_dim + 2; }      // of a piece's sums of one query
  DType stored() const { return int8 ? DType::i8 : dtype; }  // of keys and values
};

DecodeAttentionSpec decode_attention_spec(const DecodeAttentionArgs& args);

// Some keys of one sequence.
struct DecodeAttentionPiece {
  const DecodeAttentionSpec* args;
  const void* q;          // [Nkv,G,D]
  const void* k;          // [keys,Nkv,D]
  const void* v;          // [keys,Nkv,Dv], vectors v_row apart
  std::int64_t keys;      // 1 to kKeysOfPiece
  const float* k_scales;  // of int8: [keys,Nkv,key_scales]
  const float* v_scales;  // of int8: [keys,Nkv], v_scale_row apart
  float* sums;  // out: [Nkv,G] times largest score, sum of weights exp(score - largest), [Dv] weighted values

  std::int64_t width() const { return args->sums_width(); }  // of sums
};

using DecodeAttentionKernel = void(const DecodeAttentionPiece&);

namespace ref {
DecodeAttentionKernel decode_attention;
}  // namespace ref
namespace cpu {
DecodeAttentionKernel decode_attention_avx512, decode_attention_avx2;
}  // namespace cpu
namespace gpu {
void decode_attention(const DecodeAttentionArgs& args);
// On tensor cores, of groups of queries and pieces of the keys (cuda/split_decode.cu).
void split_decode_attention(const DecodeAttentionArgs& args);
const char* split_decode_refuses(const DecodeAttentionArgs& args);
}  // namespace gpu

}  // namespace switchyard

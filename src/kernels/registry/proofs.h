// Proof: on which card a GPU's row has run right. Rows that were written without a card and have another row
// below them name one: what ran on an emulated card alone is left out on a card, unless gpu_kernels=all.
//
// bench/device/measure.py prints the lines to write here. A row whose file changed since is not proven any
// more: proofs_test.cc compares hashes of the files (not of the headers that they include), and
// docs/cuda.md's table with this one.
#pragma once

#include <string_view>

namespace switchyard {

struct Proof {
  std::string_view kernel, row;  // the table's name, and the row's there
  std::string_view source;       // below src/kernels/
  std::string_view card = {};    // and the day; empty: an emulated card alone
  std::string_view sha256 = {};  // the first 16 digits of the source's hash on that day

  constexpr bool is_given() const { return !card.empty(); }
};

namespace proofs {

inline constexpr std::string_view kH200 = "H200, 28 November 2026";

inline constexpr Proof hopper_attention{"attention", "cuda_hopper", "attention/cuda/hopper_attention.cu"};
inline constexpr Proof hopper_latent_attention{"attention", "cuda_hopper_latent",
                                               "attention/cuda/hopper_latent_attention.cu"};
inline constexpr Proof hopper_attention_backward{"attention_backward", "cuda_hopper",
                                                 "attention/cuda/hopper_attention_backward.cu"};
inline constexpr Proof split_decode{"decode_attention", "cuda_split", "attention/cuda/split_decode.cu", kH200,
                                    "0fe2900a4079cc84"};
inline constexpr Proof narrow_loss{"linear_cross_entropy", "cuda_hopper_narrow", "loss/cuda/narrow_loss.cu",
                                   kH200, "ce8402e905565cbd"};
inline constexpr Proof narrow_loss_backward{"linear_cross_entropy_backward", "cuda_hopper_narrow",
                                            "loss/cuda/narrow_loss_gradients.cu"};
inline constexpr Proof narrow_loss_gradients{"linear_cross_entropy_gradients", "cuda_hopper_narrow",
                                             "loss/cuda/narrow_loss_gradients.cu"};
inline constexpr Proof gated_down{"gated_down_backward", "cuda_hopper", "product/cuda/gated_down.cu", kH200,
                                  "8e06abde358a00a7"};
inline constexpr Proof gated_product{"product", "cuda_hopper_gated", "product/cuda/gated_product.cu", kH200,
                                     "8a5372738d6efe52"};
inline constexpr Proof few_rows_packed{"product", "cuda_few_rows_packed_mma",
                                       "product/cuda/few_rows_packed.cu"};
inline constexpr Proof few_rows_wgmma{"product", "cuda_few_rows_wgmma", "product/cuda/few_rows_wgmma.cu",
                                      kH200, "a3984a18e345e698"};
inline constexpr Proof split_product{"product", "cuda_tma_split", "product/cuda/split_product.cu"};
inline constexpr Proof tma_product{"product", "cuda_tma", "product/cuda/tma_product.cu"};

inline constexpr const Proof* kAll[] = {&hopper_attention,
                                        &hopper_latent_attention,
                                        &hopper_attention_backward,
                                        &split_decode,
                                        &narrow_loss,
                                        &narrow_loss_backward,
                                        &narrow_loss_gradients,
                                        &gated_product,
                                        &gated_down,
                                        &few_rows_packed,
                                        &few_rows_wgmma,
                                        &split_product,
                                        &tma_product};

}  // namespace proofs

namespace registry {

// Rows without a proof run on cards, too (gpu_kernels=all), in this process. They always
// run on an emulated card.
void take_unproven_rows(bool all);
// The reason why a row with this proof, or without need of one, does not run on this thread's GPU, real or
// planned; null: it does.
const char* unproven(const Proof* proof);

}  // namespace registry
}  // namespace switchyard

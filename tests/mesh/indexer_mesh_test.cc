// Sparse attention: a model whose indexers learn gives the same numbers on any mesh.
#include <gtest/gtest.h>

#include <string_view>

#include "verify/layouts.h"

namespace switchyard {
namespace {

TEST(IndexerMesh, SameNumbers) {
  for (const char* sparse : {"indexer_sparse_training=false", "indexer_sparse_training=true"}) {
    LayoutRequest request;
    request.layouts = {"ranks=1", "ranks=4 ici_fsdp_parallelism=2 ici_tensor_parallelism=2",
                       "ranks=2 ici_context_parallelism=2", "ranks=4 ici_expert_parallelism=4"};
    // Where indexers learn alone a stage has no gradient for the one before, and a pipeline is refused.
    if (std::string_view(sparse).ends_with("true"))
      request.layouts.push_back("ranks=2 ici_pipeline_parallelism=2");
    request.arguments = {"decoder_block=deepseek",
                         "base_emb_dim=32",
                         "base_num_decoder_layers=2",
                         "first_num_dense_layers=1",
                         "num_experts=4",
                         "num_experts_per_tok=2",
                         "base_mlp_dim=32",
                         "base_moe_mlp_dim=32",
                         "base_num_query_heads=2",
                         "base_num_kv_heads=2",
                         "attention_type=mla",
                         "routed_score_func=sigmoid",
                         "kv_lora_rank=16",
                         "q_lora_rank=12",
                         "qk_nope_head_dim=8",
                         "qk_rope_head_dim=4",
                         "v_head_dim=8",
                         "use_indexer=true",
                         "indexer_n_heads=4",
                         "indexer_head_dim=8",
                         "indexer_topk=5",
                         "vocab_size=64",
                         "steps=2",
                         "indexer_loss_scaling_factor=0.5",
                         sparse};
    for (const CaseReport& report : compare_layouts(request))
      EXPECT_TRUE(report.pass()) << report.path << " " << report.kind << ": " << report.first_failure()->name;
  }
}

}  // namespace
}  // namespace switchyard

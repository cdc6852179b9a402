// Inert keys: they belong to kinds of models of the reference that are not built here, and change nothing in
// one without them. A group shares its reason.
#include "config/declaration.h"

namespace switchyard {

std::vector<KeyDeclaration> other_model_keys() {
  std::vector<KeyDeclaration> keys;
  const auto add = [&](const std::string& help, std::vector<InertDefault> group) {
    for (KeyDeclaration& key : inert_group(help, group)) keys.push_back(std::move(key));
  };
  add("of models that see images and videos, which are not built",
      {{"train_image_column", "image"},
       {"eval_image_column", "image"},
       {"freeze_vision_encoder_params", true},
       {"dtype_mm", "float32"},
       {"remat_policy_for_vit", "minimal"},
       {"image_size_for_vit", 896},
       {"image_path", ""},
       {"video_path", ""},
       {"image_placeholder", "<|image|>"},
       {"video_placeholder", "<|video|>"},
       {"video_max_grid_t", nullptr},
       {"video_max_grid_h", nullptr},
       {"video_max_grid_w", nullptr},
       {"posemb_type_for_vit", "learn"},
       {"max_num_images_per_example", -1},
       {"vision_output_length", -1},
       {"hidden_size_for_vit", 1408},
       {"intermediate_size_for_vit", 5632},
       {"num_attention_heads_for_vit", 16},
       {"num_channels_for_vit", 3},
       {"tile_size_for_vit", 336},
       {"patch_size_for_vit", 14},
       {"conv_stride_for_vit", 14},
       {"num_hidden_layers_for_vit", 34},
       {"projector_input_dim_for_vit", 4096},
       {"projector_output_dim_for_vit", 4096},
       {"rope_theta_for_vit", 10000},
       {"vision_output_dim_for_vit", 4096},
       {"pixel_shuffle_ratio_for_vit", 0.5},
       {"projector_dropout_for_vit", 0.0},
       {"spatial_merge_size_for_vit", 2},
       {"out_hidden_size_for_vit", 512},
       {"temporal_patch_size_for_vit", 2},
       {"num_position_embeddings_for_vit", 1024},
       {"deepstack_visual_indexes_for_vit", nlohmann::json::array({})},
       {"mrope_section", nlohmann::json::array({24, 20, 20})},
       {"position_id_per_seconds", 25},
       {"attention_for_vit", "dot_product"},
       {"vision_encoder_block", "none"},
       {"vision_projector_type", "default"},
       {"vision_connector_hidden_size", 0},
       {"vision_connector_num_layers", 2},
       {"vision_connector_activation", "gelu"},
       {"vision_connector_use_bias", true}});
  add("of models that hear, which are not built", {{"freeze_audio_encoder_params", true},
                                                   {"audio_path", ""},
                                                   {"audio_placeholder", "<|audio|>"},
                                                   {"use_audio_in_video", false},
                                                   {"d_model_for_audio", 256},
                                                   {"encoder_attention_heads_for_audio", 4},
                                                   {"encoder_ffn_dim_for_audio", 512},
                                                   {"encoder_layers_for_audio", 2},
                                                   {"attention_dropout_for_audio", 0.0},
                                                   {"activation_dropout_for_audio", 0.0},
                                                   {"activation_function_for_audio", "gelu"},
                                                   {"num_mel_bins_for_audio", 128},
                                                   {"max_source_positions_for_audio", 1500},
                                                   {"scale_embedding_for_audio", true},
                                                   {"n_window_for_audio", 50},
                                                   {"n_window_infer_for_audio", 800},
                                                   {"conv_chunksize_for_audio", 500},
                                                   {"downsample_hidden_size_for_audio", 256},
                                                   {"output_dim_for_audio", 512},
                                                   {"num_conv_layers_for_audio", 3},
                                                   {"max_timescale_for_audio", 10000.0},
                                                   {"max_sample_len_for_audio", 10000}});
  add("of training by block diffusion, which is not built",
      {{"block_diffusion_mask_id", -1},
       {"block_diffusion_min_noise", 0.001},
       {"block_diffusion_logit_alignment", "same_position"},
       {"block_diffusion_canvas_policy", "all_masked"}});
  return keys;
}

}  // namespace switchyard

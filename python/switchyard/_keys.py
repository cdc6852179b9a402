"""The config keys with their types, for editors and type checkers. Made by python/module/make_keys.py.

Calls take every key at run time, as `switchyard config --list` has them; the engine says which value is wrong.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypedDict


class Keys(TypedDict, total=False):
    """Keys of a model, its mesh, its training and its data. `switchyard config --list WORD` says what they mean."""

    model_name: str | os.PathLike[str]
    override_model_config: bool
    base_config: str | os.PathLike[str]
    device: str
    gpu_kernels: str
    ranks: int
    ignore_memory_limit: bool
    compat: str
    collective_timeout_seconds: float
    load_parameters_path: str | os.PathLike[str]
    load_full_state_path: str | os.PathLike[str]
    model_call_mode: str | os.PathLike[str]
    use_multimodal: bool
    use_audio: bool
    compiled_trainstep_file: str | os.PathLike[str]
    compile_topology: str | os.PathLike[str]
    use_m3_model: bool
    convert_checkpoint_if_possible: bool
    sharding_strategy: str | os.PathLike[str] | None
    compile_topology_num_slices: int
    run_name: str | os.PathLike[str]
    base_output_directory: str | os.PathLike[str]
    log_config: bool
    metrics_file: str | os.PathLike[str]
    profiler: str
    skip_first_n_steps_for_profiler: int
    profiler_steps: int
    enable_tensorboard: bool
    enable_checkpointing: bool
    checkpoint_period: int
    async_checkpointing: bool
    save_checkpoint_on_start: bool
    save_checkpoint_on_completion: bool
    max_num_checkpoints_to_keep: int | None
    prompt: str | os.PathLike[str]
    max_prefill_predict_length: int
    weight_format: str
    decode_sampling_strategy: str
    decode_sampling_nucleus_p: float
    decode_sampling_top_k: int
    decode_sampling_temperature: float
    decode_sampling_min_p: float
    decode_repetition_penalty: float
    decode_presence_penalty: float
    decode_frequency_penalty: float
    decode_logit_bias: Sequence[Any] | str
    decode_end_tokens: Sequence[int] | str
    autoregressive_decode_assert: str | os.PathLike[str]
    mtp_draft: bool
    mtp_draft_tokens: int
    ngram_draft: int
    return_log_prob: bool
    use_chunked_prefill: bool
    deterministic_batches: bool
    prefill_chunk_size: int
    enable_prefix_caching: bool
    system_prompt: str | os.PathLike[str]
    chat_template_path: str | os.PathLike[str]
    chat_template_kwargs: str | os.PathLike[str]
    trust_messages: bool
    strict_fields: bool
    return_routed_experts: bool
    page: bool
    protect_metrics: bool
    tls_cert: str | os.PathLike[str]
    tls_key: str | os.PathLike[str]
    prompt_checkpoints: int
    max_body: int
    max_waiting: int
    max_texts_of_key: int
    share_prefixes_between_keys: bool
    request_timeout: float
    decoder_block: str
    base_emb_dim: int
    base_num_decoder_layers: int
    base_num_query_heads: int
    base_num_kv_heads: int
    head_dim: int
    base_mlp_dim: int
    mlp_activations: Sequence[str] | str
    mlp_activations_limit: float
    mlp_activations_alpha: float
    vocab_size: int
    normalization_layer_epsilon: float
    logits_via_embedding: bool
    normalize_embedding_logits: bool
    final_logits_soft_cap: float | None
    dense_init_scale: float
    dropout_rate: float
    enable_dropout: bool
    init_weights_seed: int
    dtype: str
    weight_dtype: str
    activations_in_float32: bool
    quantization: str
    quantize_kvcache: bool
    kv_quant_dtype: str
    kv_quant_axis: str
    checkpoint_is_quantized: bool
    weight_sparsity_n: int | None
    weight_sparsity_m: int | None
    rope_type: str
    rope_max_timescale: int
    rope_min_timescale: int
    rope_use_scale: bool
    rope_factor: float
    rope_low_freq_factor: float
    rope_high_freq_factor: float
    max_position_embeddings: int
    original_max_position_embeddings: int
    beta_fast: int
    beta_slow: int
    mscale: float
    rope_interleave: bool
    rope_truncate: bool
    rope_attention_scaling: bool
    rope_frequency_divisors: Sequence[float] | str
    rope_pairwise: bool
    rope_linear_scaling_factor: float
    local_rope_max_timescale: int
    global_rope_max_timescale: int
    global_rope_proportion: float
    local_rope_proportion: float
    partial_rotary_factor: float
    nope_layer_interval: int
    unrotated_layers: Sequence[int] | str
    use_untrainable_positional_embedding: bool
    trainable_position_size: int
    use_mrope: bool
    global_parameter_scale: int
    use_post_attn_norm: bool
    use_post_ffw_norm: bool
    inhomogeneous_layer_cycle_interval: int
    hidden_size_per_layer_input: int
    vocab_size_per_layer_input: int
    num_kv_shared_layers: int
    use_double_wide_mlp: bool
    fused_qkv: bool
    fused_mlp: bool
    mtp_num_layers: int
    mtp_loss_scaling_factor: float
    mtp_own_norm: bool
    mtp_reads_final_norm: bool
    mtp_reuse_input_embedding: bool
    mtp_eval_target_module: int
    mhc_expansion_rate: int
    sinkhorn_iterations: int
    enable_mhc_lite: bool
    engram_layers: Sequence[int] | str
    engram_max_ngram_size: int
    engram_num_heads: int
    engram_head_dim: int
    engram_vocab_bases: Sequence[int] | str
    engram_kernel_size: int
    engram_seed: int
    training_objective: str
    attention: str
    attention_type: str
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    use_qk_norm: bool
    attention_output_dim: int
    qk_norm_with_scale: bool
    v_norm_with_scale: bool
    attention_bias: bool
    attention_output_bias: bool
    clip_qkv: float
    qk_norm_over: str
    latent_norm_epsilon: float
    attention_sink: bool
    share_kv_projections: bool
    sliding_window_size: int
    windowed_layers: Sequence[int] | str
    chunk_attn_window_size: int
    delta_layers: Sequence[int] | str
    gdn_num_key_heads: int
    gdn_num_value_heads: int
    gdn_key_head_dim: int
    gdn_value_head_dim: int
    gdn_conv_kernel_dim: int
    gdn_chunk_size: int
    use_qk_norm_in_gdn: bool
    attn_logits_soft_cap: float
    global_head_dim: int
    global_num_kv_heads: int
    temperature_tuning: bool
    temperature_tuning_scale: float
    temperature_tuning_floor_scale: int
    temperature_tuning_offset: int
    value_head_dim: int
    attention_value_scale: float
    attention_gate: str
    attention_gate_curve: str
    attention_kinds: Sequence[Any] | str
    layer_kinds: Sequence[str] | str
    use_qk_clip: bool
    qk_clip_threshold: float
    moba: bool
    moba_chunk_size: int
    moba_topk: int
    shared_choice_layers: Sequence[int] | str
    use_indexer: bool
    indexer_head_dim: int
    indexer_n_heads: int
    indexer_topk: int
    indexer_rope_interleave: bool
    indexer_use_approx_top_k: bool
    indexer_approx_top_k_recall: float
    indexer_mask_exact_topk: bool
    indexer_sparse_training: bool
    indexer_loss_scaling_factor: float
    o_lora_rank: int
    o_groups: int
    compress_ratios: Sequence[int] | str
    compressed_rope_max_timescale: int
    use_ragged_attention: bool
    mla_qk_head_chunk_size: int
    use_sliced_mla_proj: bool
    mla_naive_kvcache: bool
    use_mla_absorbed_mqa: bool
    csa_qk_head_chunk_size: int
    float32_qk_product: bool
    float32_logits: bool
    enable_padding_causal_mask: bool
    num_experts: int
    num_experts_per_tok: int
    base_moe_mlp_dim: int
    moe_expert_input_dim: int
    first_num_dense_layers: int
    expert_gate_limits: Sequence[float] | str
    shared_gate_limits: Sequence[float] | str
    expert_gate_clamp: str
    moe_layers: Sequence[int] | str
    shared_experts: int
    shared_expert_mlp_dim: int
    interleave_moe_layer_step: int
    first_num_hash_layers: int
    mlp_bias: bool
    routed_score_func: str
    routed_bias: bool
    routed_bias_update_rate: float
    routed_scaling_factor: float
    norm_topk_prob: bool
    n_routing_groups: int
    topk_routing_group: int
    float32_gate_logits: bool
    use_random_routing: bool
    routing_record: str | os.PathLike[str]
    routing_replay: str | os.PathLike[str]
    load_balance_loss_weight: float
    moe_use_megatron_seq_aux_loss: bool
    log_moe_bias_norms: bool
    sparse_matmul: bool
    capacity_factor: float
    use_ring_of_experts: bool
    moe_quantize_combine_bwd_method: str | os.PathLike[str]
    ragged_buffer_factor: float
    ragged_drop_policy: str
    moe_dropless_fallback: str | None
    eval_ragged_buffer_factor: float
    log_required_ragged_buffer_factor: bool
    moe_log_max_load_ratio: bool
    retry_dropless_first_steps: int
    first_phase_ragged_buffer_factor: float
    num_moe_token_chunks: int
    num_moe_emb_chunks: int
    moe_dispatch_no_expert_sharding: bool
    shard_exp_on_fsdp: bool
    moe_fsdp_use_two_stage_all_gather: bool
    use_2d_fsdp_sharding: bool
    shard_embed_moe_on_fsdp: bool
    moe_quantize_token_all_gather: bool
    te_moe_block: bool
    te_gmm_quantization: str | os.PathLike[str]
    te_ep_overflow_check_every_n_steps: int
    use_lineage: bool
    expert_shard_attention_option: str
    use_batch_split_schedule: bool
    batch_split_factor: int
    megablox: bool
    use_custom_sort_vjp: bool
    use_ragged_sort: bool
    moe_chunk_barrier: bool
    float32_weight_sum: bool
    merge_gating_gmm: bool
    prefuse_moe_weights: bool
    fuse_expert_scales: bool
    moe_topk_before_ep_all_gather: bool
    moe_use_direct_token_gather: bool
    router_topk_matmul_vjp: bool
    defer_small_all_reduces: bool
    warmup_programs_in_init: bool
    ici_data_parallelism: int
    dcn_data_parallelism: int
    ici_fsdp_parallelism: int
    dcn_fsdp_parallelism: int
    ici_expert_parallelism: int
    dcn_expert_parallelism: int
    ici_tensor_parallelism: int
    dcn_tensor_parallelism: int
    ici_fsdp_transpose_parallelism: int
    dcn_fsdp_transpose_parallelism: int
    ici_context_parallelism: int
    dcn_context_parallelism: int
    ici_context_usp_ulysses_parallelism: int
    dcn_context_usp_ulysses_parallelism: int
    ici_context_autoregressive_parallelism: int
    dcn_context_autoregressive_parallelism: int
    ici_sequence_parallelism: int
    dcn_sequence_parallelism: int
    ici_tensor_sequence_parallelism: int
    dcn_tensor_sequence_parallelism: int
    ici_pipeline_parallelism: int
    dcn_pipeline_parallelism: int
    ici_autoregressive_parallelism: int
    dcn_autoregressive_parallelism: int
    ici_diloco_parallelism: int
    dcn_diloco_parallelism: int
    num_slices: int
    custom_mesh_and_rule: str | os.PathLike[str]
    mesh_axes: Sequence[str] | str
    logical_axis_rules: Sequence[Any] | str
    override_logical_axis_rules: bool
    data_sharding: Sequence[Any] | str
    input_data_sharding_logical_axes: Sequence[str] | str
    context_sharding: str | os.PathLike[str]
    ulysses_context_sharding: str | os.PathLike[str]
    custom_mesh_and_rule_for_eval: str | os.PathLike[str]
    shard_optimizer_over_data: bool
    dense_fsdp_use_two_stage_all_gather: bool
    overlap_communication: str
    shard_mode: str
    sharding_tolerance: float
    num_layers_per_pipeline_stage: int
    num_pipeline_repeats: int
    pipeline_parallel_layers: int
    num_pipeline_microbatches: int
    pipeline_schedule: str
    pipeline_delay_activation_forwarding: bool
    pipeline_fsdp_ag_once: bool
    pipeline_fsdp_ag_per_repeat: bool
    scan_pipeline_iterations: bool
    scan_pipeline_repeats: bool
    scan_layers_per_stage: bool
    set_remat_policy_on_pipeline_iterations: bool
    set_remat_policy_on_layers_per_stage: bool
    context_parallel_load_balance: bool
    context_parallel_strategy: str
    context_parallel_reorder_strategy: str | os.PathLike[str]
    enable_diloco: bool
    diloco_sync_period: int
    diloco_outer_lr: float
    diloco_outer_momentum: float
    enable_streaming_diloco: bool
    num_diloco_fragments: int | None
    use_sequential_layers: bool
    num_communication_overlapping_steps: int
    communication_overlapping_alpha: float
    remat_policy: str
    decoder_layer_input: str
    context: str
    mlpwi: str
    mlpwi_0: str
    mlpwi_1: str
    mlpwo: str
    moe_mlpwi_0: str
    moe_mlpwi_1: str
    moe_mlpwo: str
    moe_x_sorted: str
    query_proj: str
    key_proj: str
    value_proj: str
    kv_proj: str
    qkv_proj: str
    out_proj: str
    query_wa_proj: str
    kv_wa_proj: str
    mla_q: str
    mla_kv: str
    attention_out: str
    moe_routing_maps: str
    engram: str
    indexer_cutoff_threshold: str
    optimizer_memory_host_offload: bool
    parameter_memory_host_offload: bool
    weight_places: Sequence[str] | str
    scan_layers: bool
    param_scan_axis: int
    force_unroll: bool
    steps: int
    per_device_batch_size: float
    max_target_length: int
    z_loss_multiplier: float
    num_vocab_tiling: int
    vocab_tiling_ag_once: bool
    cast_logits_to_fp32: bool
    logits_dot_in_fp32: bool
    use_iota_embed: bool
    eval_interval: int
    eval_steps: int
    eval_start_step: int
    eval_per_device_batch_size: float
    target_eval_loss: float
    abort_on_nan_loss: bool
    abort_on_inf_loss: bool
    step_line_period: int
    log_period: int
    record_internal_nn_metrics: int
    reuse_example_batch: int
    enable_rampup_batch_size: bool
    per_device_batch_size_start: float
    per_device_batch_size_increment: float
    global_rampup_samples: int
    use_dpo: bool
    use_sft: bool
    sft_train_on_completion_only: bool
    sft_last_answer_only: bool
    sft_trust_messages: bool
    opt_type: str
    adam_b1: float
    adam_b2: float
    adam_eps: float
    adam_eps_root: float
    adam_weight_decay: float
    weight_decay_exclude: Sequence[str] | str
    adamw_mask: Sequence[str] | str
    mu_dtype: str
    grad_dtype: str
    gradient_clipping_threshold: float
    gradient_accumulation_steps: int
    muon_include_routers: bool
    muon_type: str
    muon_use_all_to_all: bool
    muon_beta: float
    muon_weight_decay: float
    muon_consistent_rms: float | None
    trainable_parameters_mask: Sequence[str] | str
    skip_step_on_spikes: bool
    skip_step_interval: int
    skip_step_scaling_factor: float
    max_consecutive_bad_steps: int
    weight_digest_interval: int
    learning_rate: float
    lr_schedule_type: str
    learning_rate_final_fraction: float
    warmup_steps_fraction: float
    learning_rate_schedule_steps: int
    wsd_decay_steps_fraction: float
    wsd_decay_style: str
    adapter: str | os.PathLike[str]
    adapter_scale: float
    lora_slots: int
    enable_lora: bool
    lora_rank: int
    lora_alpha: float
    lora_target: Sequence[str] | str
    lora_module_path: str | os.PathLike[str]
    lora_rank_pattern: Sequence[str] | str
    lora_alpha_pattern: Sequence[str] | str
    lora_use_rslora: bool
    lora_shared_gate_up: bool
    lora_init: str
    lora_restore_path: str | os.PathLike[str]
    hf_lora_adapter_path: str | os.PathLike[str]
    lora_input_adapters_path: str | os.PathLike[str]
    lora_weight_qtype: str | os.PathLike[str] | None
    lora_tile_size: int | None
    dpo_algo: str
    dpo_beta: float
    dpo_label_smoothing: float
    orpo_lambda: float
    max_prompt_length: int | None
    dataset_type: str
    data_path: str | os.PathLike[str]
    eval_data_path: str | os.PathLike[str]
    data_mixture_weights: Sequence[str] | str
    train_data_columns: Sequence[str] | str
    records_without_text: str
    eval_fraction: float
    tokenizer_type: str
    tokenizer_path: str | os.PathLike[str]
    packing: bool
    use_truncation: bool
    max_segments_per_seq: int
    num_epoch: int
    add_bos: bool
    add_eos: bool
    enable_data_shuffling: bool
    data_shuffle_seed: int
    tokenize_train_data: bool
    tokenize_eval_data: bool
    generate_padding_batch_train: bool
    generate_padding_batch_eval: bool
    expansion_factor_real_data: float
    use_chat_template: bool
    chat_template: str | os.PathLike[str]
    dataset_path: str | os.PathLike[str]
    dataset_name: str | os.PathLike[str]
    eval_dataset_name: str | os.PathLike[str]
    train_split: str | os.PathLike[str]
    eval_split: str | os.PathLike[str]
    hf_path: str | os.PathLike[str]
    hf_name: str | os.PathLike[str]
    hf_data_dir: str | os.PathLike[str]
    hf_train_files: str | os.PathLike[str]
    hf_eval_split: str | os.PathLike[str]
    hf_eval_files: str | os.PathLike[str]
    hf_access_token: str | os.PathLike[str]
    grain_train_files: str | os.PathLike[str]
    grain_eval_files: str | os.PathLike[str]
    grain_train_mixture_config_path: str | os.PathLike[str]
    grain_file_type: str | os.PathLike[str]
    grain_packing_type: str | os.PathLike[str]
    grain_worker_count: int
    grain_per_worker_buffer_size: int
    grain_num_threads: int
    grain_prefetch_buffer_size: int
    grain_worker_count_eval: int
    grain_per_worker_buffer_size_eval: int
    grain_ram_budget_mb: int
    grain_num_threads_eval: int
    grain_prefetch_buffer_size_eval: int
    grain_data_source_max_workers: int
    grain_shuffle_buffer_size: int
    grain_use_elastic_iterator: bool
    olmo_index_path: str | os.PathLike[str]
    olmo_path_remap_from: str | os.PathLike[str]
    olmo_path_remap_to: str | os.PathLike[str]
    olmo_apply_ngram_filter: bool
    colocated_python_data_input: bool
    max_corpus_chars: int
    grain_index_storage_option: str | os.PathLike[str] | None
    eval_data_columns: Sequence[str] | str
    mmap_eod_id: int
    mmap_npy_split: str | os.PathLike[str]
    mmap_split_sentences: bool
    eod_mask_loss: bool
    reset_attention_mask: bool
    packing_max_segments_per_sample: int
    blend_cache_dir: str | os.PathLike[str]
    blend_index_dir: str | os.PathLike[str]
    use_stream_chunking: str | os.PathLike[str] | None
    train_interleave_cycle_length: int
    train_shard_in_read: bool
    use_gather_mosaic_kernel: bool
    ragged_gather_fallback: bool
    ragged_gather_reduce_fallback: bool
    ragged_gather_cost_estimate_flops: int
    ragged_gather_reduce_cost_estimate_flops: int
    ragged_gather_cost_estimate_bytes_accessed: int
    ragged_gather_reduce_cost_estimate_bytes_accessed: int
    wi_tile_fwd_batch_seq: int
    wi_tile_fwd_embed_dim: int
    wi_tile_fwd_mlp_dim: int
    wi_tile_dlhs_batch_seq: int
    wi_tile_dlhs_embed_dim: int
    wi_tile_dlhs_mlp_dim: int
    wi_tile_drhs_batch_seq: int
    wi_tile_drhs_embed_dim: int
    wi_tile_drhs_mlp_dim: int
    wo_tile_fwd_batch_seq: int
    wo_tile_fwd_embed_dim: int
    wo_tile_fwd_mlp_dim: int
    wo_tile_dlhs_batch_seq: int
    wo_tile_dlhs_embed_dim: int
    wo_tile_dlhs_mlp_dim: int
    wo_tile_drhs_batch_seq: int
    wo_tile_drhs_embed_dim: int
    wo_tile_drhs_mlp_dim: int
    use_tokamax_gmm: bool
    use_gmm_v2: bool
    use_gmm_v2_heuristic_tiling: bool
    eval_wi_tile_fwd_batch_seq: int
    eval_wi_tile_fwd_embed_dim: int
    eval_wi_tile_fwd_mlp_dim: int
    eval_wo_tile_fwd_batch_seq: int
    eval_wo_tile_fwd_embed_dim: int
    eval_wo_tile_fwd_mlp_dim: int
    padded_base_moe_mlp_dim: str | os.PathLike[str] | None
    moe_pin_sparse_core_all_gathers: bool
    moe_pin_sparse_core_ep_all_gathers: bool
    moe_pin_sparse_core_fsdp_all_gathers: bool
    moe_pin_sparse_core_fsdp_all_gathers_fwd_only: bool
    moe_ep_all_gather_sparse_core_id: int
    moe_fsdp_all_gather_sparse_core_id: int
    ragged_sort_use_single_sparsecore: bool
    causal_block_size: int
    ragged_block_size: int
    sa_block_q: int
    sa_block_kv: int
    sa_block_kv_compute: int
    sa_block_q_dkv: int
    sa_block_kv_dkv: int
    sa_block_kv_dkv_compute: int
    sa_block_q_dq: int
    sa_block_kv_dq: int
    sa_use_fused_bwd_kernel: bool
    sa_bwd_dkv_megacore: bool
    sa_q_layout: str | os.PathLike[str]
    sa_k_layout: str | os.PathLike[str]
    sa_v_layout: str | os.PathLike[str]
    use_splash_scheduler: bool
    ring_scan_unroll: int
    sa_fuse_reciprocal: bool
    sa_use_base2_exp: bool
    local_sa_block_q: str | os.PathLike[str] | None
    local_sa_block_kv: str | os.PathLike[str] | None
    local_sa_block_kv_compute: str | os.PathLike[str] | None
    local_sa_block_q_dkv: str | os.PathLike[str] | None
    local_sa_block_kv_dkv: str | os.PathLike[str] | None
    local_sa_block_kv_dkv_compute: str | os.PathLike[str] | None
    local_sa_block_q_dq: str | os.PathLike[str] | None
    local_sa_block_kv_dq: str | os.PathLike[str] | None
    local_sa_use_fused_bwd_kernel: str | os.PathLike[str] | None
    local_sa_q_layout: str | os.PathLike[str] | None
    local_sa_k_layout: str | os.PathLike[str] | None
    local_sa_v_layout: str | os.PathLike[str] | None
    local_use_splash_scheduler: str | os.PathLike[str] | None
    local_sa_fuse_reciprocal: str | os.PathLike[str] | None
    local_sa_use_base2_exp: str | os.PathLike[str] | None
    experimental_sa_quant_q_fp8: bool
    experimental_sa_quant_k_fp8: bool
    use_max_logit_estimate: int
    cost_estimate_flops_fwd: int
    cost_estimate_flops_bwd: int
    dq_reduction_steps: int
    use_tokamax_splash: bool
    use_jax_splash: bool
    force_q_layout: bool
    eval_sa_block_q: int
    eval_sa_block_kv: int
    eval_sa_block_kv_compute: int
    eval_sa_q_layout: str | os.PathLike[str]
    eval_sa_k_layout: str | os.PathLike[str]
    eval_sa_v_layout: str | os.PathLike[str]
    eval_local_sa_block_q: str | os.PathLike[str] | None
    eval_local_sa_block_kv: str | os.PathLike[str] | None
    eval_local_sa_block_kv_compute: str | os.PathLike[str] | None
    eval_local_sa_q_layout: str | os.PathLike[str] | None
    eval_local_sa_k_layout: str | os.PathLike[str] | None
    eval_local_sa_v_layout: str | os.PathLike[str] | None
    use_csa_streamindex_kernel: bool
    use_mhc_pallas_kernel: bool
    mhc_pallas_kernel_fwd_block_size: int
    mhc_pallas_kernel_bwd_block_size: int
    mhc_pallas_kernel_bwd_feature_block_size: int
    replicate_quant_scale: bool
    quant_cfg_path: str | os.PathLike[str]
    save_quantized_params_path: str | os.PathLike[str]
    use_qwix_quantization: bool
    use_manual_quantization: bool
    weight_quantization_calibration_method: str | os.PathLike[str]
    act_quantization_calibration_method: str | os.PathLike[str]
    bwd_quantization_calibration_method: str | os.PathLike[str]
    drhs_grad_quantization_calibration_method: str | os.PathLike[str] | None
    logits_proj_quant_calibration_method: str | os.PathLike[str]
    quantize_logits_proj: bool
    quantize_mtp: bool
    quantize_router_proj: bool
    quantization_local_shard_count: int
    weight_sparsity_update_step: int
    weight_sparsity_start_step: int
    unquantized_modules: Sequence[Any] | str
    weight_block_size: str | os.PathLike[str] | None
    constant_bound_config: str | os.PathLike[str]
    matmul_precision: str | os.PathLike[str]
    te_comm_gemm_overlap: str | os.PathLike[str]
    jax_cache_dir: str | os.PathLike[str]
    hardware: str | os.PathLike[str]
    internal_compile: bool
    internal_compile_num_devices: int
    compile_xla_flags: str | os.PathLike[str]
    check_vma: bool
    max_inflight_computations: int
    jax_distributed_initialization_timeout: int
    jax_debug_log_modules: str | os.PathLike[str]
    skip_jax_distributed_system: bool
    write_estimator_result: bool
    max_checkify: bool
    debug_sharding: bool
    enable_single_controller: bool
    custom_mesh: str | os.PathLike[str]
    allow_split_physical_axes: bool
    optimize_mesh_for_tpu_v6e: bool
    shardy: bool
    remove_size_one_mesh_axis_from_type: bool
    subslice_shape: str | os.PathLike[str]
    enable_nnx: bool
    pure_nnx_decoder: bool
    pure_nnx: bool
    enable_continuous_checkpointing: bool
    enable_single_replica_ckpt_restoring: bool
    checkpoint_todelete_subdir: str | os.PathLike[str] | None
    checkpoint_todelete_full_path: str | os.PathLike[str] | None
    checkpoint_storage_target_data_file_size_bytes: int
    checkpoint_storage_use_ocdbt: bool
    checkpoint_storage_use_zarr3: bool
    checkpoint_storage_concurrent_gb: int
    checkpoint_storage_device_host_concurrent_gb: int
    use_replicator_service: bool
    replicator_backup_interval_minutes: int
    load_checkpoint_only_once: bool
    enable_orbax_v1: bool
    checkpoint_conversion_fn: str | os.PathLike[str]
    source_checkpoint_layout: str | os.PathLike[str]
    colocated_python_checkpointing: bool
    enable_autocheckpoint: bool
    enable_multi_tier_checkpointing: bool
    multi_tier_checkpointing_backup_interval_minutes: str | os.PathLike[str] | None
    multi_tier_checkpointing_backup_interval_steps: str | os.PathLike[str] | None
    mtc_data_parallelism: int
    enable_emergency_checkpoint: bool
    local_checkpoint_directory: str | os.PathLike[str]
    local_checkpoint_period: int
    enable_checkpoint_cloud_logger: bool
    standalone_checkpointer_start_from_checkpoint: bool
    standalone_checkpointer_enable_restore_in_loop: bool
    standalone_checkpointer_per_step_interval: float
    standalone_checkpointer_drop_page_cache_before_restore: bool
    enable_mllog: bool
    mllog_file: str | os.PathLike[str]
    log_step_diagnostics: bool
    block_state_before_run_start: bool
    warm_input_reshard_before_run_start: bool
    upload_all_profiler_results: bool
    hide_profiler_step_metric: bool
    profile_cleanly: bool
    profile_periodically_period: int
    enable_tpu_profiling_options: bool
    tpu_num_chips_to_profile_per_task: int
    tpu_num_sparse_core_tiles_to_trace: int
    tpu_num_sparse_cores_to_trace: int
    managed_mldiagnostics: bool
    managed_mldiagnostics_on_demand_profiling: bool
    managed_mldiagnostics_run_group: str | os.PathLike[str]
    managed_mldiagnostics_region: str | os.PathLike[str]
    managed_mldiagnostics_storage_path: str | os.PathLike[str]
    enable_jax_profiler: bool
    jax_profiler_port: int
    xprof_tpu_power_trace_level: int
    xprof_e2e_enable_fw_throttle_event: bool
    xprof_e2e_enable_fw_power_level_event: bool
    xprof_e2e_enable_fw_thermal_event: bool
    profile_power_events: bool
    dump_hlo: bool
    dump_step: int
    dump_hlo_local_dir: str | os.PathLike[str]
    dump_hlo_delete_local_after: bool
    dump_hlo_gcs_dir: str | os.PathLike[str]
    dump_hlo_local_module_name: str | os.PathLike[str]
    dump_hlo_module_name: str | os.PathLike[str]
    dump_hlo_xla_flags: str | os.PathLike[str]
    dump_hlo_upload_all: bool
    dump_jaxpr: bool
    dump_jaxpr_local_dir: str | os.PathLike[str]
    dump_jaxpr_delete_local_after: bool
    dump_jaxpr_gcs_dir: str | os.PathLike[str]
    dcn_bandwidth_limit: str | os.PathLike[str]
    dcn_bandwidth_burst: str | os.PathLike[str]
    dcn_bandwidth_latency: str | os.PathLike[str]
    dcn_bandwidth_interface: str | os.PathLike[str]
    gcs_metrics: bool
    enable_wandb: bool
    wandb_project_name: str | os.PathLike[str]
    wandb_run_name: str | os.PathLike[str]
    save_config_to_gcs: bool
    enable_goodput_recording: bool
    monitor_goodput: bool
    goodput_upload_interval_seconds: int
    goodput_job_name: str | os.PathLike[str]
    enable_pathways_goodput: bool
    monitor_step_time_deviation: bool
    step_deviation_interval_seconds: int
    enable_gcp_goodput_metrics: bool
    enable_gcp_step_deviation_metrics: bool
    report_heartbeat_metric_for_gcp_monitoring: bool
    heartbeat_reporting_interval_in_seconds: int
    report_performance_metric_for_gcp_monitoring: bool
    use_vertex_tensorboard: bool
    vertex_tensorboard_project: str | os.PathLike[str]
    vertex_tensorboard_region: str | os.PathLike[str]
    prometheus_port: int
    elastic_enabled: bool
    elastic_backup_kind: str | os.PathLike[str]
    elastic_timeout_seconds: int
    elastic_max_retries: int
    elastic_min_slice_count: int
    default_prompt: str | os.PathLike[str]
    load_from_prefill_dir: bool
    prefill_cache_dir: str | os.PathLike[str]
    inference_microbenchmark_prefill_lengths: str | os.PathLike[str]
    inference_microbenchmark_stages: str | os.PathLike[str]
    inference_microbenchmark_loop_iters: int
    inference_microbenchmark_log_file_path: str | os.PathLike[str]
    inference_microbenchmark_num_samples: Sequence[Any] | str
    inference_metadata_file: str | os.PathLike[str]
    inference_server: str | os.PathLike[str]
    prefill_slice: str | os.PathLike[str]
    generate_slice: str | os.PathLike[str]
    inference_benchmark_test: bool
    enable_model_warmup: bool
    enable_llm_inference_pool: bool
    multi_sampling: bool
    stack_prefill_result_cache: bool
    prefill_cache_axis_order: str | os.PathLike[str]
    ar_cache_axis_order: str | os.PathLike[str]
    compute_axis_order: str | os.PathLike[str]
    reshape_q: bool
    prefix_caching_hbm_byte: int
    prefix_caching_dram_byte: int
    train_image_column: str | os.PathLike[str]
    eval_image_column: str | os.PathLike[str]
    freeze_vision_encoder_params: bool
    dtype_mm: str | os.PathLike[str]
    remat_policy_for_vit: str | os.PathLike[str]
    image_size_for_vit: int
    image_path: str | os.PathLike[str]
    video_path: str | os.PathLike[str]
    image_placeholder: str | os.PathLike[str]
    video_placeholder: str | os.PathLike[str]
    video_max_grid_t: str | os.PathLike[str] | None
    video_max_grid_h: str | os.PathLike[str] | None
    video_max_grid_w: str | os.PathLike[str] | None
    posemb_type_for_vit: str | os.PathLike[str]
    max_num_images_per_example: int
    vision_output_length: int
    hidden_size_for_vit: int
    intermediate_size_for_vit: int
    num_attention_heads_for_vit: int
    num_channels_for_vit: int
    tile_size_for_vit: int
    patch_size_for_vit: int
    conv_stride_for_vit: int
    num_hidden_layers_for_vit: int
    projector_input_dim_for_vit: int
    projector_output_dim_for_vit: int
    rope_theta_for_vit: int
    vision_output_dim_for_vit: int
    pixel_shuffle_ratio_for_vit: float
    projector_dropout_for_vit: float
    spatial_merge_size_for_vit: int
    out_hidden_size_for_vit: int
    temporal_patch_size_for_vit: int
    num_position_embeddings_for_vit: int
    deepstack_visual_indexes_for_vit: Sequence[Any] | str
    mrope_section: Sequence[Any] | str
    position_id_per_seconds: int
    attention_for_vit: str | os.PathLike[str]
    vision_encoder_block: str | os.PathLike[str]
    vision_projector_type: str | os.PathLike[str]
    vision_connector_hidden_size: int
    vision_connector_num_layers: int
    vision_connector_activation: str | os.PathLike[str]
    vision_connector_use_bias: bool
    freeze_audio_encoder_params: bool
    audio_path: str | os.PathLike[str]
    audio_placeholder: str | os.PathLike[str]
    use_audio_in_video: bool
    d_model_for_audio: int
    encoder_attention_heads_for_audio: int
    encoder_ffn_dim_for_audio: int
    encoder_layers_for_audio: int
    attention_dropout_for_audio: float
    activation_dropout_for_audio: float
    activation_function_for_audio: str | os.PathLike[str]
    num_mel_bins_for_audio: int
    max_source_positions_for_audio: int
    scale_embedding_for_audio: bool
    n_window_for_audio: int
    n_window_infer_for_audio: int
    conv_chunksize_for_audio: int
    downsample_hidden_size_for_audio: int
    output_dim_for_audio: int
    num_conv_layers_for_audio: int
    max_timescale_for_audio: float
    max_sample_len_for_audio: int
    block_diffusion_mask_id: int
    block_diffusion_min_noise: float
    block_diffusion_logit_alignment: str | os.PathLike[str]
    block_diffusion_canvas_policy: str | os.PathLike[str]
    use_grpo: bool
    use_agentic_rollout: bool
    learn_to_init_mode: bool
    use_tunix_gradient_accumulation: bool
    algo: str | os.PathLike[str]
    rl: Sequence[Any] | str
    cluster: Sequence[Any] | str
    dataset: Sequence[Any] | str
    evaluation: Sequence[Any] | str
    reward: Sequence[Any] | str
    special_tokens: Sequence[Any] | str
    vllm: Sequence[Any] | str
    formatting_func_path: str | os.PathLike[str]
    formatting_func_kwargs: Sequence[Any] | str
    loss_algo: str | os.PathLike[str]
    loss_agg_mode: str | os.PathLike[str]
    grpo_beta: float
    grpo_epsilon: float
    epsilon_high: str | os.PathLike[str] | None
    force_on_policy_ratio: bool
    use_rollout_logps: bool
    log_sampler_trainer_agreement: bool
    num_generations: int
    num_iterations: int
    max_concurrency: int
    off_policy_steps: int
    reshard_chunk_size: str | os.PathLike[str] | None
    batch_size: int
    num_batches: int
    num_test_batches: int
    test_batch_start_index: int
    train_fraction: float
    train_micro_batch_size: int
    rollout_micro_batch_size: int
    max_seq_token_per_tpu: int
    hf_subset: str | os.PathLike[str] | None
    dataset_processor_path: str | os.PathLike[str]
    data_template_path: str | os.PathLike[str]
    eval_batch_size: int
    eval_mode: str | os.PathLike[str]
    eval_sampling_strategy: str | os.PathLike[str]
    eval_corr_lst: bool
    eval_make_lst: bool
    num_eval_passes: int
    generation_configs: Sequence[Any] | str
    reward_functions: str | os.PathLike[str]
    reward_functions_path: str | os.PathLike[str]
    reward_num_workers: int
    reward_worker_timeout_seconds: float
    reward_exact_answer: float
    reward_exact_format_match: float
    reward_partial_format_match: float
    reward_white_space_format_match: float
    reward_ratio_guess_to_answer_high: float
    reward_ratio_guess_to_answer_low: float
    penalty_incorrect_answer: float
    penalty_incorrect_format: float
    math_verify_num_procs: str | os.PathLike[str] | None
    math_verify_timeout: int
    reasoning_start_token: str | os.PathLike[str]
    reasoning_end_token: str | os.PathLike[str]
    reasoning_start_token_in_prompt: bool
    solution_start_token: str | os.PathLike[str]
    solution_end_token: str | os.PathLike[str]
    debug: bool
    enable_tunix_perf_metrics: bool
    chips_per_vm: int
    num_trainer_slices: int
    num_samplers_slices: int
    trainer_devices_fraction: float
    sampler_devices_fraction: float
    rollout_data_parallelism: int
    rollout_tensor_parallelism: int
    rollout_expert_parallelism: int
    inference_devices_per_replica: int
    inference_replicas: int
    inference_rollouts: int
    use_pathways: bool
    use_pathways_reshard: bool
    gc_collect_after_weight_sync: bool
    rollout_backend: str | os.PathLike[str]
    use_raiden_ffi: str | os.PathLike[str] | None
    use_weight_converter: bool
    use_standalone_converter: bool
    weight_sync_debug: bool
    log_weight_sync_time: bool
    debug_converter: bool
    gcs_debug_path: str | os.PathLike[str]
    vllm_hf_config_path: str | os.PathLike[str]
    vllm_hf_overrides: Sequence[Any] | str
    vllm_additional_config: Sequence[Any] | str
    vllm_load_format: str | os.PathLike[str]
    vllm_block_size: str | os.PathLike[str] | None
    kv_tp_size: int
    moe_mlp_tp_size: int
    async_scheduling: bool
    enable_dp_attention: bool
    enable_expert_parallel: bool
    free_kv_cache_during_weight_sync: bool
    hbm_utilization_vllm: float
    kv_cache_buffer: int
    max_num_batched_tokens: str | os.PathLike[str] | None
    max_num_seqs: str | os.PathLike[str] | None
    stop_strings: Sequence[Any] | str
    swap_space_vllm_gb: int
    gdn_mamba_block_size: int
    distill_alpha: float
    distill_temperature: float
    distill_beta: float
    distill_feature_loss_type: str | os.PathLike[str]
    distill_layer_indices: str | os.PathLike[str] | None
    distill_alpha_end: str | os.PathLike[str] | None
    distill_alpha_schedule: str | os.PathLike[str]
    distill_temperature_end: str | os.PathLike[str] | None
    distill_temperature_schedule: str | os.PathLike[str]
    distill_beta_end: str | os.PathLike[str] | None
    distill_beta_schedule: str | os.PathLike[str]
    distill_student_weights_share_map: Sequence[Any] | str
    distill_weights_copy_map: Sequence[Any] | str
    student_overrides: Sequence[Any] | str
    student_params_to_update: Sequence[Any] | str
    teacher_overrides: Sequence[Any] | str
    offline_data_dir: str | os.PathLike[str] | None
    attn_module_name: str | os.PathLike[str] | None
    lti_layer_indices: Sequence[Any] | str
    lti_use_general_linear_map: bool
    emb_dim: str | os.PathLike[str] | None
    mlp_dim: str | os.PathLike[str] | None
    moe_mlp_dim: str | os.PathLike[str] | None
    num_decoder_layers: str | os.PathLike[str] | None
    num_query_heads: str | os.PathLike[str] | None
    num_kv_heads: str | os.PathLike[str] | None
    ici_parallelism: str | os.PathLike[str] | None
    dcn_parallelism: str | os.PathLike[str] | None
    num_target_devices: str | os.PathLike[str] | None
    num_diloco_replicas: str | os.PathLike[str] | None
    using_pipeline_parallelism: str | os.PathLike[str] | None
    global_batch_size_to_load: str | os.PathLike[str] | None
    global_batch_size_to_train_on: str | os.PathLike[str] | None
    micro_batch_size_to_train_on: str | os.PathLike[str] | None
    global_batch_size_to_load_eval: str | os.PathLike[str] | None
    global_batch_size_to_eval_on: str | os.PathLike[str] | None
    micro_batch_size_to_eval_on: str | os.PathLike[str] | None
    global_batch_size_to_load_start: str | os.PathLike[str] | None
    global_batch_size_to_load_increment: str | os.PathLike[str] | None
    rampup_samples_per_increment_to_load: str | os.PathLike[str] | None
    rampup_end_step: str | os.PathLike[str] | None
    tensors_on_device: str | os.PathLike[str] | None
    tensors_to_offload: str | os.PathLike[str] | None
    logical_axis_rules_for_eval: str | os.PathLike[str] | None
    checkpoint_dir: str | os.PathLike[str] | None
    metrics_dir: str | os.PathLike[str] | None
    tensorboard_dir: str | os.PathLike[str] | None
    managed_mldiagnostics_dir: str | os.PathLike[str] | None

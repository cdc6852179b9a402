"""Tiny random models of every family: transformers -> here -> transformers, and the logits of all three.

    python3 -m venv ~/peers && ~/peers/bin/pip install -r tests/peers/requirements.txt
    ~/peers/bin/python tests/peers/hub_round_trip.py build/release/switchyard

A model is made and saved by transformers, converted to a checkpoint and back (in several shards), and loaded by transformers
again. In float32: tensors must come back bit for bit, transformers' logits before and after must be the same, and ours
(`convert --verify --save-logits`) within 2e-5 of the largest (1e-4 with gated delta nets). Error: max|a - b| / max|b|.

Then models that no config.json states as they are (convert/hub_form.h): trained here for three steps, exported with other
weights, loaded by transformers and converted back. Its logits must be within 2e-5 of ours, which `--verify` holds
against those of the model as it was trained. And weights in 8 bits with scales (checkpoint/block_scaled.h), which must
become the bfloat16 that torch makes of them.
"""

import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file

TOLERANCE = 2e-5
# The norm after a gated delta net makes a head's context larger by up to 1 / sqrt(epsilon), 316 here, and what is rounded
# of the queries and keys with it: much, where a query is nearly orthogonal to the keys before it.
DELTA_TOLERANCE = 1e-4

GROUPED = dict(vocab_size=256, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
               num_key_value_heads=2, max_position_embeddings=512, rms_norm_eps=1e-5)
LATENT = dict(vocab_size=256, hidden_size=64, intermediate_size=128, moe_intermediate_size=16, num_hidden_layers=3,
              num_attention_heads=4, num_key_value_heads=4, n_shared_experts=1, n_routed_experts=16, kv_lora_rank=32,
              q_lora_rank=40, qk_rope_head_dim=16, v_head_dim=20, qk_nope_head_dim=24, num_experts_per_tok=4,
              first_k_dense_replace=1, max_position_embeddings=512, rms_norm_eps=1e-6)
# So many heads that no score is 0, which relu makes of a few: of equal scores each side may choose another.
INDEXED = dict(index_n_heads=16, index_head_dim=24, index_topk=8)
LLAMA3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0,
            original_max_position_embeddings=128)
MSCALE = dict(mscale=0.707, mscale_all_dim=0.707)
MOE = dict(moe_intermediate_size=32, num_experts=8, num_experts_per_tok=2)
GLM = dict(head_dim=24, moe_intermediate_size=32, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=2,
           first_k_dense_replace=1, num_hidden_layers=3, routed_scaling_factor=2.5, norm_topk_prob=True,
           rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5))
LLAMA4 = dict(head_dim=24, num_hidden_layers=4, intermediate_size=32, intermediate_size_mlp=96, num_local_experts=8,
              num_experts_per_tok=1, attention_chunk_size=8, floor_scale=8)
DELTA = dict(GROUPED, **MOE, head_dim=32, num_hidden_layers=4, shared_expert_intermediate_size=24, norm_topk_prob=True,
             linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=12,
             rope_parameters=dict(rope_type="default", rope_theta=1e7, partial_rotary_factor=0.25))

HY3 = dict(head_dim=24, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=32)
ERNIE = dict(moe_num_experts=8, moe_k=3, moe_intermediate_size=32, tie_word_embeddings=True)
# Layers with a window and without.
WORDS = dict(num_hidden_layers=3, sliding_window=8, layer_types=["full_attention", "sliding_attention", "full_attention"],
             mlp_layer_types=["dense", "sparse", "sparse"])
MIMO = dict(WORDS, head_dim=24, v_head_dim=20, n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=32,
            n_group=1, topk_group=1,
            rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=5e6, partial_rotary_factor=0.5),
                                 sliding_attention=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.25)))
LAGUNA = dict(WORDS, head_dim=24, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=32,
              shared_expert_intermediate_size=48, num_attention_heads_per_layer=[4, 6, 4], moe_routed_scaling_factor=2.5,
              rope_parameters=dict(full_attention=dict(YARN, partial_rotary_factor=0.5),
                                   sliding_attention=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=1.0)))
DENSE_DELTA = {key: value for key, value in DELTA.items() if "expert" not in key and key not in ("moe_intermediate_size", "norm_topk_prob")}

CASES = {
    "llama": ("LlamaConfig", GROUPED),
    "llama tied, 3.1 rope": ("LlamaConfig", {**GROUPED, "head_dim": 24, "tie_word_embeddings": True, "rope_parameters": LLAMA3}),
    "mistral": ("MistralConfig", {**GROUPED, "sliding_window": None}),
    "qwen3": ("Qwen3Config", {**GROUPED, "head_dim": 24}),
    "qwen3 tied, yarn": ("Qwen3Config", {**GROUPED, "head_dim": 24, "tie_word_embeddings": True, "rope_parameters": YARN}),
    "mixtral": ("MixtralConfig", {**GROUPED, "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None}),
    "qwen3_moe": ("Qwen3MoeConfig", {**GROUPED, **MOE, "head_dim": 24, "norm_topk_prob": True}),
    "qwen3_moe, not normalised": ("Qwen3MoeConfig", {**GROUPED, **MOE, "head_dim": 24, "norm_topk_prob": False}),
    "deepseek_v2": ("DeepseekV2Config", {**LATENT, "q_lora_rank": None, "topk_method": "greedy", "n_group": 1, "topk_group": 1,
                                         "routed_scaling_factor": 1.0, "norm_topk_prob": False}),
    "deepseek_v2, groups, yarn": ("DeepseekV2Config", {**LATENT, "topk_method": "group_limited_greedy", "n_group": 4,
                                                       "topk_group": 2, "routed_scaling_factor": 16.0, "norm_topk_prob": False,
                                                       "rope_parameters": {**YARN, **MSCALE}}),
    "deepseek_v3": ("DeepseekV3Config", {**LATENT, "n_group": 1, "topk_group": 1}),
    "deepseek_v3, groups, yarn": ("DeepseekV3Config", {**LATENT, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5,
                                                       "rope_parameters": {**YARN, **MSCALE}}),
    "deepseek_v3, rotary halves": ("DeepseekV3Config", {**LATENT, "n_group": 1, "topk_group": 1,
                                                        "rope_interleave": False, "first_k_dense_replace": 0}),
    "llama with biases": ("LlamaConfig", {**GROUPED, "attention_bias": True}),
    "qwen3 with biases": ("Qwen3Config", {**GROUPED, "head_dim": 24, "attention_bias": True}),
    "qwen3_moe, some layers dense": ("Qwen3MoeConfig", {**GROUPED, **MOE, "num_hidden_layers": 4, "head_dim": 24,
                                                        "decoder_sparse_step": 2, "mlp_only_layers": [3]}),
    "deepseek_v3 with biases": ("DeepseekV3Config", {**LATENT, "n_group": 1, "topk_group": 1, "attention_bias": True}),
    "deepseek_v32, groups, yarn": ("DeepseekV32Config", {**LATENT, **INDEXED, "n_group": 4, "topk_group": 2,
                                                         "rope_parameters": {**YARN, **MSCALE}}),
    "glm_moe_dsa": ("GlmMoeDsaConfig", {**LATENT, **INDEXED, "rms_norm_eps": 1e-5, "n_group": 1, "topk_group": 1,
                                        "rope_parameters": dict(rope_type="default", rope_theta=1e6)}),
    "glm4_moe": ("Glm4MoeConfig", {**GROUPED, **GLM, "attention_bias": True, "use_qk_norm": True}),
    "glm4_moe, no norms, no biases": ("Glm4MoeConfig", {**GROUPED, **GLM, "n_group": 4, "topk_group": 2}),
    "glm4_moe_lite": ("Glm4MoeLiteConfig", {**LATENT, "rms_norm_eps": 1e-5, "attention_bias": True,
                                            "mlp_layer_types": ["sparse", "dense", "sparse"]}),
    "minimax_m2": ("MiniMaxM2Config", {**GROUPED, "head_dim": 24, "num_local_experts": 8, "num_experts_per_tok": 3,
                                       "rope_parameters": dict(rope_type="default", rope_theta=1e4,
                                                               partial_rotary_factor=0.5)}),
    "mistral, windows": ("MistralConfig", {**GROUPED, "sliding_window": 8}),
    "qwen3, windows": ("Qwen3Config", {**GROUPED, "head_dim": 24, "use_sliding_window": True, "sliding_window": 8,
                                       "max_window_layers": 1}),
    "gpt_oss": ("GptOssConfig", {**GROUPED, "head_dim": 24, "intermediate_size": 32, "num_local_experts": 8,
                                 "num_experts_per_tok": 3, "sliding_window": 8, "num_hidden_layers": 3,
                                 "layer_types": ["full_attention", "sliding_attention", "full_attention"],
                                 "rope_parameters": dict(rope_type="yarn", rope_theta=150000.0, factor=4.0, beta_fast=32.0,
                                                         beta_slow=1.0, original_max_position_embeddings=128,
                                                         truncate=False)}),
    "qwen2": ("Qwen2Config", GROUPED),
    "qwen2 tied, windows": ("Qwen2Config", {**GROUPED, "tie_word_embeddings": True, "use_sliding_window": True,
                                            "sliding_window": 8, "max_window_layers": 1}),
    "qwen2_moe": ("Qwen2MoeConfig", {**GROUPED, **MOE, "num_hidden_layers": 3, "mlp_only_layers": [1],
                                     "shared_expert_intermediate_size": 48, "norm_topk_prob": False}),
    "qwen2_moe, normalised, no biases, windows": ("Qwen2MoeConfig", {
        **GROUPED, **MOE, "num_hidden_layers": 4, "decoder_sparse_step": 2, "shared_expert_intermediate_size": 48,
        "norm_topk_prob": True, "qkv_bias": False, "use_sliding_window": True, "sliding_window": 8,
        "max_window_layers": 3}),
    "olmoe, clamped": ("OlmoeConfig", {**GROUPED, "intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 3,
                                       "norm_topk_prob": True, "clip_qkv": 0.5}),
    "llama4_text, other layers without rotation": ("Llama4TextConfig", {
        **GROUPED, **LLAMA4, "interleave_moe_layer_step": 2, "no_rope_layers": [0, 1, 1, 0]}),
    "olmoe": ("OlmoeConfig", {**GROUPED, "intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 3,
                              "norm_topk_prob": False}),
    "llama4_text": ("Llama4TextConfig", {**GROUPED, **LLAMA4, "interleave_moe_layer_step": 2,
                                         "rope_parameters": {**LLAMA3, "high_freq_factor": 1.0}}),
    "llama4_text, no norms, three experts": ("Llama4TextConfig", {**GROUPED, **LLAMA4, "moe_layers": [0, 1, 3],
                                                                  "num_experts_per_tok": 3, "use_qk_norm": False,
                                                                  "no_rope_layers": [1, 0, 1, 0],
                                                                  "attn_temperature_tuning": False}),
    "qwen3_next": ("Qwen3NextConfig", DELTA),
    "qwen3_next, other layers": ("Qwen3NextConfig", {**DELTA, "num_hidden_layers": 3, "mlp_only_layers": [1],
                                                     "layer_types": ["full_attention", "linear_attention", "linear_attention"]}),
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", {**DELTA, "intermediate_size": None}),
    "qwen3_5": ("Qwen3_5TextConfig", DENSE_DELTA),
    "hy_v3": ("HYV3Config", {**GROUPED, **HY3}),
    "hy_v3, other layers": ("HYV3Config", {**GROUPED, **HY3, "num_hidden_layers": 3, "num_shared_experts": 2,
                                           "mlp_layer_types": ["sparse", "dense", "sparse"]}),
    "ernie4_5_moe": ("Ernie4_5_MoeConfig", {**GROUPED, **ERNIE}),
    "ernie4_5_moe, every other layer": ("Ernie4_5_MoeConfig", {**GROUPED, **ERNIE, "num_hidden_layers": 4,
                                                               "moe_layer_interval": 2, "tie_word_embeddings": False}),
    "mistral4": ("Mistral4Config", {**LATENT, "n_group": 1, "topk_group": 1, "rope_parameters": {
        **YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 8, "llama_4_scaling_beta": 0.1}}),
    "mistral4, groups": ("Mistral4Config", {**LATENT, "n_group": 4, "topk_group": 2, "rope_parameters": {
        **YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 8, "llama_4_scaling_beta": 0.1}}),
    "mimo_v2_flash": ("MiMoV2FlashConfig", {**GROUPED, **MIMO}),
    "mimo_v2_flash, biases, values as they are": ("MiMoV2FlashConfig", {**GROUPED, **MIMO, "attention_bias": True,
                                                                        "attention_value_scale": None}),
    "laguna": ("LagunaConfig", {**GROUPED, **LAGUNA}),
    "laguna, gates of values": ("LagunaConfig", {**GROUPED, **LAGUNA, "gating": "per-element"}),
    "glm_moe_dsa, shared choices": ("GlmMoeDsaConfig", {
        **LATENT, **INDEXED, "rms_norm_eps": 1e-5, "n_group": 1, "topk_group": 1,
        "indexer_types": ["full", "shared", "full"], "rope_parameters": dict(rope_type="default", rope_theta=1e6)}),
    "mixtral in bfloat16": ("MixtralConfig", {**GROUPED, "num_local_experts": 8, "num_experts_per_tok": 2,
                                              "sliding_window": None, "dtype": "bfloat16"}),
    "deepseek_v3 in bfloat16": ("DeepseekV3Config", {**LATENT, "n_group": 4, "topk_group": 2, "dtype": "bfloat16"}),
}

TRAINED = dict(base_emb_dim=48, base_num_query_heads=4, base_num_kv_heads=2, head_dim=24, base_mlp_dim=64,
               base_num_decoder_layers=2, vocab_size=256, max_target_length=16, per_device_batch_size=2, steps=3,
               learning_rate=0.05, dtype="float32", enable_checkpointing="true", normalization_layer_epsilon=1e-5)
EXPERTS = dict(TRAINED, num_experts=8, num_experts_per_tok=2)
SIGMOID = dict(EXPERTS, decoder_block="deepseek", attention_type="mla", kv_lora_rank=16, q_lora_rank=20, qk_nope_head_dim=16,
               qk_rope_head_dim=8, v_head_dim=16, first_num_dense_layers=1, base_num_decoder_layers=3, base_moe_mlp_dim=32,
               shared_experts=1, routed_score_func="sigmoid", norm_topk_prob="true", routed_scaling_factor=2.5, mscale=0)

FORMS = {
    "sigmoid without a bias": SIGMOID,
    "sigmoid without a bias, groups": {**SIGMOID, "n_routing_groups": 4, "topk_routing_group": 2},
    "tied, divided by sqrt(48)": {**TRAINED, "decoder_block": "llama2", "logits_via_embedding": "true"},
    "tied, divided by sqrt(64)": {**TRAINED, "decoder_block": "llama2", "logits_via_embedding": "true", "base_emb_dim": 64},
    "compat llama, heads of 24": {**TRAINED, "decoder_block": "llama2", "compat": "maxtext"},
    "compat llama, heads of 16": {**TRAINED, "decoder_block": "llama2", "compat": "maxtext", "head_dim": 16},
    "compat mixtral": {**EXPERTS, "decoder_block": "mixtral", "compat": "maxtext"},
    "compat qwen3_moe": {**EXPERTS, "decoder_block": "qwen3_moe", "use_qk_norm": "true", "compat": "maxtext"},
    "compat deepseek": {**SIGMOID, "compat": "maxtext"},
    "latent scores scaled, plain rope": {**SIGMOID, "mscale": 1, "routed_score_func": "softmax", "norm_topk_prob": "false",
                                         "routed_scaling_factor": 1},
    "mixtral with normed queries": {**EXPERTS, "decoder_block": "mixtral", "use_qk_norm": "true"},
    "llama with normed queries": {**TRAINED, "decoder_block": "llama2", "use_qk_norm": "true"},
}

# Models that see images too, of which the decoder is read: the class, its settings, those of what sees.
NESTED = {
    "llama4 that sees": ("Llama4", {**GROUPED, **LLAMA4, "rope_parameters": {**LLAMA3, "high_freq_factor": 1.0}},
                         dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, image_size=28,
                              patch_size=14, vision_output_dim=32, projector_input_dim=32, projector_output_dim=32)),
    "qwen3_vl_moe": ("Qwen3VLMoe", {**GROUPED, **MOE, "head_dim": 24, "tie_word_embeddings": False,
                                    "rope_parameters": dict(rope_type="default", rope_theta=1e4, mrope_interleaved=True,
                                                            mrope_section=[4, 4, 4])},
                     dict(hidden_size=32, intermediate_size=48, depth=1, num_heads=2, out_hidden_size=64,
                          deepstack_visual_indexes=[0])),
}

# Larger than a block in both directions, and no whole number of blocks.
SCALED = {
    "qwen3_next in 8 bits": ("Qwen3NextConfig", {**DELTA, "hidden_size": 320, "head_dim": 80, "dtype": "bfloat16"}),
    "deepseek_v3 in 8 bits": ("DeepseekV3Config", {**LATENT, "hidden_size": 320, "intermediate_size": 400, "n_group": 4,
                                                   "topk_group": 2, "dtype": "bfloat16"}),
}


# Classes that transformers' table of decoders lacks.
WITHOUT_AUTO = {"Mistral4Config": transformers.Mistral4ForCausalLM}


def make(config_class, settings, folder):
    config = getattr(transformers, config_class)(**settings)
    if config_class in WITHOUT_AUTO:
        config._attn_implementation = "eager"
        model = WITHOUT_AUTO[config_class](config)
    else:
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    return save_random(model.to(torch.float32).eval(), settings, folder)


def save_random(model, settings, folder):
    """Weights spread by 0.1 at a width of 64, and less at larger widths, so that products are as large there.

    With 0.1 at a width of 320, gates are up to 8, strengths and decays near 0, and Qwen3-Next in 8 bits is no test to 1e-4:
    another order of the hidden elements, which changes no logit in float64 by more than 1e-12, puts the float32 logits of
    seed 0 anywhere from 1e-5 to 1.3e-4 of those (transformers': 7e-6 to 7e-5), and of 24 seeds two are beyond 1e-4. With
    this spread all 24 are within 5e-5."""
    torch.manual_seed(0)
    spread = 0.8 / math.sqrt(settings["hidden_size"])
    with torch.no_grad():
        for name, value in [*model.named_parameters(), *model.named_buffers()]:
            if "norm" in name:
                value.copy_(1 + 0.1 * torch.randn_like(value))
            elif "inv_freq" not in name:
                value.copy_(spread * torch.randn_like(value))
    if settings.get("dtype") == "bfloat16":  # as published: all but the router's bias
        for name, value in [*model.named_parameters(), *model.named_buffers()]:
            if value.is_floating_point() and "inv_freq" not in name and "e_score_correction_bias" not in name:
                value.data = value.data.to(torch.bfloat16)
    model.save_pretrained(folder)
    return model.to(torch.float32)


def load(folder):
    kind = json.loads((folder / "config.json").read_text())["architectures"][0]
    made_by = next((cls for cls in WITHOUT_AUTO.values() if cls.__name__ == kind), transformers.AutoModelForCausalLM)
    model, info = made_by.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    left = {key: info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys") if info.get(key)}
    assert not left, f"{folder}: {left}"
    return model.eval()


def run(*command):
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stdout}"
    return done.stdout


def logits_of(model, tokens):
    with torch.no_grad():
        return model(tokens.long()).logits.float()


def error(a, b):
    return ((a - b).abs().max() / b.abs().max()).item()


def allowed(name):
    return DELTA_TOLERANCE if name.startswith(("qwen3_next", "qwen3_5")) else TOLERANCE


def raw(folder):
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors.update(load_file(file))
    return tensors


def stored(folder):
    return apart(raw(folder))


def apart(tensors):
    """Qwen3.5 as published has `language_model.` in its names and all experts in one tensor; transformers saves neither."""
    named = {}
    for key, value in tensors.items():
        key = key.replace("model.language_model.", "model.")
        if not key.endswith(("mlp.experts.gate_up_proj", "mlp.experts.down_proj")) or "model.language_model.layers.0.mlp.gate.weight" not in tensors:
            named[key] = value
            continue
        front, projection = key.rsplit(".", 1)
        for expert, matrix in enumerate(value):
            parts = matrix.chunk(2) if projection == "gate_up_proj" else [matrix]
            for name, part in zip(("gate_proj", "up_proj") if len(parts) == 2 else ("down_proj",), parts):
                named[f"{front}.{expert}.{name}.weight"] = part
    return named


def check(program, name, config_class, settings, folder):
    original, ours, back = folder / "original", folder / "ours", folder / "back"
    model = make(config_class, settings, original)
    run(program, "convert", original, ours, "--verify", "--save-logits", folder / "ours.safetensors")
    run(program, "convert", ours, back, "--verify", "--file-bytes", "200000", "--save-logits", folder / "back.safetensors")
    if raw(original).keys() == raw(back).keys():  # not of the published form of a model that transformers saves otherwise
        run(program, "inspect", original, back)
    before, after = stored(original), stored(back)
    assert before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in before), "tensors differ"
    result = load_file(folder / "ours.safetensors")
    assert torch.equal(result["logits"], load_file(folder / "back.safetensors")["logits"]), "our logits differ after export"
    want = logits_of(model, result["tokens"])
    there_and_back = error(logits_of(load(back), result["tokens"]), want)
    of_ours = error(result["logits"], want)
    good = max(there_and_back, of_ours) <= allowed(name)
    shards = len(list(back.glob("*.safetensors")))
    print(f"{name:30} {len(before):4} tensors in {shards} shards  transformers again {there_and_back:.2e}  "
          f"switchyard {of_ours:.2e}  {'pass' if good else 'FAIL'}", flush=True)
    return {"case": name, "tensors": len(before), "shards": shards, "transformers_again": there_and_back,
            "switchyard": of_ours, "pass": good}


def check_nested(program, name, family, settings, vision, folder):
    original, ours, back = folder / "original", folder / "ours", folder / "back"
    config = getattr(transformers, family + "Config")(text_config=settings, vision_config=vision, tie_word_embeddings=False)
    config._attn_implementation = "eager"
    model = save_random(getattr(transformers, family + "ForConditionalGeneration")(config).to(torch.float32).eval(), settings,
                        original)
    if family == "Qwen3VLMoe":  # transformers 5 saves experts [out, in]; published files have them [in, out], which it reads too
        tensors = raw(original)
        save_file({name: value.transpose(1, 2).contiguous() if ".mlp.experts." in name else value
                   for name, value in tensors.items()}, original / "model.safetensors")
    said = run(program, "convert", original, ours, "--verify", "--save-logits", folder / "ours.safetensors")
    assert "of what sees images" in said, f"no notice: {said}"
    run(program, "convert", ours, back, "--verify")
    result = load_file(folder / "ours.safetensors")
    decoder = model.language_model if family == "Llama4" else model  # which takes no text alone in transformers 5.24
    want = logits_of(decoder, result["tokens"])
    of_export = error(logits_of(load(back), result["tokens"]), want)
    of_ours = error(result["logits"], want)
    good = of_export <= TOLERANCE and of_ours <= TOLERANCE
    print(f"{name:30} transformers of the export {of_export:.2e}  switchyard {of_ours:.2e}  {'pass' if good else 'FAIL'}",
          flush=True)
    return {"case": name, "transformers_of_export": of_export, "switchyard": of_ours, "pass": good}


def scaled(value):
    """Blocks of 128 x 128 as E4M3 with a float32 scale each, as DeepSeek-V3 is published; and their product in bfloat16."""
    rows, columns = value.shape
    up, across = -(-rows // 128), -(-columns // 128)
    padded = torch.zeros(up * 128, across * 128)
    padded[:rows, :columns] = value.float()
    blocks = padded.view(up, 128, across, 128)
    scales = blocks.abs().amax(dim=(1, 3)).clamp(min=1e-12) / 448
    small = (blocks / scales[:, None, :, None]).to(torch.float8_e4m3fn)
    product = (small.float() * scales[:, None, :, None]).to(torch.bfloat16)
    cut = lambda t: t.reshape(up * 128, across * 128)[:rows, :columns].contiguous()
    return cut(small), scales, cut(product)


def check_scaled(program, name, config_class, settings, folder):
    plain, published, ours, back = (folder / part for part in ("plain", "published", "ours", "back"))
    make(config_class, settings, plain)
    published.mkdir()
    stored_as, products = {}, {}
    for key, value in stored(plain).items():
        if key.endswith("_proj.weight") or key.endswith("kv_a_proj_with_mqa.weight"):
            stored_as[key], stored_as[key + "_scale_inv"], products[key] = scaled(value)
        else:
            stored_as[key] = products[key] = value
    config = json.loads((plain / "config.json").read_text())
    save_file(products, plain / "model.safetensors", metadata={"format": "pt"})
    config["quantization_config"] = dict(activation_scheme="dynamic", fmt="e4m3", quant_method="fp8", weight_block_size=[128, 128])
    (published / "config.json").write_text(json.dumps(config))
    save_file(stored_as, published / "model.safetensors", metadata={"format": "pt"})
    run(program, "convert", published, ours, "--verify", "--save-logits", folder / "ours.safetensors")
    run(program, "convert", ours, back, "--verify")
    after = stored(back)
    assert products.keys() == after.keys() and all(torch.equal(products[k], after[k]) for k in products), "tensors differ"
    result = load_file(folder / "ours.safetensors")
    of_ours = error(result["logits"], logits_of(load(plain), result["tokens"]))
    good = of_ours <= allowed(name)
    print(f"{name:34} {len(stored_as) - len(products)} scaled tensors  switchyard {of_ours:.2e}  {'pass' if good else 'FAIL'}", flush=True)
    return {"case": name, "tensors": len(stored_as), "switchyard": of_ours, "pass": good}


def check_form(program, name, keys, folder):
    run(program, "train", *(f"{key}={value}" for key, value in keys.items()), f"base_output_directory={folder}", "run_name=run")
    exported, back = folder / "exported", folder / "back"
    said = run(program, "convert", folder / "run", exported, "--verify", "--save-logits", folder / "exported.safetensors")
    run(program, "convert", exported, back, "--verify")
    result = load_file(folder / "exported.safetensors")
    of_ours = error(result["logits"], logits_of(load(exported), result["tokens"]))
    good = of_ours <= TOLERANCE
    verdict = next(line for line in said.splitlines() if line.startswith("verify:")).split("tokens: ")[1]
    print(f"{name:34} switchyard against transformers {of_ours:.2e}  {'pass' if good else 'FAIL'}  as trained: {verdict}", flush=True)
    return {"case": name, "switchyard": of_ours, "verify": verdict, "pass": good}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--only", help="cases whose name contains this")
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, float32, at most {TOLERANCE}")
    results = []
    cases = {name: (check, case) for name, case in CASES.items()}
    cases.update({name: (check_nested, case) for name, case in NESTED.items()})
    cases.update({name: (check_scaled, case) for name, case in SCALED.items()})
    cases.update({name: (check_form, (case,)) for name, case in FORMS.items()})
    for name, (test, case) in cases.items():
        if arguments.only and arguments.only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                results.append(test(arguments.program.resolve(), name, *case, pathlib.Path(folder)))
            except AssertionError as problem:
                print(f"{name:30} FAIL: {problem}", flush=True)
                results.append({"case": name, "pass": False})
    if arguments.json:
        arguments.json.write_text(json.dumps({"transformers": transformers.__version__, "torch": torch.__version__,
                                              "cases": results}, indent=1) + "\n")
    passed = sum(r["pass"] for r in results)
    print(f"{passed} of {len(results)} pass")
    sys.exit(0 if passed == len(results) else 1)


if __name__ == "__main__":
    main()

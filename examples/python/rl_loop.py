"""Reinforcement learning in ten rounds: sample with log-probabilities, score, gradients by advantage, step.

The reward of a text is the share of its bytes that are small letters. One engine samples and trains.
"""

import pathlib

import numpy as np
import switchyard

MODEL = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/hf/qwen3moe-tiny"
PROMPTS = ["the ", "a night ", "trains are ", "why "]
SAMPLES, TOKENS = 16, 16  # of each prompt

keys = {"tokenizer_type": "byte", "dtype": "float32", "per_device_batch_size": 64, "max_target_length": 64}
engine = switchyard.Engine.open(MODEL, keys, learning_rate=0.01, warmup_steps_fraction=0, steps=10)
rewards: list[float] = []
for round in range(10):
    prompts = [engine.encode(prompt) for prompt in PROMPTS for _ in range(SAMPLES)]
    texts = engine.generate(prompts, max_tokens=TOKENS, temperature=1.0, seed=round, logprobs=True)
    reward = np.array([np.mean([97 <= token <= 122 for token in text.tokens]) for text in texts])
    rewards.append(float(reward.mean()))
    groups = reward.reshape(len(PROMPTS), SAMPLES)
    advantages = ((groups - groups.mean(1, keepdims=True)) / (groups.std(1, keepdims=True) + 1e-6)).ravel()

    rows, weights, targets = [], [], []
    for prompt, text, advantage in zip(prompts, texts, advantages):
        rows.append((prompt + text.tokens)[:-1])
        targets.append([-1] * (len(prompt) - 1) + text.tokens)
        weights.append([0.0] * (len(prompt) - 1) + [advantage] * len(text.tokens))
    batch = switchyard.Batch.of(rows, targets=targets, weights=weights)

    trainer = engine.token_log_probs(switchyard.Batch.of(rows, targets=targets))
    sampler = np.concatenate([text.log_probs for text in texts])
    apart = np.abs(trainer[np.asarray(batch.targets) >= 0] - sampler).max()
    assert apart < 1e-4

    engine.forward_backward(batch)
    step = engine.optimizer_step()
    print(f"round {round}: reward {rewards[-1]:.3f}, sampler and trainer {apart:.1e} apart, {step.targets:.0f} targets")
assert rewards[-1] > rewards[0] + 0.1

"""Opening, settings, errors by their words, texts and streams."""

import numpy as np
import pytest

import switchyard
from conftest import MODEL, open_tiny

# The model of the folder, by keys.
SHAPE = """
decoder_block: qwen3_moe
dtype: float32
base_emb_dim: 64
base_mlp_dim: 32
base_moe_mlp_dim: 32
base_num_decoder_layers: 2
base_num_query_heads: 4
base_num_kv_heads: 2
head_dim: 24
vocab_size: 256
num_experts: 8
num_experts_per_tok: 2
norm_topk_prob: true
normalization_layer_epsilon: 1.0e-06
normalize_embedding_logits: false
rope_interleave: false
rope_max_timescale: 1000000
use_qk_norm: true
"""


def error_of(call, kind=switchyard.UsageError):
    with pytest.raises(kind) as raised:
        call()
    assert "\n" not in str(raised.value)
    return raised.value


def test_ways_to_name_a_model(tmp_path):
    config = tmp_path / "small.yml"
    config.write_text(f"load_parameters_path: {MODEL}\nmax_target_length: 12\n" + SHAPE)
    tokens = [[1, 5, 3]]
    with open_tiny() as engine:
        logits = engine.forward(tokens)
    for arguments in ({"load_parameters_path": MODEL}, {"config": {"load_parameters_path": str(MODEL)}}):
        with switchyard.Engine.open(**arguments) as engine:
            assert (engine.forward(tokens) == logits).all() and engine.settings["num_experts"] == 8
    with switchyard.Engine.open(str(MODEL), {"max_target_length": 12, "ranks": 7}, ranks=1) as engine:
        assert engine.settings["max_target_length"] == 12 and engine.ranks == 1
    for arguments in ({"config": config}, {"config": str(config)}):
        with switchyard.Engine.open(**arguments, ranks=2) as engine:
            assert engine.settings["max_target_length"] == 12 and engine.ranks == 2
            np.testing.assert_allclose(engine.forward(tokens), logits, atol=1e-5)


def test_random_weights_are_told():
    with switchyard.Engine.open(model_name="deepseek3-tiny", override_model_config=True, vocab_size=64) as engine:
        assert "random weights: load_parameters_path is not set" in engine.notes
        assert engine.vocabulary == 64


def test_values_are_those_of_the_command_line():
    with open_tiny(decode_end_tokens=[5, 7], add_bos=False, learning_rate=1e-5, run_name=None) as engine:
        assert engine.settings["decode_end_tokens"] == [5, 7] and engine.settings["add_bos"] is False
        assert engine.settings["learning_rate"] == 1e-5
        with pytest.raises(TypeError):
            engine.settings["ranks"] = 2


def test_errors_have_the_words_and_parts():
    wrong = error_of(lambda: open_tiny(ranks="x"))
    assert str(wrong) == "[config] ranks: expected an integer of at least 1, got x (command line)"
    assert (wrong.key, wrong.value, wrong.expected) == ("ranks", "x", "an integer of at least 1")
    assert isinstance(wrong, ValueError) and isinstance(wrong, switchyard.Error)
    unknown = error_of(lambda: open_tiny(rnaks=2))
    assert "unknown key rnaks" in str(unknown) and (unknown.key, unknown.expected) == ("rnaks", "ranks")
    assert error_of(lambda: open_tiny(lr=2)).expected == "learning_rate"
    assert "there is no file nowhere" in str(error_of(lambda: switchyard.Engine.open("nowhere")))
    assert "model: expected a path, got int" in str(error_of(lambda: switchyard.Engine.open(3), TypeError))
    assert "ranks: expected" in str(error_of(lambda: open_tiny(ranks=object()), TypeError))
    error_of(lambda: switchyard.Engine.open(MODEL, "base.yml"))
    error_of(switchyard.Engine, TypeError)


def test_errors_of_calls(engine):
    wrong = error_of(lambda: engine.generate("a", top_p=3))
    assert (wrong.key, wrong.value, wrong.expected) == ("top_p", "3", "more than 0, at most 1")
    assert "max_tokens: expected an integer, got str" in str(
        error_of(lambda: engine.generate("a", max_tokens="9"), TypeError)
    )
    error_of(lambda: engine.generate("a", seed=-1))
    error_of(lambda: engine.generate([300]))
    error_of(lambda: engine.generate("a", stop=[""]))
    assert "expected 1" in str(error_of(lambda: engine.train_step([[1, 2], [3, 4]])))
    error_of(lambda: engine.train_step({"tokens": [[1, 2]], "targets": [[1]]}))
    error_of(lambda: engine.train_step({"inputs": [[1, 2]]}))
    missing = error_of(lambda: engine.parameters["layers.0.moe.gat"], KeyError)
    assert "the nearest is layers.0.moe.gate" in str(missing)
    assert "layers.0.moe.gate" in engine.parameters and len(engine.parameters) == len(list(engine.parameters))


def test_calls_after_close():
    engine = open_tiny()
    parameters, stream = engine.parameters, engine.stream("a")
    next(stream)
    assert repr(engine) == f"Engine(qwen3moe-tiny, 8 experts, 1 rank, cpu, {engine.memory.in_use / 2**20:.1f} MiB)"
    engine.close()
    engine.close()
    assert engine.closed and repr(engine) == "Engine(qwen3moe-tiny, closed)"
    for call in (
        lambda: engine.forward([[1]]),
        lambda: engine.generate("a"),
        lambda: engine.stream("a"),
        lambda: engine.train_step([[1, 2]]),
        lambda: engine.parameters,
        lambda: next(stream),
        lambda: parameters["head"].numpy(),
        lambda: engine.encode("a"),
    ):
        assert "the engine is closed" in str(error_of(call))


def test_prompts_side_by_side(engine):
    one, two = engine.generate(["ab", "cd"], max_tokens=8)
    assert engine.generate("ab", max_tokens=8) == one and engine.generate([99, 100], max_tokens=8).tokens == two.tokens
    assert not one.ended and one.log_probs == [] and one.asdict()["tokens"] == one.tokens


def test_stop_texts_and_ends(engine):
    whole = engine.generate("ab", max_tokens=40)
    stopped = engine.generate("ab", max_tokens=40, stop=whole.text[3:5])
    assert stopped.ended and stopped.text == whole.text[:3]
    assert "".join(token.text for token in engine.stream("ab", max_tokens=40, stop=[whole.text[3:5]])) == whole.text[:3]
    assert engine.generate("ab", max_tokens=40, ends=[whole.tokens[3]]).tokens == whole.tokens[:4]


def test_a_stream_that_is_left_frees_its_slot(engine):
    for token in engine.stream("ab", max_tokens=40):
        break
    with engine.stream("ab", max_tokens=4) as stream:
        assert "texts are being made" in str(error_of(lambda: engine.stream("cd")))
        assert len(list(stream)) == 4 and list(stream) == []
    assert len(list(engine.stream("ab", max_tokens=4))) == 4


def test_tokenizer(engine):
    assert engine.decode(engine.encode("größer")) == "größer" and engine.decode([]) == ""
    assert engine.decode(np.array([97, 98])) == "ab"
    assert "expected ids from 0 to 255" in str(error_of(lambda: engine.decode([300])))
    error_of(lambda: engine.encode(3), TypeError)
    with switchyard.Engine.open(MODEL) as without:
        assert "tokenizer" in str(error_of(lambda: without.generate("a")))
        assert without.generate([97], max_tokens=3).text == ""

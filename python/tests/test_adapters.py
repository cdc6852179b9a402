"""Adapters of texts: added and removed beside the model, with the answers of a model that has each alone."""

import pytest
from conftest import open_tiny

import switchyard

PROMPT = [3, 5, 7, 9]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two adapters of the tiny model, trained for a step of large size."""
    made = []
    for seed in (1, 2):
        folder = tmp_path_factory.mktemp(f"adapter{seed}")
        keys = dict(
            lora_rank=4,
            learning_rate=0.5,
            warmup_steps_fraction=0,
            steps=2,
            per_device_batch_size=2,
            max_target_length=16,
            data_shuffle_seed=seed,
            enable_checkpointing=True,
            base_output_directory=folder,
            run_name="run",
            add_bos=False,
            add_eos=False,
        )
        with open_tiny(**keys) as engine:
            engine.train(data=[f"{seed} of texts that are to be learnt by heart. " * 30])
        made.append(folder / "run")
    return made


def texts_of(engine, **options):
    return engine.generate(PROMPT, max_tokens=8, ends_by_model=False, logprobs=True, **options)


def test_texts_have_the_adapter_they_name(mesh, folders):
    alone = []
    for folder in folders:
        with open_tiny(adapter=folder, **mesh) as engine:
            alone.append(texts_of(engine))
    with open_tiny(**mesh) as engine:
        base = texts_of(engine)
        assert len(engine.adapters) == 0
        for number, folder in enumerate(folders):
            engine.adapters.add(folder, name=f"a{number}")
        assert list(engine.adapters) == ["a0", "a1"] and "a1" in engine.adapters
        for number in (1, 0):
            text = texts_of(engine, adapter=f"a{number}")
            assert text.tokens == alone[number].tokens != base.tokens
            assert text.log_probs == pytest.approx(alone[number].log_probs, abs=1e-4)
        assert texts_of(engine).tokens == base.tokens
        assert [token.id for token in engine.stream(PROMPT, max_tokens=8, ends_by_model=False, adapter="a1")] == (
            alone[1].tokens
        )
        engine.adapters.remove("a0")
        assert texts_of(engine, adapter="a1").tokens == alone[1].tokens
        engine.adapters.add(folders[1], name="again")
        assert texts_of(engine, adapter="again").tokens == alone[1].tokens
        engine.forward_backward([PROMPT * 4] * 2)
        engine.optimizer_step(learning_rate=0.1)  # the base's weights are its own
        assert texts_of(engine).log_probs != base.log_probs


def test_wrong_adapters(engine, folders, tmp_path):
    def refused(words, call, *args, **options):
        with pytest.raises(switchyard.UsageError, match=words):
            call(*args, **options)

    engine.adapters.add(folders[0], name="first")
    refused("first is there already", engine.adapters.add, folders[1], name="first")
    refused("expected a name, got none", engine.adapters.add, folders[1], name="")
    refused(tmp_path.name, engine.adapters.add, tmp_path, name="empty")
    refused("no adapter is called frist", engine.adapters.remove, "frist")
    refused("no adapter is called second", engine.generate, PROMPT, adapter="second")
    with pytest.raises(TypeError, match="adapter: expected a name"):
        engine.generate(PROMPT, adapter=3)
    stream = engine.stream(PROMPT, adapter="first")
    next(stream)
    refused("texts are being made", engine.adapters.remove, "first")
    stream.close()
    engine.adapters.remove("first")
    assert len(engine.adapters) == 0 and engine.generate(PROMPT, max_tokens=2).tokens
    with open_tiny(adapter=folders[0]) as own:
        refused("an adapter of its own", own.adapters.add, folders[1], name="other")
    with open_tiny(lora_slots=1) as one:
        one.adapters.add(folders[0], name="a")
        refused("all 1 places of lora_slots are taken", one.adapters.add, folders[1], name="b")

"""The experts of texts, batches and records."""

import numpy as np
import pytest
from conftest import MODEL, open_tiny, run_program

import switchyard


def test_texts_and_batches_have_the_same_experts(mesh):
    with open_tiny(return_routed_experts=True, per_device_batch_size=2, **mesh) as engine:
        texts = engine.generate([[5, 6, 7], [9, 8]], max_tokens=6, ends_by_model=False, experts=True)
        for text, prompt in zip(texts, ([5, 6, 7], [9, 8])):
            routing, read = text.routing, prompt + text.tokens[:-1]
            assert routing.tokens.tolist() == read and routing.chosen.shape == (len(routing.layers), len(read), 2)
            assert routing.chosen.min() >= 0 and routing.chosen.max() < routing.experts == 8
            logits, rows = engine.forward_with_experts([read, read])
            assert np.array_equal(logits, engine.forward([read, read]))
            for row in rows:
                assert np.array_equal(row.chosen, routing.chosen) and row.layers == routing.layers
            assert routing.loads().sum() == routing.chosen.size and routing.loads().shape[1] == 8
        assert engine.generate([5, 6], max_tokens=2).routing is None


def test_records_are_the_programs(tmp_path):
    record = tmp_path / "texts.routing"
    run_program("generate", MODEL, "tokenizer_type=byte", "prompt=ab", "max_tokens=5", f"routing_record={record}")
    texts = switchyard.RoutingRecord(record)
    assert len(texts) == 1 and texts[0].source == "generate" and texts[0].tokens[:2].tolist() == [97, 98]
    with open_tiny() as engine:
        _, rows = engine.forward_with_experts([texts[0].tokens])
        assert np.array_equal(rows[0].chosen, texts[0].chosen) and [*texts][0].layers == rows[0].layers
    record.write_bytes(record.read_bytes()[:-3])
    with pytest.raises(switchyard.UsageError, match="the file ends inside it"):
        switchyard.RoutingRecord(record)
    with pytest.raises(switchyard.UsageError, match="nothing"):
        switchyard.RoutingRecord(tmp_path / "nothing")


def test_experts_are_asked_for_at_the_start(engine):
    with pytest.raises(switchyard.UsageError, match="open the engine with return_routed_experts=true"):
        engine.generate("a", experts=True)

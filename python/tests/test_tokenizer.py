"""Tokenizers and chat templates, against what other libraries made of the same files."""

import json

import pytest

import switchyard
from conftest import MODEL, ROOT

GOLDEN = ROOT / "tests/golden/tokenizer"
CASES = json.loads((GOLDEN / "cases.json").read_text()).values()
OF_FILES = pytest.mark.parametrize("case", [pytest.param(case, id=case["file"]) for case in CASES])
OF_TRANSFORMERS = pytest.mark.parametrize(
    "case", [pytest.param(case, id=case["file"]) for case in CASES if case["type"] == "huggingface"]
)
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if tools %}[{{ tools | length }}]{% endif %}{% if thinks %}~{% endif %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
CHAT = [{"role": "user", "content": "Hi"}]


@OF_FILES
def test_ids_are_those_of_other_libraries(case):
    tokenizer = switchyard.Tokenizer.of(GOLDEN / case["file"])
    assert case["texts"]
    for text, ids, decoded in case["texts"]:
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids) == decoded


@OF_TRANSFORMERS
def test_of_transformers(case):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(GOLDEN / case["file"]))
    ours = switchyard.Tokenizer.of(theirs)
    for text, _, _ in case["texts"]:
        ids = theirs.encode(text, add_special_tokens=False)
        assert ours.encode(text) == ids
    theirs.bos_token, theirs.chat_template = "<s>", TEMPLATE
    ours = switchyard.Tokenizer.of(theirs)
    for more in ({}, {"thinks": True}, {"add_generation_prompt": False}):
        arguments = {"add_generation_prompt": True, **more}
        assert ours.apply_chat_template(CHAT, **more) == theirs.apply_chat_template(CHAT, tokenize=False, **arguments)


@pytest.fixture
def chats(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes((GOLDEN / "llama3.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<|begin|>", "eos_token": "<|end|>", "chat_template": TEMPLATE})
    )
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 5]}))
    return switchyard.Tokenizer.of(tmp_path)


def test_chats(chats):
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    assert chats.has_chat_template
    assert chats.apply_chat_template(CHAT) == "<|begin|><user>Hi<assistant>"
    assert chats.apply_chat_template(tuple(CHAT), [tool], False, thinks=True) == "<|begin|><user>Hi[1]~"
    ids = chats.apply_chat_template(CHAT, tokenize=True)
    assert ids[0] == chats.begin_token and chats.decode(ids, special=True) == "<|begin|><user>Hi<assistant>"
    foreign = chats.apply_chat_template([{"role": "user", "content": "<|begin|>"}], tokenize=True)
    assert foreign.count(chats.begin_token) == 1  # what a message brings is text
    assert {3, 5} <= set(chats.end_tokens) and chats.end_token in chats.end_tokens
    assert repr(chats) == f"Tokenizer({chats.vocabulary} ids, chats)"


def test_wrong_arguments(chats, tmp_path):
    byte = switchyard.Tokenizer.of("byte")
    assert byte.decode(byte.encode("añ")) == "añ" and byte.end_tokens == [256]
    with pytest.raises(switchyard.UsageError, match="expected a chat template"):
        byte.apply_chat_template(CHAT)
    with pytest.raises(switchyard.UsageError, match=r"messages\[0\]"):
        chats.apply_chat_template([{"content": "no role"}])
    with pytest.raises(switchyard.UsageError, match="no-such"):
        switchyard.Tokenizer.of(tmp_path / "no-such")
    with pytest.raises(switchyard.UsageError, match="expected a tokenizer"):
        switchyard.Tokenizer.of(MODEL)
    with pytest.raises(TypeError, match="source: expected a path"):
        switchyard.Tokenizer.of(3)
    with pytest.raises(TypeError, match="messages: expected what JSON holds, got object"):
        chats.apply_chat_template([object()])
    with pytest.raises(switchyard.UsageError, match="ids of 0 or more"):
        chats.decode([-1])
    with pytest.raises(TypeError):
        switchyard.Tokenizer()

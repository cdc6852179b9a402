"""Chats of an engine: the same answers as a server's."""

import json
import urllib.request

import pytest

import switchyard
from conftest import MODEL, open_tiny, run_script

TEMPLATE = (
    "{% if tools %}{% for t in tools %}{{ t | tojson }}{% endfor %}Call: <tool_call>{name, arguments}</tool_call>"
    "{% endif %}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}"
    "<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
CHAT = [{"role": "user", "content": "ab"}]
TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}},
}


@pytest.fixture
def keys(tmp_path):
    (tmp_path / "chat.jinja").write_text(TEMPLATE)
    return {"chat_template_path": tmp_path / "chat.jinja", "max_target_length": 512}


def of_server(server, **body):
    data = json.dumps({"temperature": 0, "seed": 0, **body}).encode()
    request = urllib.request.Request(server.url + "/v1/chat/completions", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_answers_as_a_server_does(keys, mesh):
    with switchyard.Server(MODEL, tokenizer_type="byte", **keys, **mesh) as server, open_tiny(**keys, **mesh) as engine:
        can_force = next(part for part in switchyard.doctor(quick=True).parts if part.name == "grammars").state == "ok"
        called = 0
        for more in (
            {"max_tokens": 12},
            {"max_tokens": 12, "temperature": 1.0, "seed": 3, "top_p": 0.9},
            {"max_tokens": 12, "tools": [TOOL], "stop": ["e"]},
            *([{"max_tokens": 120, "tools": [TOOL], "tool_choice": "required"}] if can_force else []),
        ):
            message = engine.chat(CHAT, **more)
            expected = of_server(server, messages=CHAT, **more)
            choice = expected["choices"][0]
            if "tool_calls" in message:
                called += 1
                for call, other in zip(message.tool_calls, choice["message"]["tool_calls"]):
                    assert call.function.asdict() == other["function"]
            else:
                assert message.asdict() == choice["message"]
            assert message.finish_reason == choice["finish_reason"]
            assert message.answer.usage.completion_tokens == expected["usage"]["completion_tokens"]
        assert called == can_force
        two = engine.chat(CHAT, n=2, temperature=1.0, max_tokens=8)
        assert len(two.answer.choices) == 2 and two.content == two.answer.choices[0].message.content
        assert engine.chat([*CHAT, two.asdict(), *CHAT], max_tokens=1).role == "assistant"


def test_wrong_requests(keys):
    with open_tiny(**keys) as engine:
        for words, fields in (
            ("stream=true", {"stream": True}),
            ("logprobs=true", {"logprobs": True}),
            ("max_token: not a field", {"max_token": 3}),
            ("temperature", {"temperature": -1}),
        ):
            with pytest.raises(switchyard.UsageError, match=words):
                engine.chat(CHAT, **fields)
        with pytest.raises(switchyard.UsageError, match="role") as wrong:
            engine.chat([{"content": "ab"}])
        assert wrong.value.key.startswith("messages[0]")
        with pytest.raises(switchyard.UsageError, match="maximum context length"):
            engine.chat([{"role": "user", "content": "a" * 600}])
    with open_tiny() as engine, pytest.raises(switchyard.UsageError, match="no chat template"):
        engine.chat(CHAT)


def test_messages_go_to_the_logger():
    script = (
        "import logging\nlines = []\n"
        "class Handler(logging.Handler):\n    def emit(self, record): lines.append(record.getMessage())\n"
        "logging.getLogger('switchyard').addHandler(Handler())\nlogging.getLogger('switchyard').propagate = False\n"
        "engine = open_tiny(ranks=2, ici_expert_parallelism=2)\nengine.forward([[1, 2]])\n"
        "assert any(line.startswith('[dispatch]') for line in lines), lines\n"
    )
    assert run_script("os.environ['SWITCHYARD_VERBOSE'] = 'dispatch'\n" + script) == (0, "", "")
    unheard = "os.environ['SWITCHYARD_VERBOSE'] = 'dispatch'\nengine = open_tiny()\nengine.forward([[1, 2]])\n"
    assert run_script(unheard) == (0, "", "")

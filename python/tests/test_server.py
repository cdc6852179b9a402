"""A server in this process's threads."""

import json
import threading
import time
import urllib.error
import urllib.request

import pytest

import switchyard
from conftest import MODEL, open_tiny, run_script

KEYS = {"tokenizer_type": "byte", "max_target_length": 64, "per_device_batch_size": 2}


def ask(url, path="/v1/completions", key=None, **body):
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    data = json.dumps(body).encode() if body else None
    with urllib.request.urlopen(urllib.request.Request(url + path, data, headers), timeout=60) as answer:
        return json.load(answer)


def test_answers_as_the_engine_does(mesh):
    with open_tiny(max_target_length=64) as engine:
        expected = engine.generate("ab", max_tokens=8).text
    with switchyard.Server(MODEL, **KEYS, **mesh, temperature=0) as server:
        assert server.url.startswith("http://127.0.0.1:") and repr(server) == f"Server({server.url})"
        answers = []
        threads = [
            threading.Thread(target=lambda: answers.append(ask(server.url, prompt="ab", max_tokens=8)))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [answer["choices"][0]["text"] for answer in answers] == [expected] * 4
        stats = server.stats()
        assert (stats.finished, stats.running, stats.new_tokens) == (4, 0, 32)
        assert any("texts at once" in note for note in server.notes)
    assert server.closed and server.stats().finished == 4
    with pytest.raises(urllib.error.URLError):
        ask(server.url, "/health")
    server.close()


def test_options_and_keys():
    options = {"alias": ["one", "two"]}
    with switchyard.Server(MODEL, api_keys=["secret"], options=options, **KEYS) as server:
        with pytest.raises(urllib.error.HTTPError) as refused:
            ask(server.url, prompt="ab", max_tokens=1)
        assert refused.value.code == 401
        for name, status in (("one", 200), ("two", 200), ("three", 404)):
            try:
                ask(server.url, key="secret", model=name, prompt="ab", max_tokens=1)
                assert status == 200
            except urllib.error.HTTPError as error:
                assert error.code == status, name


def test_wrong_words():
    with open_tiny() as engine, pytest.raises(TypeError, match="got an Engine"):
        switchyard.Server(engine)
    with pytest.raises(switchyard.UsageError) as unknown:
        switchyard.Server(MODEL, rnaks=2, **KEYS)
    assert unknown.value.expected == "ranks"
    with pytest.raises(switchyard.UsageError, match="unknown option --no-such"):
        switchyard.Server(MODEL, options={"no-such": 1}, **KEYS)
    with switchyard.Server(MODEL, **KEYS) as server:
        with pytest.raises(switchyard.UsageError, match="address"):
            switchyard.Server(MODEL, port=int(server.url.rsplit(":", 1)[1]), **KEYS)


def test_two_servers_and_an_engine():
    with switchyard.Server(MODEL, **KEYS) as one, switchyard.Server(MODEL, **KEYS) as two, open_tiny() as engine:
        assert one.url != two.url
        assert ask(one.url, prompt="ab", max_tokens=4, temperature=0)["choices"][0]["text"] == (
            ask(two.url, prompt="ab", max_tokens=4, temperature=0)["choices"][0]["text"]
        )
        assert engine.forward([[1]]).shape[0] == 1


@pytest.mark.parametrize("end", ["", "import os; pid = os.fork()\nif pid: os.waitpid(pid, 0)\n"])
def test_exit_and_fork(end):
    keys = ", ".join(f"{key}={value!r}" for key, value in KEYS.items())
    script = f"server = switchyard.Server({str(MODEL)!r}, {keys})\nassert server.stats().running == 0\n{end}"
    assert run_script(script) == (0, "", "")


def test_close_while_a_text_is_made():
    with switchyard.Server(MODEL, **{**KEYS, "max_target_length": 2048}) as server:
        answers = []
        thread = threading.Thread(
            target=lambda: answers.append(ask(server.url, prompt="ab", max_tokens=400, ignore_eos=True))
        )
        thread.start()
        while not server.stats().running and not answers:
            time.sleep(0.002)
        server.close()
        thread.join()
    assert len(answers) == 1 and answers[0]["usage"]["completion_tokens"] == 400

"""Signals, threads, forks, the interpreter's exit, and descriptors 1 and 2."""

import signal
import threading
import time

import pytest

from conftest import open_tiny, run_script

LONG = "max_target_length=60000, steps=100000, per_device_batch_size=1"  # texts of minutes
SECONDS_TO_ANSWER = 0.5  # beside other work one try of three may be so fast
# Weights of half a minute, in small tensors.
LARGE = {
    "base_emb_dim": 512,
    "base_moe_mlp_dim": 512,
    "decoder_block": "mixtral",
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "base_num_decoder_layers": 60,
}
TEMPLATE = "chat_template_path='tests/golden/chat/templates/calls.jinja'"


def answer_to_interrupt(script):
    """Seconds from the signal to the time that `script` prints behind "ready", and the rest of what it prints."""
    sent = []

    def interrupt(process):
        time.sleep(0.3)
        sent.append(time.monotonic())
        process.send_signal(signal.SIGINT)

    status, out, err = run_script(script, signal_at=("ready", interrupt))
    assert (status, err) == (0, "")
    at, rest = out.split(" ", 1)
    return float(at) - sent[0], rest


def require_fast_answer(script, rest):
    tries = []
    while len(tries) < 3:
        seconds, printed = answer_to_interrupt(script)
        assert printed == rest
        if seconds < SECONDS_TO_ANSWER:
            return
        tries.append(seconds)
    raise AssertionError(f"KeyboardInterrupt came after {tries} seconds")


@pytest.mark.parametrize(
    "call",
    [
        "engine.generate('ab', max_tokens=50000)",
        "engine.generate(['ab', 'cd', 'ef'], max_tokens=50000)",
        "[token for token in engine.stream('ab', max_tokens=50000)]",
        "engine.chat([{'role': 'user', 'content': 'Hi'}], max_tokens=50000)",
        "[engine.train_step([[1, 2, 3, 4]] * engine.ranks) for _ in range(100000)]",
        "[engine.forward([[1, 2, 3, 4]] * engine.ranks) for _ in range(100000)]",
    ],
)
@pytest.mark.parametrize("keys", [LONG, LONG + ", ranks=2, ici_expert_parallelism=2"])
def test_keyboard_interrupt(call, keys):
    require_fast_answer(
        f"""
engine = open_tiny({keys}, {TEMPLATE})
print("ready", flush=True)
try:
    {call}
    print("made")
except KeyboardInterrupt:
    at = time.monotonic()
    print(at, len(engine.generate("ab", max_tokens=3).tokens), len(engine.forward([[1, 2]])))
""",
        "3 1\n",
    )


@pytest.mark.parametrize("ranks", [1, 2])
def test_keyboard_interrupt_while_weights_are_drawn(ranks):
    require_fast_answer(
        f"""
print("ready", flush=True)
try:
    switchyard.Engine.open(None, {LARGE}, ranks={ranks}, ici_expert_parallelism={ranks})
    print("made")
except KeyboardInterrupt:
    at = time.monotonic()
    print(at, open_tiny().ranks)
""",
        "1\n",
    )


@pytest.mark.parametrize(
    "script",
    [
        "engine = open_tiny()",
        "engine = open_tiny(); stream = engine.stream('ab'); next(stream)",
        "engine = open_tiny(); view = __import__('numpy').asarray(engine.parameters['head'])",
        "engine = open_tiny(); cycle = [engine]; cycle.append(cycle)",
        f"engine = open_tiny({LONG}, ranks=2, ici_expert_parallelism=2)\n"
        "threading.Thread(target=lambda: engine.generate('ab', max_tokens=50000), daemon=True).start(); time.sleep(0.3)",
        f"engine = open_tiny({LONG})\n"
        "threading.Thread(target=lambda: list(engine.stream('ab', max_tokens=50000)), daemon=True).start()\n"
        "time.sleep(0.3)",
        "engine = open_tiny(per_device_batch_size=1, steps=100000)\n"
        "def train():\n    while True: engine.train_step([[1, 2, 3, 4]])\n"
        "threading.Thread(target=train, daemon=True).start(); time.sleep(0.3)",
        f"engine = open_tiny({LONG})\nthreading.Thread(target=lambda: engine.generate('ab', max_tokens=400)).start()",
        "def open_and_close():\n    while True: open_tiny().close()\n"
        "threading.Thread(target=open_and_close, daemon=True).start(); time.sleep(0.3)",
        "import types; kept = sys.modules['kept'] = types.ModuleType('kept'); kept.engine = open_tiny()\n"
        "kept.tokens = (token for token in kept.engine.stream('ab')); next(kept.tokens)",
    ],
    ids=[
        "idle",
        "stream",
        "view",
        "cycle",
        "daemon-generate",
        "daemon-stream",
        "daemon-train",
        "thread",
        "daemon-open",
        "module",
    ],
)
def test_exit_is_silent(script):
    assert run_script(script) == (0, "", "")


def test_exit_ends_an_open():
    begin = time.monotonic()
    script = f"""
def load(): switchyard.Engine.open(None, {LARGE})
threading.Thread(target=load, daemon=True).start(); time.sleep(0.3)
"""
    assert run_script(script) == (0, "", "") and time.monotonic() - begin < 10


def test_an_error_leaves_its_own_status():
    status, out, err = run_script("engine = open_tiny()\nengine.forward([[300]])")
    assert status == 1 and out == "" and err.splitlines()[-1].startswith("switchyard._errors.UsageError: [engine]")


def test_a_child_of_a_fork_is_told():
    status, out, err = run_script("""
import warnings; warnings.simplefilter("ignore")
engine = open_tiny()
stream = engine.stream("ab"); next(stream)
child = os.fork()
if child == 0:
    own = open_tiny()
    threading.Thread(target=lambda: [own.forward([[1]]) for _ in range(10**9)], daemon=True).start()
    for call in (lambda: engine.forward([[1]]), lambda: next(stream)):
        try:
            call()
        except switchyard.UsageError as error:
            print("before a fork" in str(error), flush=True)
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), engine.forward([[1]]).shape)
""")
    assert (status, err) == (0, "") and out == "True\nTrue\n7 (1, 1, 256)\n"


def test_threads_share_an_engine():
    with open_tiny(per_device_batch_size=4) as engine:
        expected = engine.generate("ab", max_tokens=20).tokens
        made = []

        def work(number):
            for _ in range(3):
                if number % 2:
                    made.append(engine.generate("ab", max_tokens=20).tokens)
                else:
                    made.append([token.id for token in engine.stream("ab", max_tokens=20)])
                engine.forward([[1, 2, 3]])

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert made == [expected] * 12


def test_close_ends_the_texts_of_other_threads():
    engine = open_tiny(max_target_length=60000)
    raised = []

    def work():
        try:
            engine.generate("ab", max_tokens=50000)
        except Exception as error:
            raised.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.2)
    engine.close()
    thread.join(timeout=10)
    assert not thread.is_alive() and "the engine was closed" in raised[0]


def test_two_engines_side_by_side():
    with open_tiny() as one, open_tiny(ranks=2, ici_expert_parallelism=2) as two:
        assert one.generate("ab", max_tokens=8) == two.generate("ab", max_tokens=8)


def test_memory_is_freed():
    # bench/peers/python_memory.py does a thousand rounds, and other calls.
    status, out, err = run_script("""
import statistics
def resident(): return int(open("/proc/self/statm").read().split()[1])
sizes = []
for _ in range(150):
    with open_tiny(ranks=2, ici_expert_parallelism=2) as engine:
        engine.forward([[1, 2, 3]])
        engine.generate("ab", max_tokens=2)
    sizes.append(resident())
print(statistics.median(sizes[100:]) / statistics.median(sizes[50:100]))
""")
    assert (status, err) == (0, "") and float(out) < 1.01

"""Many connections, slow and broken clients, and an end in the midst of answers: `switchyard serve` on a tiny model.

    python3 tests/clients/load_check.py --switchyard build/release/switchyard [--quick]

Needs Python's own library only. A line for each check; exit status 1 where one failed.
"""

import argparse
import asyncio
import json
import pathlib
import random
import resource
import signal
import socket
import sys
import tempfile
import time

import serving

SLOTS, CAPACITY = 16, 4096
TOKENS = 20
HEALTH_SECONDS, HEALTHS = 0.05, 20
QUIET_SECONDS = 10  # of a slow reader
RSS_FACTOR = 1.05
SPEED_FACTOR = 0.8  # least share of the speed beside quick readers that others keep beside slow ones
PATIENCE = 60  # seconds for any answer
HALF_SENT = (b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
             b"Content-Length: 400\r\n\r\n{\"messages\": [")


class Report:
    failed = ran = 0

    def check(self, name, holds, shown=""):
        self.ran += 1
        self.failed += not holds
        print(f"{'PASS' if holds else 'FAIL'} {name}: {shown}", flush=True)


def chat(text, seed, tokens=TOKENS, **fields):
    """A body whose answer names each token by its bytes."""
    return {"messages": [{"role": "user", "content": text}], "max_tokens": tokens, "temperature": 1, "seed": seed,
            "ignore_eos": True, "logprobs": True, "stream": True, **fields}


def post(body):
    content = json.dumps(body).encode()
    return (b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(content)) + content


async def connect(server, receive_bytes=None):
    """A connection; small `receive_bytes` make the server wait for its reader."""
    link = socket.socket()
    link.setblocking(False)
    if receive_bytes:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    await asyncio.get_running_loop().sock_connect(link, (server.host, server.port))
    return await asyncio.open_connection(sock=link, limit=receive_bytes or 2**16)


async def health_seconds(server):
    begin = time.perf_counter()
    reader, writer = await connect(server)
    writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), PATIENCE)
    writer.close()
    if b" 200 " not in answer.split(b"\r\n")[0]:
        raise RuntimeError(f"/health: {answer[:200]}")
    return time.perf_counter() - begin


class Streamed:
    """A stream as it was read: its status, tokens, and whether it came to its end."""

    def __init__(self):
        self.status, self.tokens, self.first_seconds, self.finish, self.done = 0, [], None, None, False

    def take(self, event, begin):
        if event == "[DONE]":
            self.done = True
            return
        for choice in json.loads(event).get("choices", []):
            self.finish = choice.get("finish_reason") or self.finish
            for entry in (choice.get("logprobs") or {}).get("content") or []:
                self.first_seconds = self.first_seconds or time.perf_counter() - begin
                self.tokens.append(tuple(entry["bytes"]))


async def stream(server, body, started=None):
    """Asks for a stream and reads it. `started` is an event set with its first token."""
    result, begin = Streamed(), time.perf_counter()
    reader, writer = await connect(server)
    try:
        writer.write(post(body))
        line = await asyncio.wait_for(reader.readline(), PATIENCE)
        result.status = int(line.split()[1]) if line else 0
        while line := await asyncio.wait_for(reader.readline(), PATIENCE):
            if line.startswith(b"data: "):
                result.take(line[6:].decode().strip(), begin)
                if started and result.tokens:
                    started.set()
    finally:
        writer.close()
    return result


async def check_idle_connections(server, report, idle, half_sent):
    links = [await connect(server) for _ in range(idle + half_sent)]
    for _, writer in links[idle:]:
        writer.write(HALF_SENT)
    await asyncio.sleep(0.2)
    try:
        times = [await health_seconds(server) for _ in range(HEALTHS)]
        report.check(f"/health beside {idle} idle and {half_sent} half-sent connections",
                     max(times) <= HEALTH_SECONDS, f"longest of {HEALTHS} {max(times) * 1e3:.1f} ms")
        answer = await stream(server, chat("beside idle ones", 1))
        report.check("an answer beside them", len(answer.tokens) == TOKENS and answer.done, f"{answer.status}")
    except (OSError, RuntimeError, asyncio.TimeoutError) as error:
        report.check(f"/health beside {idle} idle and {half_sent} half-sent connections", False, repr(error))
    for _, writer in links:
        writer.close()


async def check_many_at_once(server, report, clients):
    bodies = [chat(f"Client {i} asks. " + "x" * (i * 7 % 90), i) for i in range(clients)]
    begin = time.perf_counter()
    together = await asyncio.gather(*(stream(server, body) for body in bodies), return_exceptions=True)
    seconds = time.perf_counter() - begin
    broken = [one for one in together if isinstance(one, Exception)]
    together = [one if isinstance(one, Streamed) else Streamed() for one in together]
    whole = sum(len(one.tokens) == TOKENS and one.done for one in together)
    firsts = [one.first_seconds for one in together if one.first_seconds]
    report.check(f"{clients} streams at once come whole", whole == clients,
                 f"{whole} of {clients} in {seconds:.1f} s, longest time to a first token "
                 f"{max(firsts, default=0):.2f} s; statuses {sorted({one.status for one in together})} {broken[:1]}")
    alone = [await stream(server, body) for body in bodies]
    same = sum(one.tokens == other.tokens and bool(one.tokens) for one, other in zip(together, alone))
    report.check("their tokens are those of the same requests alone", same == clients, f"{same} of {clients}")


async def tokens_beside_readers(server, reads):
    """Tokens a second of 4 clients for QUIET_SECONDS beside 8 long streams, whose readers read or do not."""
    links = []
    for i in range(8):
        reader, writer = await connect(server, 4096)
        writer.write(post(chat("a long one", i, tokens=CAPACITY, top_logprobs=20)))
        links.append((reader, writer))

    async def drain(reader):
        while await reader.read(2**16):
            pass

    drains = [asyncio.create_task(drain(reader)) for reader, _ in links] if reads else []
    for reader, _ in links:
        if not reads:
            reader._transport.pause_reading()  # nothing leaves the socket
    end, made = time.perf_counter() + QUIET_SECONDS, 0

    async def ask(i):
        nonlocal made
        while time.perf_counter() < end:
            made += len((await stream(server, chat(f"beside {i}", i))).tokens)

    begin = time.perf_counter()
    await asyncio.gather(*(ask(i) for i in range(4)))
    rate = made / (time.perf_counter() - begin)
    for task in drains:
        task.cancel()
    for _, writer in links:
        writer.transport.abort()
    await until_idle(server)
    return rate


async def until_idle(server):
    end = time.perf_counter() + PATIENCE
    while server.metric("switchyard_texts_running") and time.perf_counter() < end:
        await asyncio.sleep(0.05)


async def check_slow_readers(server, report):
    quick = await tokens_beside_readers(server, True)
    before = server.resident_bytes()
    slow = await tokens_beside_readers(server, False)
    report.check(f"8 readers that read nothing for {QUIET_SECONDS} s cost others nothing", slow >= SPEED_FACTOR * quick,
                 f"{slow:.0f} tokens/s beside them, {quick:.0f} beside quick readers; "
                 f"{(server.resident_bytes() - before) / 2**20:.1f} MiB more afterwards")
    seconds = await health_seconds(server)
    report.check("/health after slow readers", seconds < 1, f"{seconds * 1e3:.1f} ms")


def broken_request(draw):
    """Bytes of a request that has something wrong, or happens to be right."""
    body = json.dumps(chat("Hello", 1, tokens=2, stream=draw.random() < 0.5, stop=["a"], n=1,
                           response_format={"type": "text"}, logit_bias={"65": 1})).encode()
    kind = draw.randrange(7)
    if kind == 0:  # no HTTP at all
        return draw.randbytes(draw.randrange(1, 300))
    if kind == 1:  # random bytes as a body
        body = draw.randbytes(draw.randrange(0, 300))
    elif kind == 2:  # some bytes changed, dropped, or doubled
        body = bytearray(body)
        for _ in range(draw.randrange(1, 6)):
            at = draw.randrange(len(body))
            body[at:at + draw.randrange(0, 3)] = draw.choice((b"", draw.randbytes(1), b"\"", b"{", b"]", b"-9e999"))
        body = bytes(body)
    elif kind == 3:  # a value of another kind
        changed = json.loads(body)
        changed[draw.choice(list(changed))] = draw.choice(
            (None, -1, 1e308, 2**70, "x" * 1000, [], {}, [[]], [None], {"type": "json_schema"}, True, "\ud800"))
        changed["max_tokens"] = changed["max_tokens"] if changed["max_tokens"] in (2, -1, [], {}) else 2
        body = json.dumps(changed).encode()
    elif kind == 4:  # cut
        body = body[:draw.randrange(len(body))]
    elif kind == 5:  # deep
        depth = draw.choice((50, 99, 100, 101, 5000, 100000))
        inside = draw.choice((b"[", b'{"a":'))
        body = b'{"messages": ' + inside * depth + b"1" + {b"[": b"]"}.get(inside, b"}") * depth + b"}"
    length = len(body)
    if kind == 6:  # a length that is not the body's
        length = draw.choice((0, 1, length - 1, length + 1, length + 1000, -1, 2**40, 2**64, "x"))
    path = draw.choice(("chat/completions", "chat/completions", "messages", "completions"))
    return f"POST /v1/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n\r\n".encode() + body


async def send_broken(server, request, statuses):
    try:
        reader, writer = await connect(server)
        writer.write(request)
        writer.write_eof()
        answer = await asyncio.wait_for(reader.read(4096), PATIENCE)
        word = answer.split(b" ")[1:2] if answer.startswith(b"HTTP/") else [b"none"]
        writer.transport.abort()
    except (ConnectionError, BrokenPipeError):
        word = [b"reset"]
    except asyncio.TimeoutError:
        word = [b"silent"]
    statuses[word[0].decode()] = statuses.get(word[0].decode(), 0) + 1


async def check_broken_requests(server, report, count):
    draw, statuses, before, worst = random.Random(1), {}, 0, 0.0
    for sent in range(0, count, 16):
        await asyncio.gather(*(send_broken(server, broken_request(draw), statuses) for _ in range(16)))
        if sent // 16 == count // 64:  # a quarter of them warm the allocator up
            await until_idle(server)
            before = server.resident_bytes()
        if sent % (16 * 20) == 0:
            worst = max(worst, await health_seconds(server))
    await until_idle(server)
    after = server.resident_bytes()
    shown = ", ".join(f"{word} {number}" for word, number in sorted(statuses.items()))
    report.check(f"{count} broken requests end in answers or closed connections", "silent" not in statuses, shown)
    report.check("none of them is the server's own failure", not any(word.startswith("500") for word in statuses))
    report.check("the server has not grown", after <= before * RSS_FACTOR,
                 f"{before / 2**20:.1f} MiB before, {after / 2**20:.1f} MiB after")
    report.check("/health answered all the time", worst < 1, f"longest {worst * 1e3:.1f} ms")
    answer = await stream(server, chat("after all that", 1))
    report.check("a right request is answered after them", len(answer.tokens) == TOKENS, answer.status)


async def check_drain(server, report):
    tokens, events = CAPACITY - 500, [asyncio.Event() for _ in range(8)]
    running = [asyncio.create_task(stream(server, chat("drain", i, tokens=tokens), event))
               for i, event in enumerate(events)]
    await asyncio.wait_for(asyncio.gather(*(event.wait() for event in events)), PATIENCE)
    server.process.send_signal(signal.SIGTERM)
    await asyncio.sleep(0.3)
    unfinished = sum(not task.done() for task in running)
    try:
        late = (await stream(server, chat("too late", 1))).status
    except OSError as error:
        late = type(error).__name__
    report.check("a stopping server refuses new requests", late in (0, 503) or isinstance(late, str),
                 f"{late}, while {unfinished} streams were going on")
    whole = sum(len(one.tokens) == tokens and one.finish == "length" and one.done
                for one in await asyncio.gather(*running))
    report.check("its running streams end whole", unfinished > 0 and whole == len(running),
                 f"{whole} of {len(running)}")
    status = await asyncio.to_thread(server.process.wait, 60)
    report.check("its exit status is 0", status == 0, status)


async def check_all(server, report, part):
    await check_idle_connections(server, report, 1000 // part, 200 // part)
    await check_many_at_once(server, report, 256 // part)
    await check_slow_readers(server, report)
    await check_broken_requests(server, report, 10000 // part)
    report.check("the server runs", server.process.poll() is None, server.process.poll())
    await check_drain(server, report)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--switchyard", default=str(serving.PROGRAM))
    parser.add_argument("--quick", action="store_true", help="a tenth of the connections and requests")
    parser.add_argument("--settings", default="deterministic_batches=true max_waiting=512", help="more keys")
    args = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16384) if hard >= 0 else 16384, hard))
    report = Report()
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(args.switchyard).resolve()
        model = serving.make_tiny_model(program, folder)
        with serving.Server(program, model, folder, f"chat_template_path={serving.TEMPLATE}",
                            f"max_target_length={CAPACITY}", f"per_device_batch_size={SLOTS}",
                            *args.settings.split()) as server:
            try:
                asyncio.run(check_all(server, report, 10 if args.quick else 1))
            except Exception as error:  # without a server there is nothing more to check
                report.check("all was checked", False, repr(error))
            server.stop()
            if report.failed:
                print(f"the end of the server's log:\n{server.log.read_text()[-2000:]}")
    print(f"{report.ran} checks, {report.failed} failed")
    sys.exit(1 if report.failed else 0)


if __name__ == "__main__":
    main()

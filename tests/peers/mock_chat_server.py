"""A server without a model: gives the chat page, and streams answers that the last message asks for by a word.

python3 tests/peers/mock_chat_server.py --port 8765 [--api-key KEY] [--delay 0.01] [--completes]
"""

import argparse
import base64
import hashlib
import http.server
import json
import pathlib
import re
import threading
import time

PAGE = pathlib.Path(__file__).resolve().parents[2] / "src/serve/page/page.html"
POLICY = ("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{}'; connect-src 'self'; base-uri 'none'; "
          "form-action 'none'; frame-ancestors 'none'")

SWITCH = '''A switchyard sorts cars by where they go. In code, the router scores every expert and keeps the best *k* of them:

```cpp
// Writes the k experts with the highest scores, best first.
void top_experts(std::span<const float> scores, std::span<std::int32_t> chosen) {
  std::vector<std::int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + std::ssize(chosen), order.end(),
                    [&](std::int32_t a, std::int32_t b) { return scores[a] > scores[b]; });
  std::copy_n(order.begin(), chosen.size(), chosen.begin());
}
```

| step | cost |
|---|---|
| scores | one small matrix product |
| choice | `k` of `n`, no sort of the rest |

1. **Dispatch** sends a token to its experts.
2. **Combine** adds what they answer, by their weights.
   - An expert that is full leaves a token out.
'''
HOSTILE = ("<script>window.broken = 1</script> <img src=x onerror=\"window.broken = 1\"> **<b>bold</b>** "
           "[link](javascript:window.broken=1) [<i>site</i>](https://example.org/?a=\"b\")\n\n```html\n<script>window.broken = 1</script>\n"
           "<img src=x onerror=window.broken=1>\n```\n\n| <script>window.broken=1</script> | b |\n|---|---|\n| <svg onload=window.broken=1> | d |\n")
LONG_CODE = "```python\n" + "\n".join(f"value_{line} = compute(first_argument={line}, second_argument={line * line}, name='{'x' * 90}')"
                                        for line in range(400)) + "\n```\nThat is all."
REASONING = "The question is about a yard of tracks. A picture helps: cars come in one track and leave by many. So is a router of experts."


def pieces(text):
    return re.findall(r"\S+\s*|\s+", text)


def answer_to(body):
    """The deltas of an answer, and its finish_reason."""
    if "prompt" in body:
        return [" word"] * (5000 if "slow" in body["prompt"] else 5), "length"
    last = body["messages"][-1]
    text = last.get("content") or ""
    said = lambda words, key="content": [{key: part} for part in pieces(words)]
    if last["role"] == "tool":
        return said(f"The tool says: **{text}**. So take a coat."), "stop"
    if body.get("continue_final_message"):
        return said(" and its end."), "stop"
    if "cut" in text:
        return said("A beginning"), "length"
    if "reason" in text or "switchyard" in text:
        return [{"reasoning_content": part, "reasoning": part} for part in pieces(REASONING)] + said(SWITCH), "stop"
    if "weather" in text:
        name = body["tools"][0]["function"]["name"]
        calls = [{"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": name, "arguments": ""}}]}]
        calls += [{"tool_calls": [{"index": 0, "function": {"arguments": part}}]} for part in ('{"ci', 'ty": "Os', 'lo"', "}")]
        if "two" in text:
            calls += [{"tool_calls": [{"index": 1, "id": "call_2", "type": "function", "function": {"name": name, "arguments": ""}}]},
                      {"tool_calls": [{"index": 1, "function": {"arguments": '{"city": "Bergen"}'}}]}]
        return said("I look it up."[:-1] + ", ", "reasoning_content") + calls, "tool_calls"
    if "code" in text:
        return said(LONG_CODE), "stop"
    if "html" in text:
        return said(HOSTILE), "stop"
    if "escape" in text:
        return said("\x1b[31mred\x07 \x9b2J \x1b]0;title\x07end"), "stop"
    if "slow" in text:
        return said("word " * 5000), "stop"
    if "stars" in text:
        return said("**a " * 4000 + "`" * 4000 + "[" * 4000 + "> " * 2000), "stop"
    return said(f"You said: {text}"), "stop"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def give(self, status, content_type, data, **more):
        self.send_response(status)
        for name, value in {"Content-Type": content_type, "Content-Length": str(len(data)), **more}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def give_json(self, status, value):
        self.give(status, "application/json", json.dumps(value).encode())

    def fail(self, status, message):
        self.give_json(status, {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}})

    def has_key(self):
        key = self.server.options.api_key
        if key and self.headers.get("Authorization") != f"Bearer {key}":
            self.fail(401, "This server needs a key: Authorization: Bearer KEY")
            return False
        return True

    def meta(self):
        chats = self.server.options.chats
        return {"context_length": 4096, "chat_template": chats, "tool_format": "hermes" if chats else None, "reasoning_format": "think" if chats else None}

    def do_GET(self):
        if self.path == "/":
            page = PAGE.read_bytes()
            script = page.split(b"<script>")[1].split(b"</script>")[0]
            policy = POLICY.format(base64.b64encode(hashlib.sha256(script).digest()).decode())
            self.give(200, "text/html; charset=utf-8", page, Content_Security_Policy=policy)
        elif self.path == "/mock/last":
            self.give_json(200, self.server.last)
        elif self.path == "/v1/models":
            if self.has_key():
                self.give_json(200, {"object": "list", "data": [{"id": "small-moe", "object": "model", "meta": self.meta()}]})
        elif self.path == "/props":
            if self.has_key():
                template = "{{ messages }}{{ enable_thinking }}{{ reasoning_effort }}" if self.server.options.chats else None
                self.give_json(200, {**self.meta(), "version": "1.2.3", "model": "small-moe", "chat_template": template})
        else:
            self.fail(404, "There is no such path.")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != ("/v1/chat/completions" if self.server.options.chats else "/v1/completions"):
            return self.fail(404, "There is no such path.")
        if not self.has_key():
            return None
        self.server.last = body
        text = body["prompt"] if "prompt" in body else body["messages"][-1].get("content") or ""
        if "refuse" in text:
            return self.fail(400, "This model's maximum context length is 4096 tokens. However, the messages have 5000.")
        return self.stream(body, breaks="break" in text)

    def event(self, value):
        text = value if isinstance(value, str) else json.dumps(value)
        data = f": wait\n\ndata: {text}\r\n\r\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def stream(self, body, breaks):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        chunk = lambda choices, usage=None: {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": "small-moe",
                                             "choices": choices, "usage": usage}
        part = (lambda delta: {"text": delta or ""}) if "prompt" in body else lambda delta: {"delta": delta}
        choice = lambda delta, finish=None: [{"index": 0, **part(delta), "finish_reason": finish}]
        deltas, finish = answer_to(body)
        try:
            if "prompt" not in body:
                self.event(chunk(choice({"role": "assistant", "content": ""})))
            for count, delta in enumerate(deltas):
                time.sleep(self.server.options.delay)
                self.event(chunk(choice(delta)))
                if breaks and count == 2:
                    self.event({"error": {"message": "The model's device was lost.", "type": "server_error"}})
                    break
            else:
                self.event(chunk(choice({}, finish)))
                reasoning = sum("reasoning_content" in delta for delta in deltas)
                self.event(chunk([], {"prompt_tokens": 31, "completion_tokens": len(deltas), "total_tokens": 31 + len(deltas),
                                      "prompt_tokens_details": {"cached_tokens": 12}, "completion_tokens_details": {"reasoning_tokens": reasoning}}))
                self.event("[DONE]")
            self.wfile.write(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            self.server.stopped.set()
            self.close_connection = True


def start(port=0, api_key="", delay=0.002, chats=True):
    """Serves from a thread; `server.server_address[1]` is the port, `server.last` the last request's body."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    server.options = argparse.Namespace(api_key=api_key, delay=delay, chats=chats)
    server.last, server.stopped = {}, threading.Event()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--api-key", default="")
    parser.add_argument("--delay", type=float, default=0.02)
    parser.add_argument("--completes", action="store_true", help="a model without a chat template")
    options = parser.parse_args()
    print(f"http://127.0.0.1:{start(options.port, options.api_key, options.delay, not options.completes).server_address[1]}/", flush=True)
    threading.Event().wait()

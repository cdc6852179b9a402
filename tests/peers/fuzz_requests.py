"""Sends random and mutated requests to every path of a server and checks what comes back.

python3 tests/peers/fuzz_requests.py --url http://127.0.0.1:8000 [--seconds 60] [--seed 1] [--key KEY] [--pid PID]

Each request must end within --patience seconds with a documented status, whole JSON or a whole stream, and errors in
the form of their path. Conversations grow by the server's own answers (fuzz_conversations.py): sent as they are they must be
answered, and with one place changed they are requests like the others. With --pid the server must still be there at the end, and end on SIGTERM. Python's own library only.
"""
import argparse, copy, http.client, json, os, random, signal, string, sys, threading, time, urllib.parse
from fuzz_conversations import Talks

STATUSES = {200, 204, 400, 401, 403, 404, 405, 413, 415, 422, 429, 431, 500, 501, 503, 505}
SCHEMAS = [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}, {"type": "string", "maxLength": 5},
           {"enum": ["x", 1, None]}, {"anyOf": [{"type": "number"}, {"type": "array", "items": {"type": "boolean"}}]}, {"not": {}}, True]
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMAS[0]}}
USER = {"role": "user", "content": "Hello!"}
CHAT = {"messages": [{"role": "system", "content": "Be brief."}, USER, {"role": "assistant", "content": "a", "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]}, {"role": "tool", "tool_call_id": "call_1", "content": "7"}, USER],
        "max_tokens": 8, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "seed": 1, "n": 2, "stop": ["x"], "stream": True, "stream_options": {"include_usage": True},
        "logprobs": True, "top_logprobs": 2, "tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": False, "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMAS[0]}},
        "logit_bias": {"5": 1.5}, "presence_penalty": 0.5, "cache_salt": "s", "user": "u", "guided_regex": "a+b", "guided_choice": ["yes", "no"], "chat_template_kwargs": {"enable_thinking": False},
        "reasoning_effort": "low", "include_reasoning": True, "max_reasoning_tokens": 3, "continue_final_message": True, "add_generation_prompt": False}
MESSAGES = {"max_tokens": 8, "system": [{"type": "text", "text": "Be brief."}], "stop_sequences": ["x"], "stream": True, "temperature": 0.5, "top_k": 3,
            "messages": [USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": ""}, {"type": "redacted_thinking", "data": "eA=="}, {"type": "tool_use", "id": "x", "name": "f", "input": {}}]},
                         {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": [{"type": "text", "text": "7"}]}, {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "abc"}}]}],
            "tools": [{"name": "f", "input_schema": SCHEMAS[0]}], "tool_choice": {"type": "any"}, "thinking": {"type": "enabled", "budget_tokens": 5},
            "output_config": {"format": {"type": "json_schema", "schema": SCHEMAS[0]}, "effort": "high"}, "metadata": {"user_id": "u"}}
COMPLETION = {"prompt": ["to be", [1, 2, 3]], "max_tokens": 6, "n": 2, "echo": True, "logprobs": 2, "stream": True, "stop": ["x"], "temperature": 1, "seed": 3, "stop_token_ids": [5], "ignore_eos": True, "cache_salt": "s"}
RESPONSES = {"input": [{"role": "developer", "content": "In verse."}, {"role": "user", "content": [{"type": "input_text", "text": "Hello!"}]},
                       {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}], "content": [{"type": "reasoning_text", "text": "t"}], "encrypted_content": "switchyard:YQ=="},
                       {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{\"a\": 1}"}, {"type": "function_call_output", "call_id": "c", "output": "7"},
                       {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes", "annotations": []}]}, USER],
             "instructions": "Be brief.", "max_output_tokens": 8, "stream": True, "temperature": 0.5, "store": False, "previous_response_id": None, "metadata": {"a": "b"}, "truncation": "disabled",
             "include": ["message.output_text.logprobs", "reasoning.encrypted_content"], "top_logprobs": 2, "stream_options": {"include_obfuscation": False}, "parallel_tool_calls": False,
             "tools": [{"type": "function", "name": "f", "parameters": SCHEMAS[0], "strict": True}, {"type": "function", "name": "g"}], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
             "text": {"format": {"type": "json_schema", "name": "s", "schema": SCHEMAS[0]}, "verbosity": "low"}, "reasoning": {"effort": "low", "summary": "auto"}, "background": False, "cache_salt": "s"}
POSTS = {"/v1/chat/completions": CHAT, "/chat/completions": CHAT, "/v1/messages": MESSAGES, "/v1/messages/count_tokens": MESSAGES, "/v1/completions": COMPLETION,
         "/v1/responses": RESPONSES, "/v1/responses/input_tokens": RESPONSES, "/tokenize": {**CHAT, "with_pieces": True}, "/detokenize": {"tokens": [1, 2, 3]}, "/apply-template": CHAT, "/v1/embeddings": {"input": "a"}}
GETS = ["/health", "/metrics", "/v1/models", "/models", "/v1/models/x", "/props", "/", "/nowhere"]
SCALARS = [None, True, False, 0, 1, -1, 2, 1e308, -0.0, 2**31, 2**63, 2**64, -2**63, 0.5, "", "a", "auto", "none", "required", "text", "user", "assistant", "tool", "json_schema", "\u20ac\U0001f984", "\ud800",
           "<|im_end|>", "{{ x }}", "x" * 3000, [], {}, [[]], {"type": "text"}, {"type": "function"}, ["a", None], [0], {"a": {"b": []}}]


class Fuzzer:
    def __init__(self, options, seed):
        self.options, self.random = options, random.Random(seed)
        self.url = urllib.parse.urlsplit(options.url)
        self.counts, self.faults = {}, []
        self.talks, self.stored = Talks(self.random), ["resp_0"]

    def value(self):
        pick = self.random.random()
        if pick < 0.75:
            return copy.deepcopy(self.random.choice(SCALARS))
        if pick < 0.9:
            return copy.deepcopy(self.random.choice(SCHEMAS))
        return "".join(self.random.choices(string.printable + "\u00e9\u4e2d\u0000", k=self.random.randrange(60)))

    def mutate(self, value, names):
        """Changes one place within a JSON value."""
        if isinstance(value, (dict, list)) and value and self.random.random() < 0.8:
            key = self.random.choice(list(value)) if isinstance(value, dict) else self.random.randrange(len(value))
            pick = self.random.random()
            if pick < 0.15:
                del value[key]
            elif pick < 0.25 and isinstance(value, list):
                value.insert(key, copy.deepcopy(value[key]))
            elif pick < 0.3 and isinstance(value, dict):
                value[self.random.choice(names)] = self.value()
            else:
                value[key] = self.mutate(value[key], names)
            return value
        return self.value()

    def query_of_stored(self):
        """A path to a response that is stored, or was, or never was."""
        pick, path = self.random.random(), "/v1/responses/" + self.random.choice(self.stored[-20:])
        if pick < 0.1:
            return path + self.random.choice(["x", "/", "/nothing", "?stream=true", "?include=a", "%00", "%2Finput_items"])
        if pick < 0.5:
            return path
        some = [f"{name}={self.random.choice(values)}" for name, values in
                {"limit": [1, 2, 100, 0, 101, -1, "x", ""], "order": ["asc", "desc", "up"], "after": ["msg_1", "fc_1", "", "%20"]}.items() if self.random.random() < 0.4]
        return path + "/input_items" + ("?" + "&".join(some) if some else "")

    def request(self):
        """Returns a method, a path, headers and a body."""
        headers = {"Content-Type": "application/json"}
        if self.options.key and self.random.random() < 0.95:
            headers[self.random.choice(["Authorization", "x-api-key"])] = ""
            headers = {name: ("Bearer " if name == "Authorization" else "") + self.options.key if not text else text for name, text in headers.items()}
        if self.random.random() < 0.05:
            return self.random.choice(["GET", "GET", "GET", "DELETE", "HEAD", "POST"]), self.query_of_stored(), headers, b""
        if self.random.random() < 0.06:
            return self.random.choice(["GET", "HEAD", "OPTIONS", "DELETE", "POST"]), self.random.choice(GETS + list(POSTS)), headers, b""
        if self.random.random() < 0.3:  # a right one with one place changed
            talk, body = self.talks.next()
            body["stream"] = self.random.random() < 0.5
            return "POST", talk.path, headers, json.dumps(self.mutate(body, list(POSTS[talk.path]))).encode("utf-8", "surrogatepass")
        path = self.random.choice(list(POSTS))
        whole = POSTS[path]
        must = {"messages", "max_tokens", "prompt", "tokens", "input", "max_output_tokens"}
        body = {name: copy.deepcopy(value) for name, value in whole.items() if name in must or self.random.random() < 0.15}
        if self.random.random() < 0.15:  # fields of another API
            other = self.random.choice(list(POSTS.values()))
            name = self.random.choice(list(other))
            body[name] = copy.deepcopy(other[name])
        names = [name for fields in POSTS.values() for name in fields]
        for _ in range(self.random.choice([0, 0, 1, 1, 2, 4])):
            body = self.mutate(body, names)
        text = json.dumps(body, ensure_ascii=self.random.random() < 0.5).encode("utf-8", "surrogatepass")
        if self.random.random() < 0.05:  # bytes
            text = bytearray(text)
            for _ in range(self.random.randrange(1, 4)):
                at = self.random.randrange(len(text) + 1)
                text[at:at + self.random.randrange(3)] = bytes(self.random.randrange(256) for _ in range(self.random.randrange(3)))
            text = bytes(text)
        if self.random.random() < 0.01:
            text = text + b" " * (1 << 20) if self.random.random() < 0.5 else json.dumps({"messages": [{"role": "user", "content": "word " * 400000}], "prompt": "word " * 400000, "max_tokens": 1}).encode()
        return "POST", path, headers, text

    def look(self, path, status, kind, body):
        """Returns what is wrong with an answer."""
        if status not in STATUSES:
            return f"status {status}"
        if status == 500:
            return "status 500"
        if status >= 400:
            try:
                error = json.loads(body)["error"]
            except (ValueError, KeyError, TypeError):
                return f"an error without its form: {body[:200]!r}"
            own = path == "/v1/messages" or path.startswith("/v1/messages/")
            if own != (json.loads(body).get("type") == "error") or not isinstance(error.get("message"), str) or not error["message"] or "\n" in error["message"].strip():
                return f"an error of another form: {body[:200]!r}"
        elif kind.startswith("text/event-stream"):
            return self.look_at_stream(path, [line[5:].strip() for line in body.decode().split("\n") if line.startswith("data:")])
        elif kind.startswith("application/json") and body:
            json.loads(body)
        return None

    def look_at_stream(self, path, texts):
        events = [json.loads(text) for text in texts if text != "[DONE]"]
        names = [event.get("type") for event in events]
        if path == "/v1/messages":
            ends = [name for name in names if name in ("message_stop", "error")]
            if names.count("content_block_start") != names.count("content_block_stop") and "error" not in names:
                return f"blocks without an end: {names}"
        elif path == "/v1/responses":
            ends = [name for name in names if name in ("response.completed", "response.incomplete", "response.failed", "error")]
            if [event["sequence_number"] for event in events] != list(range(len(events))):
                return "sequence numbers that are none"
            items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
            if "response.failed" not in names and items != events[-1]["response"]["output"]:
                return f"items that are not the response's: {items}"
        else:
            ends = [text for text in texts if text == "[DONE]"]
        return f"a stream with {len(ends)} ends" if len(ends) != 1 else None

    def go_on(self):
        """A right request: it must be answered."""
        talk, body = self.talks.next()
        headers = {"Content-Type": "application/json", "Authorization": "Bearer " + self.options.key}
        answer, data = self.send("POST", talk.path, headers, json.dumps(body).encode())
        problem = self.look(talk.path, answer.status, answer.headers.get("Content-Type", ""), data) or self.talks.took(talk, answer.status, data)
        if talk.path == "/v1/responses" and answer.status == 200:
            self.stored.append(json.loads(data)["id"])
        return problem and f"{problem}\n  POST {talk.path} {json.dumps(body)[:3000]}"

    def send(self, method, path, headers, body, leaves=False):
        connection = http.client.HTTPConnection(self.url.hostname, self.url.port, timeout=self.options.patience)
        try:
            connection.request(method, path, body if method == "POST" else None, headers)
            if leaves:
                return None, b""
            answer = connection.getresponse()
            data = answer.read()
            shown = "/v1/responses/ID" + ("/input_items" if "input_items" in path else "") if path.startswith("/v1/responses/") and "input_tokens" not in path else path
            self.counts[f"{method} {shown}", answer.status] = self.counts.get((f"{method} {shown}", answer.status), 0) + 1
            return answer, data
        finally:
            connection.close()

    def one(self):
        begin, problem = time.monotonic(), None
        is_right = self.random.random() < 0.2
        method, path, headers, body = ("", "", {}, b"") if is_right else self.request()
        leaves = self.random.random() < 0.03  # without waiting for the answer
        try:
            if is_right:
                problem = self.go_on()
            else:
                answer, data = self.send(method, path, headers, body, leaves)
                if answer is not None and method not in ("HEAD", "OPTIONS"):
                    problem = self.look(urllib.parse.urlsplit(path).path, answer.status, answer.headers.get("Content-Type", ""), data)
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            problem = f"{type(error).__name__}: {error}"
        if time.monotonic() - begin > self.options.patience:
            problem = problem or f"took {time.monotonic() - begin:.1f} s"
        if problem:
            self.faults.append(problem if is_right else f"{problem}\n  {method} {path} {body[:1500]!r}")

    def run(self, end):
        while time.monotonic() < end and len(self.faults) < 10:
            self.one()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--patience", type=float, default=30, help="seconds that a request may take")
    parser.add_argument("--key", default="")
    parser.add_argument("--pid", type=int)
    options = parser.parse_args()
    fuzzers = [Fuzzer(options, options.seed * 1000 + i) for i in range(options.threads)]
    end = time.monotonic() + options.seconds
    threads = [threading.Thread(target=fuzzer.run, args=(end,)) for fuzzer in fuzzers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    faults = [fault for fuzzer in fuzzers for fault in fuzzer.faults]
    statuses = {}
    for fuzzer in fuzzers:
        for (path, status), count in fuzzer.counts.items():
            statuses.setdefault(path, {})[status] = statuses.setdefault(path, {}).get(status, 0) + count
    for path, counts in sorted(statuses.items()):
        print(path, dict(sorted(counts.items())))
    if options.pid:
        try:
            os.kill(options.pid, signal.SIGTERM)
            for _ in range(300):
                os.kill(options.pid, 0)
                state = open(f"/proc/{options.pid}/stat").read().rsplit(")", 1)[1].split()[0]
                if state == "Z":
                    break
                time.sleep(0.1)
            else:
                faults.append("the server did not end within 30 s of SIGTERM")
        except (ProcessLookupError, FileNotFoundError):
            if faults and "refused" in faults[-1].lower():
                faults.append("the server was gone")
    for fault in faults[:20]:
        print("fault:", fault)
    print(f"{sum(sum(counts.values()) for counts in statuses.values())} requests, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

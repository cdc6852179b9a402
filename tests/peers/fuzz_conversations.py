"""Conversations that grow by a server's own answers: each request of theirs is right, so each must be answered.

What the model says is whatever it says: cut calls, broken arguments, half characters. A client sends it back as it came.
"""
import copy, json

USER = {"role": "user", "content": "And now?"}
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer"}}, "required": ["city"], "additionalProperties": False}
FUNCTION = {"name": "weather", "description": "Tells the weather.", "parameters": SCHEMA}
FORM = {"type": "json_schema", "name": "s", "schema": SCHEMA}


class Chat:
    path = "/v1/chat/completions"
    forms = [{}, {"tool_choice": "required"}, {"tool_choice": "none"}, {"parallel_tool_calls": False, "tool_choice": "required"}, {"cache_salt": "a"}, {"stop": ["e", "}"]},
             {"tool_choice": "none", "response_format": {"type": "json_schema", "json_schema": FORM}}]

    def __init__(self):
        self.body = {"messages": [{"role": "system", "content": "Be brief."}, USER], "tools": [{"type": "function", "function": FUNCTION}]}

    def grow(self, answer):
        message = answer["choices"][0]["message"]
        self.body["messages"].append(message)
        calls = message.get("tool_calls") or []
        self.body["messages"] += [{"role": "tool", "tool_call_id": call["id"], "content": "sunny"} for call in calls] or [USER]

    def limit(self, tokens):
        return {"max_tokens": tokens}


class Messages(Chat):
    path = "/v1/messages"
    forms = [{}, {"tool_choice": {"type": "any"}}, {"tool_choice": {"type": "none"}}, {"tool_choice": {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}}, {"cache_salt": "a"},
             {"stop_sequences": ["e", "}"]}, {"tool_choice": {"type": "none"}, "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}]

    def __init__(self):
        self.body = {"system": "Be brief.", "messages": [USER], "tools": [{"name": "weather", "description": "Tells the weather.", "input_schema": SCHEMA}]}

    def grow(self, answer):
        content = answer["content"]
        uses = [block for block in content if block["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": use["id"], "content": "sunny"} for use in uses]
        self.body["messages"] += [{"role": "assistant", "content": content or ""}, {"role": "user", "content": results} if results else USER]


class Responses(Chat):
    path = "/v1/responses"
    forms = [{}, {"tool_choice": "required"}, {"tool_choice": "none"}, {"parallel_tool_calls": False, "tool_choice": {"type": "function", "name": "weather"}}, {"cache_salt": "a"}, {"stop": ["e", "}"]},
             {"tool_choice": "none", "text": {"format": FORM}}, {"include": ["reasoning.encrypted_content"], "reasoning": {"effort": "low"}}]

    def __init__(self):
        self.body = {"instructions": "Be brief.", "input": [USER], "tools": [{"type": "function", **FUNCTION}]}

    def grow(self, answer):
        self.body["input"] += answer["output"] + self.next(answer)

    def next(self, answer):
        calls = [item for item in answer["output"] if item["type"] == "function_call"]
        return [{"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"} for call in calls] or [USER]

    def limit(self, tokens):
        return {"max_output_tokens": tokens}


class StoredResponses(Responses):
    """Goes on from what the server has stored."""

    def grow(self, answer):
        self.body["previous_response_id"], self.body["input"] = answer["id"], self.next(answer)


class Completions(Chat):
    path = "/v1/completions"
    forms = [{}, {"stop": ["e"]}, {"echo": True, "logprobs": 1}, {"cache_salt": "a"}]

    def __init__(self):
        self.body = {"prompt": "To be"}

    def grow(self, answer):
        self.body["prompt"] += answer["choices"][0]["text"]


KINDS = [Chat, Messages, Responses, StoredResponses, Completions]


class Talks:
    """One conversation of each kind. A Talks belongs to one thread."""

    def __init__(self, random):
        self.random, self.talks = random, [kind() for kind in KINDS]

    def next(self):
        """A conversation, and the body of its next request."""
        at = self.random.randrange(len(self.talks))
        talk = self.talks[at]
        return talk, {**copy.deepcopy(talk.body), **copy.deepcopy(self.random.choice(talk.forms)), "temperature": 1, "seed": self.random.randrange(1000),
                      **talk.limit(self.random.choice([1, 5, 30, 200]))}

    def took(self, talk, status, data):
        """Goes on with the answer of a right request. Returns what is wrong with it."""
        at = self.talks.index(talk)
        if status == 200:
            talk.grow(json.loads(data))
            return None
        self.talks[at] = type(talk)()
        ended = b"maximum context length" in data or b"expected at most" in data or b"previous_response_not_found" in data or b"\"item_not_found\"" in data
        if status in (429, 503) or (status in (400, 404) and ended):
            return None
        return f"a right request was refused with {status}: {data[:300]!r}"

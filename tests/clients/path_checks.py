"""Models, completions, tokens, the form of Anthropic's API, and the other paths."""

import json

import httpx2 as httpx
import jsonschema
import openai
from chat_checks import MESSAGES, SCHEMAS, TOKENS, TOOLS, ask
from checks import check, expect, expect_equal, expect_raises

ASKED = {"max_tokens": TOKENS, "temperature": 1, "seed": 7, "ignore_eos": True, "system": MESSAGES[0]["content"],
         "messages": MESSAGES[1:]}


def post(given, path, body, status=200):
    answer = httpx.post(given.server.url + path, json=body, timeout=60)
    expect(answer.status_code == status, path, answer.status_code, answer.text)
    return answer.json()


def events_of(given, body):
    """The events of a stream of /v1/messages: their data, whose types are the events' names."""
    events = []
    with httpx.stream("POST", given.server.url + "/v1/messages", json={**body, "stream": True}, timeout=60) as answer:
        expect_equal(answer.status_code, 200)
        expect(answer.headers["content-type"].startswith("text/event-stream"), answer.headers["content-type"])
        name = None
        for line in answer.iter_lines():
            if line.startswith("event:"):
                name = line[6:].strip()
            elif line.startswith("data:"):
                events.append(json.loads(line[5:]))
                expect_equal(events[-1]["type"], name)
    return events


@check
def models_are_listed_and_shown(given):
    listed, = given.client.models.list().data[:1]
    expect_equal((listed.id, listed.object), (given.server.model, "model"))
    shown = given.client.models.retrieve(given.server.model)
    expect_equal((shown.id, shown.meta["context_length"], shown.meta["chat_template"]), (listed.id, 2048, True))
    expect_equal(shown.meta["tool_format"], "hermes")


@check
def an_alias_is_the_same_model(given):
    expect_equal(ask(given, model="other-name").choices[0].message.content, ask(given).choices[0].message.content)


@check
def paths_without_v1_are_the_same(given):
    client = openai.OpenAI(base_url=given.server.url, api_key="none", max_retries=0, timeout=60)
    expect(client.chat.completions.create(model=given.server.model, messages=MESSAGES, max_tokens=1).choices, "?")
    expect_equal(client.models.list().data[0].id, given.server.model)


@check
def completions_answer_as_before(given):
    asked = {"model": given.server.model, "prompt": "The ", "max_tokens": TOKENS, "temperature": 1, "seed": 3}
    whole = given.client.completions.create(**asked)
    expect_equal((whole.object, whole.usage.prompt_tokens), ("text_completion", 4))
    streamed = "".join(chunk.choices[0].text for chunk in given.client.completions.create(**asked, stream=True))
    expect_equal(streamed, whole.choices[0].text)
    expect_raises(openai.BadRequestError, lambda: given.client.completions.create(**asked, extra_body={"wagon": 1}))


@check
def the_prompt_that_completions_get_makes_the_chat_s_answer(given):
    prompt = post(given, "/apply-template", {"messages": MESSAGES})["prompt"]
    plain = given.client.completions.create(model=given.server.model, prompt=prompt, max_tokens=TOKENS, temperature=0,
                                            extra_body={"ignore_eos": True})
    expect_equal(ask(given, temperature=0).choices[0].message.content, plain.choices[0].text)


@check
def messages_answer_in_anthropic_s_form(given):
    answer = post(given, "/v1/messages", {**ASKED, "model": given.server.model})
    expect_equal([answer[key] for key in ("type", "role", "model", "stop_reason", "stop_sequence")],
                 ["message", "assistant", given.server.model, "max_tokens", None])
    block, = answer["content"]
    same = ask(given)
    expect_equal((block["type"], block["text"]), ("text", same.choices[0].message.content))
    usage = answer["usage"]
    expect_equal(usage["output_tokens"], TOKENS)
    expect_equal(usage["input_tokens"] + usage["cache_read_input_tokens"], same.usage.prompt_tokens)


@check
def messages_stream_in_anthropic_s_form(given):
    events = events_of(given, ASKED)
    names = [event["type"] for event in events if event["type"] != "ping"]
    expect_equal(names[:2] + names[-3:], ["message_start", "content_block_start", "content_block_stop",
                                          "message_delta", "message_stop"])
    text = "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta")
    expect_equal(text, ask(given).choices[0].message.content)
    end = next(event for event in events if event["type"] == "message_delta")
    expect_equal((end["delta"]["stop_reason"], end["usage"]["output_tokens"]), ("max_tokens", TOKENS))


@check
def messages_end_at_their_stop_sequences(given):
    whole = ask(given, max_tokens=100).choices[0].message.content
    at = next(i for i in range(5, len(whole)) if "!" <= whole[i] <= "~" and whole.index(whole[i]) == i)
    answer = post(given, "/v1/messages", {**ASKED, "max_tokens": 100, "stop_sequences": [whole[at]]})
    expect_equal((answer["content"][0]["text"], answer["stop_reason"], answer["stop_sequence"]),
                 (whole[:at], "stop_sequence", whole[at]))


@check
def messages_use_tools(given):
    tools = [{"name": tool["function"]["name"], "description": "x", "input_schema": tool["function"]["parameters"]}
             for tool in TOOLS]
    body = {**ASKED, "max_tokens": 900, "ignore_eos": False, "tools": tools, "tool_choice": {"type": "any"}}
    answer = post(given, "/v1/messages", body)
    uses = [block for block in answer["content"] if block["type"] == "tool_use"]
    expect(uses and answer["stop_reason"] == "tool_use", answer)
    for use in uses:
        jsonschema.validate(use["input"], SCHEMAS[use["name"]])
    events = events_of(given, body)
    parts = "".join(event["delta"].get("partial_json", "") for event in events
                    if event["type"] == "content_block_delta" and event["index"] == answer["content"].index(uses[0]))
    expect_equal(json.loads(parts), uses[0]["input"])
    result = {"type": "tool_result", "tool_use_id": uses[0]["id"], "content": "sunny"}
    post(given, "/v1/messages", {**body, "messages": [*body["messages"],
                                                      {"role": "assistant", "content": answer["content"]},
                                                      {"role": "user", "content": [result]}]})


@check
def errors_of_messages_have_anthropic_s_form(given):
    for body in ({**ASKED, "max_tokens": None}, {**ASKED, "messages": []},
                 {**ASKED, "messages": [{"role": "wagon", "content": "x"}]}):
        answer = post(given, "/v1/messages", body, 400)
        expect_equal((answer["type"], answer["error"]["type"]), ("error", "invalid_request_error"))
    answer = httpx.post(given.keyed.url + "/v1/messages", json=ASKED, headers={"x-api-key": "wrong"}, timeout=60)
    expect_equal((answer.status_code, answer.json()["error"]["type"]), (401, "authentication_error"))


@check
def text_becomes_tokens_and_text_again(given):
    text = "Où est l'été ? 🙂"
    for name in ("content", "prompt"):
        told = post(given, "/tokenize", {name: text})
        expect_equal((told["tokens"], told["count"], told["max_model_len"]),
                     (list(text.encode()), len(text.encode()), 2048))
    back = post(given, "/detokenize", {"tokens": told["tokens"]})
    expect_equal((back["content"], back["prompt"]), (text, text))
    post(given, "/detokenize", {"tokens": [99999]}, 400)


@check
def messages_become_tokens_as_a_chat_counts_them(given):
    expect_equal(post(given, "/tokenize", {"messages": MESSAGES})["count"], ask(given).usage.prompt_tokens)


@check
def the_template_shows_its_prompt(given):
    prompt = post(given, "/apply-template", {"messages": MESSAGES, "tools": TOOLS})["prompt"]
    expect(prompt.startswith("<|im_start|>system\nTools, one a line:\n{\"type\": \"function\""), prompt)
    expect(prompt.endswith("Où est l'été ?<|im_end|>\n<|im_start|>assistant\n"), prompt)


@check
def props_say_what_is_served(given):
    props = httpx.get(given.server.url + "/props", timeout=60).json()
    told = json.dumps(props)
    expect("hermes" in told and "2048" in told and "<|im_start|>" in told and "version" in told, told)
    keyed = httpx.get(given.keyed.url + "/props", headers={"x-api-key": given.key}, timeout=60)
    expect(keyed.status_code == 200 and given.key not in keyed.text, keyed.status_code)


@check
def embeddings_are_not_supported(given):
    error = expect_raises(openai.InternalServerError,
                          lambda: given.client.embeddings.create(model=given.server.model, input="x"))
    expect_equal((error.status_code, error.code), (501, "not_supported"))


@check
def metrics_count_chats_and_calls(given):
    finished = 'switchyard_chat_requests_total{finish="length"}'
    before = given.server.metric(finished)
    ask(given)
    expect_equal(given.server.metric(finished), before + 1)
    calls = 'switchyard_tool_calls_total{format="hermes"}'
    before = given.server.metric(calls)
    ask(given, max_tokens=900, extra_body={}, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    expect_equal(given.server.metric(calls), before + 1)
    expect(given.server.metric("switchyard_prompt_tokens_reused_total") > 0, "prompts were reused")

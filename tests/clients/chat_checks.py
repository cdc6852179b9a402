"""What OpenAI's client gets from /v1/chat/completions: answers, streams, calls, structured output."""

import asyncio
import json
import time

import jsonschema
import openai
import pydantic
from checks import check, expect, expect_equal
from serving import END_OF_TEXT
from typing import Literal

MESSAGES = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "Où est l'été ?"}]
TOKENS = 24
AT_ONCE = 16
ENDS_AT_ONCE = {str(END_OF_TEXT): 100}

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1,
                                                                                "maximum": 9},
                   "metric": {"type": "boolean"}},
    "required": ["city", "days", "metric"], "additionalProperties": False}
CLOCK = {"type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"],
         "additionalProperties": False}
SCHEMAS = {"weather": WEATHER, "clock": CLOCK}
TOOLS = [{"type": "function", "function": {"name": name, "description": f"Tells the {name}.", "parameters": schema}}
         for name, schema in SCHEMAS.items()]
RECORD = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "kind": {"enum": ["a", "b", None]},
                   "marks": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 10},
                             "minItems": 1, "maxItems": 3}},
    "required": ["name", "kind", "marks"], "additionalProperties": False}


def ask(given, **fields):
    """Asks for TOKENS sampled tokens; fields that are no arguments of the client stand in `extra_body`."""
    asked = {"model": given.server.model, "messages": MESSAGES, "max_tokens": TOKENS, "temperature": 1, "seed": 7,
             "extra_body": {"ignore_eos": True}, **fields}
    return given.client.chat.completions.create(**asked)


def ask_for_schema(given, **fields):
    return ask(given, max_tokens=900, extra_body={}, **fields)


def joined(chunks, choice=0):
    """Content, finish reason and calls that the chunks of a stream make for a choice."""
    content, finish, calls = "", None, {}
    for chunk in chunks:
        for one in chunk.choices:
            if one.index != choice:
                continue
            content += one.delta.content or ""
            finish = one.finish_reason or finish
            for part in one.delta.tool_calls or []:
                call = calls.setdefault(part.index, {"id": "", "name": "", "arguments": ""})
                call["id"] += part.id or ""
                call["name"] += part.function.name or ""
                call["arguments"] += part.function.arguments or ""
    return content, finish, [calls[index] for index in sorted(calls)]


def expect_calls(calls, names=tuple(SCHEMAS)):
    expect(calls, "no calls")
    for call in calls:
        expect_equal(call.type, "function")
        expect(call.function.name in names, call)
        expect(call.id.startswith("call_"), call)
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])


@check
def an_answer_has_the_fields_of_the_api(given):
    answer = ask(given)
    expect_equal(answer.object, "chat.completion")
    expect(answer.id.startswith("chatcmpl-") and abs(answer.created - time.time()) < 600, answer)
    expect_equal(answer.model, given.server.model)
    expect(isinstance(answer.system_fingerprint, str) and answer.system_fingerprint, answer)
    choice, = answer.choices
    expect_equal((choice.index, choice.finish_reason, choice.logprobs), (0, "length", None))
    message = choice.message
    expect_equal((message.role, message.refusal, message.tool_calls), ("assistant", None, None))
    expect(isinstance(message.content, str) and message.content, message)
    expect("tool_calls" not in message.model_fields_set, "tool_calls is left out where there are none")


@check
def usage_counts_the_tokens(given):
    usage = ask(given).usage
    prompt = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in MESSAGES)
    expect_equal(usage.prompt_tokens, len((prompt + "<|im_start|>assistant\n").encode()))
    expect_equal(usage.completion_tokens, TOKENS)
    expect_equal(usage.total_tokens, usage.prompt_tokens + TOKENS)
    expect_equal(usage.completion_tokens_details.reasoning_tokens, 0)


@check
def the_end_token_ends_an_answer_with_stop(given):
    choice = ask(given, logit_bias=ENDS_AT_ONCE, extra_body={}).choices[0]
    expect_equal((choice.finish_reason, choice.message.content), ("stop", ""))


@check
def max_completion_tokens_wins_over_max_tokens(given):
    expect_equal(ask(given, max_completion_tokens=5).usage.completion_tokens, 5)


@check
def without_max_tokens_an_answer_is_as_long_as_fits(given):
    answer = ask(given, max_tokens=None, messages=[{"role": "user", "content": "x" * 1900}])
    expect_equal((answer.usage.total_tokens, answer.choices[0].finish_reason), (2048, "length"))


@check
def null_fields_are_as_if_not_there(given):
    body = {"max_tokens": None, "stop": None, "tools": None, "response_format": None, "logprobs": None, "n": None,
            "top_logprobs": None, "stream_options": None, "ignore_eos": True}
    answer = ask(given, max_completion_tokens=TOKENS, max_tokens=openai.omit, extra_body=body)
    expect_equal(answer.choices[0].message.content, ask(given).choices[0].message.content)


@check
def n_gives_so_many_different_choices(given):
    answer = ask(given, n=3)
    expect_equal([choice.index for choice in answer.choices], [0, 1, 2])
    expect_equal(len({choice.message.content for choice in answer.choices}), 3)
    expect_equal(answer.usage.completion_tokens, 3 * TOKENS)


@check
def a_seed_gives_the_same_answer_again(given):
    texts = [ask(given, seed=seed).choices[0].message.content for seed in (7, 7, 8)]
    expect_equal(texts[0], texts[1])
    expect(texts[0] != texts[2], texts)


@check
def temperature_0_is_greedy_whatever_the_seed(given):
    expect_equal(*(ask(given, temperature=0, seed=seed).choices[0].message.content for seed in (1, 2)))


@check
def stop_cuts_the_answer_before_its_text(given):
    whole = ask(given, max_tokens=100).choices[0].message.content
    at = next(i for i in range(5, len(whole)) if "!" <= whole[i] <= "~" and whole.index(whole[i]) == i)
    for stop in (whole[at], ["never found", "nor this", "\x00\x00\x00", whole[at]]):
        choice = ask(given, max_tokens=100, stop=stop).choices[0]
        expect_equal((choice.message.content, choice.finish_reason), (whole[:at], "stop"))


@check
def a_joined_stream_is_the_whole_answer(given):
    whole = ask(given, max_tokens=200).choices[0]
    chunks = list(ask(given, max_tokens=200, stream=True))
    expect_equal(joined(chunks)[:2], (whole.message.content, whole.finish_reason))
    first = chunks[0].choices[0].delta
    expect_equal((first.role, first.content), ("assistant", ""))
    expect(all(chunk.object == "chat.completion.chunk" and chunk.id == chunks[0].id for chunk in chunks), chunks[:3])
    expect_equal([chunk.usage for chunk in chunks if chunk.usage], [])
    expect_equal(sum(1 for chunk in chunks if chunk.choices[0].finish_reason), 1)


@check
def a_stream_of_choices_joins_to_each(given):
    whole = ask(given, n=3)
    chunks = list(ask(given, n=3, stream=True))
    for choice in whole.choices:
        expect_equal(joined(chunks, choice.index)[0], choice.message.content)


@check
def a_stream_with_stop_ends_like_the_whole(given):
    whole = ask(given, max_tokens=200).choices[0].message.content
    stop = next(whole[i:i + 2] for i in range(20, 190) if all("!" <= c <= "~" for c in whole[i:i + 2]))
    chunks = list(ask(given, max_tokens=200, stream=True, stop=[stop]))
    expect_equal(joined(chunks)[:2], (whole[:whole.index(stop)], "stop"))


@check
def a_stream_tells_its_usage_at_the_end_when_asked(given):
    chunks = list(ask(given, stream=True, stream_options={"include_usage": True}))
    expect_equal(chunks[-1].choices, [])
    whole = ask(given).usage
    told = chunks[-1].usage
    expect_equal((told.prompt_tokens, told.completion_tokens, told.total_tokens),
                 (whole.prompt_tokens, whole.completion_tokens, whole.total_tokens))
    expect(all(chunk.usage is None for chunk in chunks[:-1]), chunks[0])


@check
def stream_options_without_stream_have_no_effect(given):
    answer = ask(given, extra_body={"stream_options": {"include_usage": True}, "ignore_eos": True})
    expect_equal(answer.object, "chat.completion")


@check
def logprobs_have_an_entry_for_each_token(given):
    answer = ask(given, logprobs=True, top_logprobs=3)
    entries = answer.choices[0].logprobs.content
    expect_equal(len(entries), answer.usage.completion_tokens)
    made = b""
    for entry in entries:
        expect(entry.logprob <= 0 and len(entry.top_logprobs) == 3, entry)
        tops = [top.logprob for top in entry.top_logprobs]
        expect_equal(tops, sorted(tops, reverse=True))
        expect(entry.logprob <= tops[0] + 1e-6, entry)
        expect(isinstance(entry.token, str) and all(0 <= byte < 256 for byte in entry.bytes), entry)
        made += bytes(entry.bytes)
    text = made.decode(errors="replace").replace("\ufffd", "")
    expect_equal(answer.choices[0].message.content.replace("\ufffd", ""), text)
    expect_equal(answer.choices[0].message.content, ask(given).choices[0].message.content)


@check
def logprobs_without_top_have_none(given):
    entries = ask(given, logprobs=True).choices[0].logprobs.content
    expect_equal([entry.top_logprobs for entry in entries], [[]] * TOKENS)


@check
def logprobs_of_a_stream_are_those_of_the_whole(given):
    whole = ask(given, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    parts = []
    for chunk in ask(given, logprobs=True, top_logprobs=2, stream=True):
        if chunk.choices and chunk.choices[0].logprobs:
            parts += chunk.choices[0].logprobs.content or []
    expect_equal([part.model_dump() for part in parts], [entry.model_dump() for entry in whole])


@check
def logit_bias_forces_a_token(given):
    expect_equal(ask(given, logit_bias={"65": 100}).choices[0].message.content, "A" * TOKENS)


@check
def required_tools_are_called_by_their_schema(given):
    for seed in range(4):
        choice = ask_for_schema(given, tools=TOOLS, tool_choice="required", seed=seed).choices[0]
        expect_calls(choice.message.tool_calls)
        expect_equal(choice.finish_reason, "tool_calls")


@check
def a_named_tool_is_called(given):
    for name in SCHEMAS:
        choice = ask_for_schema(given, tools=TOOLS, tool_choice={"type": "function", "function": {"name": name}})
        expect_calls(choice.choices[0].message.tool_calls, [name])


@check
def allowed_tools_are_the_only_ones_called(given):
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
        {"type": "function", "function": {"name": "clock"}}]}}
    for seed in range(3):
        answer = ask_for_schema(given, tools=TOOLS, tool_choice=allowed, seed=seed)
        expect_calls(answer.choices[0].message.tool_calls, ["clock"])


@check
def a_stream_of_calls_joins_to_the_whole(given):
    fields = {"tools": TOOLS, "tool_choice": "required"}
    whole = ask_for_schema(given, **fields).choices[0]
    content, finish, calls = joined(list(ask_for_schema(given, stream=True, **fields)))
    expect_equal((content, finish), (whole.message.content or "", whole.finish_reason))
    expect_equal([(call["name"], call["arguments"]) for call in calls],
                 [(call.function.name, call.function.arguments) for call in whole.message.tool_calls])
    expect(all(call["id"] for call in calls), calls)


@check
def without_parallel_calls_there_is_one(given):
    for seed in range(4):
        answer = ask_for_schema(given, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, seed=seed)
        expect_equal(len(answer.choices[0].message.tool_calls), 1)


@check
def tool_choice_none_hides_the_tools(given):
    answer = ask(given, tools=TOOLS, tool_choice="none")
    expect_equal(answer.usage.prompt_tokens, ask(given).usage.prompt_tokens)
    expect_equal(answer.choices[0].message.tool_calls, None)
    expect(ask(given, tools=TOOLS).usage.prompt_tokens > answer.usage.prompt_tokens + 100, "auto shows them")


@check
def an_answer_with_calls_can_be_sent_back(given):
    first = ask_for_schema(given, tools=TOOLS, tool_choice="required", parallel_tool_calls=False).choices[0].message
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "sunny"}
    answer = ask(given, messages=[*MESSAGES, first, result], tools=TOOLS)
    expect_equal(answer.usage.completion_tokens, TOKENS)


@check
def json_schema_holds_the_content(given):
    form = {"type": "json_schema", "json_schema": {"name": "record", "schema": RECORD, "strict": True}}
    for seed in range(5):
        choice = ask_for_schema(given, response_format=form, seed=seed).choices[0]
        jsonschema.validate(json.loads(choice.message.content), RECORD)
        expect_equal(choice.finish_reason, "stop")


@check
def a_stream_with_a_schema_joins_to_the_whole(given):
    form = {"type": "json_schema", "json_schema": {"name": "record", "schema": RECORD}}
    whole = ask_for_schema(given, response_format=form).choices[0].message.content
    expect_equal(joined(list(ask_for_schema(given, response_format=form, stream=True)))[0], whole)


@check
def parse_gives_an_object_of_pydantic(given):
    class Answer(pydantic.BaseModel):
        colour: Literal["red", "green"]
        sure: bool

    answer = given.client.chat.completions.parse(model=given.server.model, messages=MESSAGES, response_format=Answer,
                                                 temperature=1, max_tokens=200)
    expect(isinstance(answer.choices[0].message.parsed, Answer), answer)


@check
def json_object_gives_an_object(given):
    closes = {str(ord("}")): 60}
    choice = ask_for_schema(given, response_format={"type": "json_object"}, logit_bias=closes).choices[0]
    expect(isinstance(json.loads(choice.message.content), dict), choice)
    expect_equal(choice.finish_reason, "stop")


@check
def structured_outputs_of_vllm_hold_too(given):
    choice = ask(given, extra_body={"structured_outputs": {"choice": ["yes", "no"]}}).choices[0]
    expect(choice.message.content in ("yes", "no"), choice)
    choice = ask(given, extra_body={"guided_regex": "[a-c]{3}-[0-9]"}).choices[0]
    expect(len(choice.message.content) == 5 and choice.message.content[3] == "-", choice)


@check
def the_last_message_can_be_continued(given):
    messages = [*MESSAGES, {"role": "assistant", "content": "It is"}]
    body = {"continue_final_message": True, "add_generation_prompt": False, "ignore_eos": True}
    answer = ask(given, messages=messages, extra_body=body)
    ended = ask(given, messages=messages)
    opening = len("<|im_end|>\n<|im_start|>assistant\n")
    expect_equal(answer.usage.prompt_tokens, ended.usage.prompt_tokens - opening)


@check
def a_second_turn_does_not_read_the_first_again(given):
    messages = [{"role": "system", "content": "Of wagons and of tracks. " * 10}, {"role": "user", "content": "One?"}]
    first = ask(given, messages=messages, temperature=0, logit_bias={"65": 100})
    messages += [{"role": "assistant", "content": first.choices[0].message.content},
                 {"role": "user", "content": "Two?"}]
    usage = ask(given, messages=messages).usage
    # With deterministic_batches=true a prompt begins with whole chunks of others' prompts.
    expect(usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens // 256 * 256 > 0, usage)
    expect(usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens, usage)


@check
def an_async_client_gets_16_answers_at_once(given):
    async def all_at_once():
        client = openai.AsyncOpenAI(base_url=given.server.url + "/v1", api_key="none", max_retries=0, timeout=120)
        return await asyncio.gather(*(client.chat.completions.create(
            model=given.server.model, max_tokens=TOKENS, temperature=1, seed=seed, extra_body={"ignore_eos": True},
            messages=[{"role": "user", "content": f"Number {seed}"}]) for seed in range(AT_ONCE)))

    for seed, answer in enumerate(asyncio.run(all_at_once())):
        alone = ask(given, messages=[{"role": "user", "content": f"Number {seed}"}], seed=seed)
        expect_equal(answer.choices[0].message.content, alone.choices[0].message.content)


@check
def a_closed_stream_gives_its_text_up(given):
    name = 'switchyard_texts_total{end="abandoned"}'
    before = given.server.metric(name)
    stream = ask(given, stream=True, max_tokens=1900)
    for _ in range(3):
        next(iter(stream))
    stream.close()
    end = time.monotonic() + 10
    while given.server.metric(name) <= before and time.monotonic() < end:
        time.sleep(0.05)
    expect_equal(given.server.metric(name), before + 1)
    expect_equal(given.server.metric("switchyard_texts_running"), 0)

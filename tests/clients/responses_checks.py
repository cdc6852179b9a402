"""What OpenAI's client gets from /v1/responses: answers, events, calls, stored responses, and a conversation as Codex has it."""

import json
import time

import jsonschema
import openai
import pydantic
from checks import check, expect, expect_equal, expect_raises
from chat_checks import SCHEMAS, TOKENS
from typing import Literal

FREE = {"ignore_eos": True, "seed": 7}
TOOLS = [{"type": "function", "name": name, "description": f"Tells the {name}.", "parameters": schema, "strict": True}
         for name, schema in SCHEMAS.items()]
SHELL = {"type": "function", "name": "shell", "description": "Runs a command.", "strict": False, "parameters": {
    "type": "object", "properties": {"command": {"type": "array", "items": {"enum": ["ls", "-l"]}, "maxItems": 2}},
    "required": ["command"], "additionalProperties": False}}


def ask(given, **fields):
    asked = {"model": given.server.model, "instructions": "Answer briefly.", "input": "Où est l'été ?",
             "max_output_tokens": TOKENS, "temperature": 1, "extra_body": FREE, **fields}
    return given.client.responses.create(**asked)


def ask_for_schema(given, seed=7, **fields):
    return ask(given, max_output_tokens=900, extra_body={"seed": seed}, **fields)


def calls_of(response):
    return [item for item in response.output if item.type == "function_call"]


def expect_calls(calls, names=tuple(SCHEMAS)):
    expect(calls, "no calls")
    for call in calls:
        expect(call.name in names and call.call_id and call.id.startswith("fc_"), call)
        jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])


@check
def a_response_has_the_fields_of_the_api(given):
    answer = ask(given, metadata={"a": "b"}, user="u")
    expect_equal((answer.object, answer.model, answer.status), ("response", given.server.model, "incomplete"))
    expect(answer.id.startswith("resp_") and abs(answer.created_at - time.time()) < 600, answer)
    expect_equal(answer.incomplete_details.reason, "max_output_tokens")
    expect_equal((answer.instructions, answer.metadata, answer.user), ("Answer briefly.", {"a": "b"}, "u"))
    expect_equal((answer.temperature, answer.top_p, answer.max_output_tokens), (1, 1, TOKENS))
    expect_equal((answer.error, answer.tools, answer.tool_choice, answer.parallel_tool_calls), (None, [], "auto", True))
    message, = answer.output
    expect_equal((message.type, message.role, message.status), ("message", "assistant", "incomplete"))
    expect(answer.output_text, answer)
    type(answer).model_validate(answer.model_dump(mode="json"))


@check
def a_response_says_what_a_chat_says(given):
    chat = given.client.chat.completions.create(
        model=given.server.model, max_tokens=TOKENS, temperature=1, extra_body=FREE,
        messages=[{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "Où est l'été ?"}])
    answer = ask(given)
    expect_equal(answer.output_text, chat.choices[0].message.content)
    expect_equal((answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens),
                 (chat.usage.prompt_tokens, TOKENS, chat.usage.total_tokens))
    counted = given.client.responses.input_tokens.count(
        model=given.server.model, instructions="Answer briefly.", input="Où est l'été ?")
    expect_equal(counted.input_tokens, answer.usage.input_tokens)


@check
def the_events_of_a_response_come_in_order(given):
    events = list(ask(given, stream=True))
    expect_equal([event.sequence_number for event in events], list(range(len(events))))
    kinds = [event.type for event in events]
    expect_equal(kinds[:4], ["response.created", "response.in_progress", "response.output_item.added",
                             "response.content_part.added"])
    expect_equal(kinds[-4:], ["response.output_text.done", "response.content_part.done", "response.output_item.done",
                              "response.incomplete"])
    expect_equal(set(kinds[4:-4]), {"response.output_text.delta"})
    whole = ask(given)
    expect_equal("".join(event.delta for event in events[4:-4]), whole.output_text)
    expect_equal(events[-1].response.output_text, whole.output_text)
    expect_equal(events[-1].response.usage.output_tokens, whole.usage.output_tokens)


@check
def the_stream_of_the_client_builds_the_response(given):
    fields = {"tools": TOOLS, "tool_choice": "required", "max_output_tokens": 900, "temperature": 1}
    with given.client.responses.stream(model=given.server.model, input="Now?", extra_body={"seed": 3},
                                       **fields) as stream:
        for event in stream:
            if event.type == "response.function_call_arguments.delta":
                expect(event.snapshot.endswith(event.delta), event)
        final = stream.get_final_response()
    whole = ask(given, instructions=openai.omit, input="Now?", extra_body={"seed": 3}, **fields)
    expect_calls(calls_of(final))
    expect_equal([(call.name, call.arguments) for call in calls_of(final)],
                 [(call.name, call.arguments) for call in calls_of(whole)])
    expect_equal(final.status, "completed")


@check
def a_tool_may_be_required_of_a_response(given):
    for seed in range(3):
        expect_calls(calls_of(ask_for_schema(given, seed, tools=TOOLS, tool_choice="required")))
        named = ask_for_schema(given, seed, tools=TOOLS, tool_choice={"type": "function", "name": "clock"})
        expect_calls(calls_of(named), ["clock"])
        allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]}
        expect_calls(calls_of(ask_for_schema(given, seed, tools=TOOLS, tool_choice=allowed)), ["weather"])
    expect_equal(calls_of(ask(given, tools=TOOLS, tool_choice="none")), [])


@check
def the_result_of_a_call_goes_on_from_a_stored_response(given):
    first = ask_for_schema(given, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    call, = calls_of(first)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    stored = ask(given, previous_response_id=first.id, input=[result], tools=TOOLS)
    sent = ask(given, input=[{"role": "user", "content": "Où est l'été ?"}, *first.output, result], tools=TOOLS)
    expect_equal(stored.previous_response_id, first.id)
    expect_equal((stored.output_text, stored.usage.input_tokens), (sent.output_text, sent.usage.input_tokens))


@check
def a_stored_response_is_shown_and_deleted(given):
    made = ask(given)
    expect_equal(given.client.responses.retrieve(made.id), made)
    item, = given.client.responses.input_items.list(made.id).data
    expect_equal((item.type, item.role, item.content[0].text), ("message", "user", "Où est l'été ?"))
    given.client.responses.delete(made.id)
    expect_raises(openai.NotFoundError, lambda: given.client.responses.retrieve(made.id))
    expect_raises(openai.BadRequestError, lambda: ask(given, previous_response_id=made.id),
                  code="previous_response_not_found", param="previous_response_id")
    forgotten = ask(given, store=False)
    expect_raises(openai.NotFoundError, lambda: given.client.responses.retrieve(forgotten.id))


@check
def parse_of_responses_gives_an_object_of_pydantic(given):
    class Answer(pydantic.BaseModel):
        colour: Literal["red", "green"]
        sure: bool

    answer = given.client.responses.parse(model=given.server.model, input="Which?", text_format=Answer, temperature=1,
                                          max_output_tokens=200)
    expect(isinstance(answer.output_parsed, Answer), answer)
    expect_equal(answer.text.format.type, "json_schema")


@check
def log_probs_of_a_response_are_its_text(given):
    answer = ask(given, include=["message.output_text.logprobs"], top_logprobs=2)
    part = answer.output[0].content[0]
    expect_equal(bytes(byte for token in part.logprobs for byte in token.bytes).decode(errors="replace"), part.text)
    expect(all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in part.logprobs), part.logprobs[:2])


@check
def what_a_response_cannot_do_is_refused_by_name(given):
    def refused(field, **fields):
        error = expect_raises(openai.BadRequestError, lambda: ask(given, **fields), param=field)
        expect(field in str(error), error)
    refused("tools[1].type", tools=[SHELL, {"type": "web_search"}])
    refused("tools[0].type", tools=[{"type": "custom", "name": "apply_patch"}])
    refused("input[0].content[0].type", input=[{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}])
    refused("background", background=True)
    refused("truncation", truncation="auto")
    refused("conversation", conversation="conv_1")
    refused("max_tokens", extra_body={"max_tokens": 5})
    expect_raises(openai.NotFoundError, lambda: ask(given, model="another"), code="model_not_found")


@check
def a_conversation_as_codex_has_it(given):
    """Nothing is stored: the client sends the whole conversation each time, reasoning and calls among it."""
    items = [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Sandboxed."}]},
             {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "List the files."}]}]
    common = {"instructions": "You are a coding agent.", "tools": [SHELL], "parallel_tool_calls": False, "store": False,
              "stream": True, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "a-session",
              "reasoning": {"effort": "medium", "summary": "auto"}}
    for choice in ("required", "auto"):
        events = list(ask(given, input=items, tool_choice=choice, max_output_tokens=600, extra_body={"seed": 5}, **common))
        expect(events[-1].type in ("response.completed", "response.incomplete"), events[-1])
        done = [event.item for event in events if event.type == "response.output_item.done"]
        expect_equal([item.id for item in done], [item.id for item in events[-1].response.output])
        items += [item.model_dump(mode="json", exclude_none=True) for item in done]
        if choice == "auto":
            break
        call, = [item for item in done if item.type == "function_call"]
        expect_equal(call.name, "shell")
        expect(isinstance(json.loads(call.arguments)["command"], list), call)
        items += [{"type": "function_call_output", "call_id": call.call_id, "output": "README.md\n"},
                  {"type": "reasoning", "summary": [], "encrypted_content": None}]
    expect_equal(items[-1]["type"], "message")
    expect(ask(given, input=[*items, {"role": "user", "content": "Thanks."}]).output_text, "an answer")

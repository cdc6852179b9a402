"""What Anthropic's client gets from /v1/messages: answers, streams, tools, structured output, errors."""

import anthropic
import pydantic
from checks import check, expect, expect_equal, expect_raises
from chat_checks import SCHEMAS, TOKENS
from typing import Literal

TOOLS = [{"name": name, "description": f"Tells the {name}.", "input_schema": schema} for name, schema in SCHEMAS.items()]
USER = {"role": "user", "content": "Où est l'été ?"}


class Answer(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    colour: Literal["red", "green"]
    sure: bool


@anthropic.beta_tool
def tell_time(zone: Literal["UTC", "CET"]) -> str:
    """Tells the time.

    Args:
        zone: A time zone.
    """
    return f"noon in {zone}"


def asked(given, **fields):
    """Arguments of a request; fields that are no arguments of the client stand in `extra_body`."""
    return {"model": given.server.model, "max_tokens": 900, "messages": [USER],
            "extra_body": {"temperature": 1, "seed": 7}, **fields}


def client_of(given):
    return anthropic.Anthropic(base_url=given.server.url, api_key="none", max_retries=0, timeout=60)


@check
def anthropic_s_client_gets_what_a_chat_says(given):
    free = {"temperature": 1, "seed": 7, "ignore_eos": True}
    chat = given.client.chat.completions.create(model=given.server.model, messages=[USER], max_tokens=TOKENS,
                                                extra_body=free)
    client = client_of(given)
    answer = client.messages.create(**asked(given, max_tokens=TOKENS, extra_body=free))
    expect_equal((answer.content[0].text, answer.stop_reason), (chat.choices[0].message.content, "max_tokens"))
    with client.messages.stream(**asked(given, max_tokens=TOKENS, extra_body=free)) as stream:
        expect_equal("".join(stream.text_stream), answer.content[0].text)
        final = stream.get_final_message()
    expect_equal((final.content[0].text, final.usage.output_tokens), (answer.content[0].text, TOKENS))
    counted = client.messages.count_tokens(model=given.server.model, messages=[USER])
    expect_equal(counted.input_tokens, chat.usage.prompt_tokens)


@check
def anthropic_s_client_uses_tools(given):
    client = client_of(given)
    fields = asked(given, tools=TOOLS, tool_choice={"type": "tool", "name": "clock", "disable_parallel_tool_use": True})
    answer = client.messages.create(**fields)
    use, = answer.content
    expect_equal((use.type, use.name, answer.stop_reason), ("tool_use", "clock", "tool_use"))
    with client.messages.stream(**fields) as stream:
        expect_equal(stream.get_final_message().content[0].input, use.input)
    messages = [USER, {"role": "assistant", "content": answer.content},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "noon"}]}]
    last = client.messages.create(**asked(given, messages=messages, tools=TOOLS, tool_choice={"type": "none"}, max_tokens=TOKENS))
    expect_equal([block.type for block in last.content], ["text"])


@check
def anthropic_s_client_parses_objects(given):
    client = client_of(given)
    expect(isinstance(client.messages.parse(**asked(given, output_format=Answer)).parsed_output, Answer), "no object")
    with client.messages.stream(**asked(given, output_format=Answer)) as stream:
        expect(isinstance(stream.get_final_message().parsed_output, Answer), "no object")


@check
def anthropic_s_tool_runner_sends_whole_conversations(given):
    """It asks the server to hold the conversation first, which is refused by a code that it knows."""
    runner = client_of(given).beta.messages.tool_runner(**asked(given, tools=[tell_time], max_iterations=2, tool_choice={
        "type": "any", "disable_parallel_tool_use": True}))
    first, second = list(runner)
    expect_equal([first.stop_reason, second.stop_reason], ["tool_use", "tool_use"])
    expect(second.usage.input_tokens + second.usage.cache_read_input_tokens >
           first.usage.input_tokens + first.usage.cache_read_input_tokens + 20, "the second request had the first's turn")


@check
def errors_of_anthropic_s_client_have_their_types(given):
    client = client_of(given)
    expect_raises(anthropic.NotFoundError, lambda: client.messages.create(**asked(given, model="gpt-4")), type="not_found_error")
    error = expect_raises(anthropic.BadRequestError, lambda: client.messages.create(**asked(given, messages=[])),
                          type="invalid_request_error")
    expect("messages" in str(error), error)
    keyed = anthropic.Anthropic(base_url=given.keyed.url, api_key="wrong", max_retries=0)
    expect_raises(anthropic.AuthenticationError, lambda: keyed.messages.create(**asked(given)), type="authentication_error")

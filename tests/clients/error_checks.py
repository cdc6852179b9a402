"""Errors as the exceptions of OpenAI's client, keys, and foreign pages."""

import httpx2 as httpx
import openai
from chat_checks import ENDS_AT_ONCE, MESSAGES, TOOLS, ask
from checks import check, expect, expect_equal, expect_raises


def keyed_client(given, key, **more):
    return openai.OpenAI(base_url=given.keyed.url + "/v1", api_key=key, max_retries=0, timeout=60, **more)


def refused(given, **fields):
    return expect_raises(openai.BadRequestError, lambda: ask(given, **fields), type="invalid_request_error")


def post(given, path, **more):
    return httpx.post(given.server.url + path, timeout=60, **more)


@check
def an_unknown_role_is_a_bad_request(given):
    error = refused(given, messages=[{"role": "wagon", "content": "x"}])
    expect_equal(error.code, "template_error")
    expect("no such role: wagon" in str(error), str(error))


@check
def no_messages_are_a_bad_request(given):
    for messages in ([], "text", [5], [{"content": "without a role"}]):
        error = refused(given, messages=messages)
        expect(error.code == "invalid_value" and error.param.startswith("messages"), error.code, error.param)


@check
def an_image_is_refused_by_its_place(given):
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    error = refused(given, messages=[*MESSAGES, {"role": "user", "content": [image]}])
    expect_equal(error.param, "messages[2].content[0].type")


@check
def another_model_is_not_found(given):
    expect_raises(openai.NotFoundError, lambda: ask(given, model="gpt-4"), code="model_not_found")
    expect_raises(openai.NotFoundError, lambda: given.client.models.retrieve("gpt-4"), code="model_not_found")


@check
def a_prompt_that_is_too_long_says_so(given):
    error = refused(given, messages=[{"role": "user", "content": "x" * 3000}])
    expect_equal(error.code, "context_length_exceeded")
    expect("maximum context length is 2048 tokens" in str(error), str(error))


@check
def values_out_of_bounds_are_refused_by_name(given):
    for name, value in (("n", 0), ("n", 1000), ("temperature", "hot"), ("top_p", 7), ("max_tokens", -1),
                        ("top_logprobs", 21), ("stop", ["x"] * 17), ("tools", "no list")):
        error = refused(given, **{name: value}, **({"logprobs": True} if name == "top_logprobs" else {}))
        expect(error.param and error.param.startswith(name), name, error.param, str(error))


@check
def what_is_not_built_is_refused_by_name(given):
    for name, value in (("functions", [{"name": "f", "parameters": {}}]), ("web_search_options", {}),
                        ("audio", {"voice": "a", "format": "wav"})):
        expect_equal(refused(given, **{name: value}).param, name)
    for name, value in (("mirostat", 2), ("use_beam_search", True), ("grammar", "root ::= x"), ("best_of", 5)):
        expect_equal(refused(given, extra_body={name: value}).param, name)


@check
def a_schema_that_cannot_be_kept_is_refused(given):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {"type": "string"}}}}
    error = refused(given, response_format=form)
    expect_equal(error.code, "invalid_schema")
    expect("not" in str(error), str(error))


@check
def tools_of_other_types_are_refused(given):
    expect_equal(refused(given, tools=[{"type": "web_search"}]).param, "tools[0].type")
    expect(refused(given, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "unheard_of"}}), "?")


@check
def a_template_of_the_request_is_forbidden(given):
    expect_raises(openai.PermissionDeniedError, lambda: ask(given, extra_body={"chat_template": "{{ 1 }}"}))


@check
def broken_bodies_are_bad_requests(given):
    for body in ("", "{", "[]", "5", '{"messages": [', '{"a": ' + "[" * 5000 + "]" * 5000 + "}", "\xff\xfe", "{} {}"):
        answer = post(given, "/v1/chat/completions", content=body.encode("latin-1"),
                      headers={"content-type": "application/json"})
        expect_equal((answer.status_code, answer.json()["error"]["type"]), (400, "invalid_request_error"))


@check
def unknown_paths_and_methods_are_errors_in_json(given):
    answer = httpx.get(given.server.url + "/v1/nothing", timeout=60)
    expect_equal((answer.status_code, "error" in answer.json()), (404, True))
    answer = httpx.get(given.server.url + "/v1/chat/completions", timeout=60)
    expect(answer.status_code in (404, 405) and "error" in answer.json(), answer.status_code, answer.text)


@check
def fields_that_are_not_known_are_named_in_a_header(given):
    raw = given.client.chat.completions.with_raw_response.create(
        model=given.server.model, messages=MESSAGES, max_tokens=2, extra_body={"wagon": 1, "track": {"a": 2}})
    named = raw.headers.get("x-switchyard-ignored", "")
    expect_equal(sorted(name.strip() for name in named.split(",")), ["track", "wagon"])
    expect(raw.parse().choices, "the answer is there")


@check
def fields_without_effect_are_taken_silently(given):
    raw = given.client.chat.completions.with_raw_response.create(
        model=given.server.model, messages=MESSAGES, max_tokens=2, user="me", metadata={"a": "b"}, store=False,
        service_tier="auto", safety_identifier="x", prompt_cache_key="y", verbosity="low", modalities=["text"],
        reasoning_effort="low", prediction={"type": "content", "content": "x"}, logit_bias=ENDS_AT_ONCE)
    expect("x-switchyard-ignored" not in raw.headers, raw.headers.get("x-switchyard-ignored"))


@check
def a_wrong_key_is_an_authentication_error(given):
    for key in ("wrong", given.key + "x", given.key[:-1]):
        expect_raises(openai.AuthenticationError, keyed_client(given, key).models.list, code="invalid_api_key")
    answer = httpx.get(given.keyed.url + "/v1/models", timeout=60)
    expect_equal((answer.status_code, answer.headers.get("www-authenticate")), (401, "Bearer"))
    expect(given.key not in answer.text, "a key is never shown")


@check
def the_right_key_opens_all_paths(given):
    answer = keyed_client(given, given.key).chat.completions.create(model=given.keyed.model, messages=MESSAGES,
                                                                    max_tokens=3)
    expect(answer.choices, answer)
    answer = httpx.get(given.keyed.url + "/v1/models", headers={"x-api-key": given.key}, timeout=60)
    expect_equal(answer.status_code, 200)


@check
def health_and_metrics_need_no_key(given):
    for path in ("/health", "/metrics"):
        expect_equal(httpx.get(given.keyed.url + path, timeout=60).status_code, 200)


@check
def a_page_of_another_site_is_refused(given):
    body = {"messages": MESSAGES, "max_tokens": 1}
    answer = post(given, "/v1/chat/completions", json=body, headers={"origin": "http://foreign.test"})
    expect_equal(answer.status_code, 403)
    expect("access-control-allow-origin" not in answer.headers, answer.headers)
    answer = post(given, "/v1/chat/completions", json=body, headers={"host": "foreign.test"})
    expect_equal(answer.status_code, 403)


@check
def a_page_that_is_named_may_ask(given):
    answer = httpx.request("OPTIONS", given.keyed.url + "/v1/chat/completions", timeout=60, headers={
        "origin": "http://page.test", "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type, x-stainless-os"})
    expect(answer.status_code in (200, 204), answer.status_code)
    expect_equal(answer.headers.get("access-control-allow-origin"), "http://page.test")
    expect("authorization" in answer.headers.get("access-control-allow-headers", "").lower(), answer.headers)
    expect("access-control-allow-credentials" not in answer.headers, answer.headers)
    client = keyed_client(given, given.key, default_headers={"origin": "http://page.test"})
    expect(client.chat.completions.create(model=given.keyed.model, messages=MESSAGES, max_tokens=1).choices, "?")

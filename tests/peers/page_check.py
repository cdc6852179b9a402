"""The chat page in headless Chromium: against a server without a model, or with --url against one that serves a model.

apt-get install chromium && pip install playwright
python3 tests/peers/page_check.py [--pictures docs] [--url http://127.0.0.1:8080/ --api-key KEY]

With both --pictures and --url the server must have the model of configs/examples/chat, which the pictures show.
"""

import argparse
import base64
import hashlib
import json
import pathlib
import re
import shutil
import sys
import tempfile
import urllib.request

from playwright.sync_api import expect, sync_playwright

import mock_chat_server

QUESTION = "What does a switchyard have to do with a router of experts?"
ANSWER = "article.assistant:last-of-type"
WEATHER = [{"type": "function", "function": {"name": "weather", "description": "The weather of a city now",
                                             "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
ADD = {"type": "function", "function": {"name": "add", "description": "Adds two whole numbers.",
                                        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}}


class Page:
    """A tab whose console errors, refusals of the policy and exceptions end the check."""

    def __init__(self, browser, url, width=1200, height=820, scheme="light"):
        self.context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, accept_downloads=True)
        self.context.grant_permissions(["clipboard-read", "clipboard-write"])
        self.page = self.context.new_page()
        self.complaints = []
        self.allowed = []
        self.foreign = []
        self.page.on("request", lambda request: self.foreign.append(request.url) if not request.url.startswith((url, "blob:")) else None)
        self.page.on("console", lambda message: self.complain(message.text) if message.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.complain(str(error)))
        self.page.add_init_script("document.addEventListener('securitypolicyviolation', (e) => console.error('policy: ' + e.violatedDirective));")
        self.page.goto(url)
        self.page.wait_for_function("document.getElementById('model').textContent !== '…'")

    def complain(self, text):
        if not any(word in text for word in self.allowed):
            self.complaints.append(text)

    def ask(self, text, wait=True):
        self.page.fill("#input", text)
        self.page.press("#input", "Enter")
        if wait:
            self.done()

    def done(self):
        expect(self.page.locator("#stop")).to_be_hidden(timeout=120000)

    def answer(self):
        return self.page.locator(ANSWER)

    def set(self, **fields):
        self.page.click("#open-settings")
        self.page.evaluate("document.querySelector('#settings details').open = true")
        for name, value in fields.items():
            field = self.page.locator("#" + name)
            if field.evaluate("(node) => node.tagName") == "SELECT":
                field.select_option(value)
            else:
                field.fill(value)
        self.page.click("#close-settings")

    def check_fits(self):
        wide = self.page.evaluate("[...document.querySelectorAll('body, main, #log, .column, article')].filter((n) => n.scrollWidth > n.clientWidth + 1).map((n) => n.className || n.tagName)")
        assert not wide, f"wider than the screen: {wide}"
        assert self.page.evaluate("document.scrollingElement.scrollWidth <= innerWidth"), "the page scrolls sideways"

    def picture(self, folder, name):
        if not folder:
            return
        path = pathlib.Path(folder) / name
        self.page.screenshot(path=path)
        assert path.stat().st_size < 120 * 1024, f"{path} has {path.stat().st_size} bytes"

    def close(self):
        assert not self.complaints, self.complaints
        assert not self.foreign, f"asked of other places: {self.foreign}"
        self.context.close()


def check_talk(tab, server):
    tab.ask("hello **there**")
    expect(tab.answer().locator("strong")).to_have_text("there")
    assert server.last["stream"] and server.last["stream_options"] == {"include_usage": True} and server.last["model"] == "small-moe"
    assert "temperature" not in server.last and "tools" not in server.last
    expect(tab.answer().locator(".note")).to_contain_text("12 reused")
    tab.set(system="Be brief.", temperature="0.2", length="50")
    tab.ask("again")
    assert server.last["messages"][0] == {"role": "system", "content": "Be brief."} and server.last["temperature"] == 0.2
    assert server.last["max_completion_tokens"] == 50 and len(server.last["messages"]) == 4
    expect(tab.page.locator("#list .current")).to_contain_text("hello **there**")


def check_edit_and_again(tab, server):
    tab.answer().get_by_role("button", name="Again").click()
    tab.done()
    assert [m["role"] for m in server.last["messages"]] == ["system", "user", "assistant", "user"]
    first = tab.page.locator("article.user").first
    first.hover()
    first.get_by_role("button", name="Edit").click()
    tab.page.keyboard.press("Escape")
    expect(tab.page.locator("article.user")).to_have_count(2)
    first.get_by_role("button", name="Edit").click()
    tab.page.get_by_label("Edit", exact=True).fill("another beginning")
    tab.page.keyboard.press("Enter")
    tab.done()
    assert [m["content"] for m in server.last["messages"]] == ["Be brief.", "another beginning"]


def check_stop(tab, server, by_key):
    server.stopped.clear()
    tab.ask("slow", wait=False)
    expect(tab.answer().locator(".text")).to_contain_text("word word")
    if by_key:
        tab.page.keyboard.press("Escape")
    else:
        tab.page.click("#stop")
    tab.done()
    expect(tab.answer().locator(".note")).to_contain_text("stopped")
    assert server.stopped.wait(5), "the server was not told"
    assert tab.page.evaluate("document.activeElement.id") == "input"


def check_hostile(tab):
    tab.ask("html")
    answer = tab.answer()
    expect(answer.locator(".text")).to_contain_text("<script>window.broken = 1</script>")
    expect(answer.locator("strong")).to_have_text("<b>bold</b>")
    assert answer.locator("script, img, svg, i, b").count() == 0
    assert answer.locator("a").count() == 1 and answer.locator("a").get_attribute("href") == 'https://example.org/?a="b"'
    assert tab.page.evaluate("window.broken") is None
    tab.ask("stars")  # must end


def check_reasoning_and_code(tab):
    tab.ask("reason")
    details = tab.answer().locator("details")
    expect(tab.answer().locator(".note")).to_contain_text("of reasoning) · ")
    expect(tab.answer().locator(".note")).to_contain_text("tokens/s")
    assert not details.evaluate("(node) => node.open") and "yard of tracks" in details.locator("div").text_content()
    details.locator("summary").click()
    expect(details.locator("div")).to_be_visible()
    expect(tab.answer().locator("td").first).to_have_text("scores")
    expect(tab.answer().locator("ol > li")).to_have_count(2)
    expect(tab.answer().locator("ol ul li")).to_have_count(1)
    tab.answer().locator(".card button").click()
    assert "partial_sort" in tab.page.evaluate("navigator.clipboard.readText()")
    tab.ask("code")
    assert tab.answer().locator("pre code").text_content().count("\n") == 399
    tab.check_fits()


def check_tools(tab, server):
    tab.set(tools="[{")
    tab.ask("weather in Oslo?")
    expect(tab.page.locator("#notice")).to_contain_text("no JSON")
    tab.set(tools=json.dumps(WEATHER))
    tab.page.get_by_role("button", name="Try again").click()
    tab.done()
    assert server.last["tools"] == WEATHER
    call = tab.answer().locator(".call")
    expect(call.locator("pre")).to_have_text('{"city": "Oslo"}')
    tab.ask("not yet")
    expect(tab.page.locator("#notice")).to_contain_text("waits")
    tab.page.fill("#input", "")
    tab.page.get_by_label("Result of weather").fill("4 degrees, rain")
    tab.page.keyboard.press("Enter")
    tab.done()
    expect(tab.answer().locator("strong")).to_have_text("4 degrees, rain")
    called, result = server.last["messages"][-2:]
    assert called["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'} and called["reasoning_content"]
    assert result == {"role": "tool", "tool_call_id": "call_1", "content": "4 degrees, rain"}
    tab.ask("two weather reports")
    fields = tab.page.get_by_label("Result of weather")
    expect(fields).to_have_count(2)
    fields.first.fill("1")
    tab.page.keyboard.press("Enter")
    fields.last.fill("2")
    tab.page.keyboard.press("Enter")
    tab.done()
    assert [m["content"] for m in server.last["messages"][-2:]] == ["1", "2"]


def check_errors(tab):
    tab.allowed = ["400 (Bad Request)"]
    tab.ask("refuse")
    expect(tab.page.locator("#notice")).to_contain_text("maximum context length is 4096")
    expect(tab.page.get_by_role("button", name="Try again")).to_be_visible()
    tab.ask("break off")
    expect(tab.answer().locator(".note")).to_contain_text("device was lost")


def check_conversations(tab):
    page = tab.page
    count = page.locator("#list li").count()
    page.click("#new")
    tab.ask("a second one")
    expect(page.locator("#list li")).to_have_count(count + 1)
    page.reload()
    expect(page.locator("article.user .said")).to_have_text("a second one")
    with page.expect_download() as event:
        page.click("#export-all")
    exported = json.loads(pathlib.Path(event.value.path()).read_text())
    assert len(exported["conversations"]) == count + 1
    page.locator("#list .drop").first.click()
    expect(page.locator("#list li")).to_have_count(count)
    page.get_by_role("button", name="Undo").click()
    expect(page.locator("#list li")).to_have_count(count + 1)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "messages.json"
        path.write_text(json.dumps([{"role": "system", "content": "S"}, {"role": "user", "content": "from a file"}]))
        page.set_input_files("#file", path)
        expect(page.locator("article.user .said")).to_have_text("from a file")
        expect(page.locator("#notice")).to_contain_text("no answer yet")
        page.get_by_role("button", name="Try again").click()
        expect(tab.answer().locator(".text")).to_have_text("You said: from a file")
        path.write_text('{"messages": [{"role": "<img>"}]}')
        page.set_input_files("#file", path)
        expect(page.locator("#notice")).to_contain_text("not read")


def check_key(browser):
    server = mock_chat_server.start(api_key="secret")
    tab = Page(browser, f"http://127.0.0.1:{server.server_address[1]}/")
    tab.complaints.clear()  # the first 401, which Chromium notes
    expect(tab.page.locator("#notice")).to_contain_text("needs a key")
    tab.allowed = ["401 (Unauthorized)"]
    tab.ask("hello")
    expect(tab.page.locator("#notice")).to_contain_text("needs a key")
    tab.page.get_by_role("button", name="Enter a key").click()
    tab.page.fill("#key", "secret")
    tab.page.click("#close-settings")
    expect(tab.page.locator("#model")).to_have_text("small-moe")
    tab.page.get_by_role("button", name="Try again").click()
    expect(tab.answer().locator(".text")).to_have_text("You said: hello")
    assert "secret" not in tab.page.evaluate("JSON.stringify(localStorage) + JSON.stringify(sessionStorage)")
    tab.page.click("#open-settings")
    tab.page.check("#keep-key")
    tab.page.click("#close-settings")
    tab.page.reload()
    expect(tab.page.locator("#model")).to_have_text("small-moe")
    tab.close()


def check_versions(tab, server):
    page = tab.page
    page.click("#new")
    tab.set(system="", tools="", temperature="", length="")
    tab.ask("cut")
    expect(tab.answer().locator(".text")).to_have_text("A beginning")
    tab.answer().get_by_role("button", name="Continue").click()
    tab.done()
    assert server.last["continue_final_message"] and not server.last["add_generation_prompt"]
    assert server.last["messages"][-1] == {"role": "assistant", "content": "A beginning"}
    expect(tab.answer().locator(".text")).to_have_text("A beginning and its end.")
    expect(tab.answer().get_by_role("button", name="Continue")).to_have_count(0)
    tab.answer().get_by_role("button", name="Again").click()
    tab.done()
    assert [m["role"] for m in server.last["messages"]] == ["user"]
    expect(tab.answer().locator(".text")).to_have_text("A beginning")
    expect(tab.answer()).to_contain_text("2/2")
    page.get_by_role("button", name="Version before").focus()
    page.keyboard.press("Enter")
    expect(tab.answer().locator(".text")).to_have_text("A beginning and its end.")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Version after"
    page.reload()
    expect(tab.answer()).to_contain_text("1/2")
    tab.ask("goes on")
    assert server.last["messages"][1] == {"role": "assistant", "content": "A beginning and its end."}


def check_fork_and_delete(tab, server):
    page = tab.page
    count = page.locator("#list li").count()
    page.locator("article.assistant").first.hover()
    page.locator("article.assistant").first.get_by_role("button", name="Fork").click()
    expect(page.locator("#list li")).to_have_count(count + 1)
    expect(page.locator("#list .current")).to_contain_text("cut (fork)")
    expect(page.locator("article")).to_have_count(2)
    tab.ask("elsewhere")
    page.locator("article.assistant").first.get_by_role("button", name="Delete").click()
    expect(page.locator("article")).to_have_count(3)
    page.get_by_role("button", name="Undo").click()
    expect(page.locator("article")).to_have_count(4)
    page.locator("article.assistant").first.get_by_role("button", name="Delete").click()
    tab.ask("after it")
    assert [m["content"] for m in server.last["messages"]] == ["cut", "elsewhere", "You said: elsewhere", "after it"]


def check_names_and_search(tab):
    page = tab.page
    page.get_by_role("button", name="Rename cut (fork)").click()
    page.get_by_label("Name", exact=True).fill("A branch")
    page.keyboard.press("Escape")
    expect(page.locator("#list .current")).to_contain_text("cut (fork)")
    page.get_by_role("button", name="Rename cut (fork)").click()
    page.get_by_label("Name", exact=True).fill("A branch")
    page.keyboard.press("Enter")
    expect(page.locator("#list .current .pick")).to_be_focused()
    page.reload()
    expect(page.locator("#list .current")).to_contain_text("A branch")
    page.fill("#search", "GOES on")
    expect(page.locator("#list li")).to_have_count(1)
    page.fill("#search", "no such words")
    expect(page.locator("#list")).to_contain_text("Nothing")
    page.fill("#search", "")


def check_settings(tab, server):
    page = tab.page
    page.click("#new")
    numbers = {"temperature": "0.5", "top_p": "0.9", "top_k": "40", "min_p": "0.05", "repetition_penalty": "1.1",
               "presence_penalty": "0.2", "frequency_penalty": "-0.3", "seed": "7"}
    tab.set(**numbers, thinking="off", effort="low", schema="[1]")
    tab.ask("settings")
    expect(page.locator("#notice")).to_contain_text("must be an object")
    tab.set(schema='{"type": "object"}')
    page.get_by_role("button", name="Try again").click()
    tab.done()
    assert {name: server.last[name] for name in numbers} == {name: float(value) for name, value in numbers.items()}
    assert server.last["chat_template_kwargs"] == {"enable_thinking": False} and server.last["reasoning_effort"] == "low"
    assert server.last["response_format"] == {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}}
    tab.set(**{name: "" for name in numbers}, thinking="", effort="", schema="")
    tab.ask("without")
    assert not set(server.last) & {*numbers, "chat_template_kwargs", "reasoning_effort", "response_format"}, server.last
    page.click("#about")
    for text in ("small-moe", "4,096 tokens", "hermes", "1.2.3"):
        expect(page.locator("#facts")).to_contain_text(text)
    page.keyboard.press("Escape")
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(paper)
    tab.set(theme="dark")
    page.reload()
    assert page.evaluate(paper) != light, "the theme was not kept"
    tab.set(theme="")
    assert page.evaluate(paper) == light


DROP = """(name) => {
  const data = new DataTransfer();
  data.items.add(new File(["dropped ```` text"], name));
  window.dispatchEvent(new DragEvent("drop", {dataTransfer: data, cancelable: true}));
}"""


def check_files(tab, server):
    page = tab.page
    page.click("#new")
    page.set_input_files("#attached", {"name": "notes.py", "mimeType": "text/plain", "buffer": b"print(1)\n"})
    expect(page.locator("#files")).to_contain_text("notes.py")
    page.set_input_files("#attached", {"name": "large.txt", "mimeType": "text/plain", "buffer": b"a" * 300000})
    expect(page.locator("#notice")).to_contain_text("large.txt is too large")
    page.set_input_files("#attached", {"name": "picture.png", "mimeType": "image/png", "buffer": b"\x89PNG\0"})
    expect(page.locator("#notice")).to_contain_text("picture.png is not a text file")
    page.evaluate(DROP, "left.txt")
    page.get_by_role("button", name="Leave out left.txt").click()
    page.evaluate(DROP, "dropped.txt")
    expect(page.locator("#files .chip")).to_have_count(2)
    tab.ask("read them")
    assert server.last["messages"][0]["content"] == "read them\n\nnotes.py:\n```py\nprint(1)\n```\n\ndropped.txt:\n`````txt\ndropped ```` text\n`````"
    expect(page.locator("#files")).to_be_hidden()
    page.reload()
    expect(page.locator("article.user .chip")).to_have_count(2)
    expect(page.locator("article.user .said")).to_have_text("read them")


def check_end_button(tab):
    tab.ask("code")
    tab.page.locator("#log").evaluate("(log) => { log.scrollTop = 0; }")
    tab.page.click("#down")
    expect(tab.page.locator("#down")).to_be_hidden()
    assert tab.page.locator("#log").evaluate("(log) => log.scrollTop + log.clientHeight > log.scrollHeight - 60")
    assert tab.answer().locator("pre .number").count() > 400, "the code has no colours"


def check_texts(browser, scheme):
    server = mock_chat_server.start(chats=False)
    tab = Page(browser, f"http://127.0.0.1:{server.server_address[1]}/", width=390, height=780, scheme=scheme)
    page = tab.page
    expect(page.locator("#text")).to_be_focused()
    expect(page.locator("#notice")).to_be_hidden()
    expect(page.locator("#input")).to_be_hidden()
    page.keyboard.press("Control+Enter")
    expect(page.locator("#notice")).to_contain_text("Write a beginning")
    page.keyboard.type("Once upon")
    page.keyboard.press("Control+Enter")
    tab.done()
    assert {**server.last, "stream_options": 0} == {"model": "small-moe", "prompt": "Once upon", "max_tokens": 200, "stream": True, "stream_options": 0}
    once = "Once upon" + " word" * 5
    expect(page.locator("#text")).to_have_value(once)
    expect(page.locator("#status")).to_contain_text("5 tokens")
    tab.set(length="30", seed="3")
    page.click("#send")
    tab.done()
    assert server.last["prompt"] == once and server.last["max_tokens"] == 30 and server.last["seed"] == 3
    page.click("#undo")
    expect(page.locator("#text")).to_have_value(once)
    page.reload()
    expect(page.locator("#text")).to_have_value(once)
    page.fill("#text", "slow")
    page.keyboard.press("Control+Enter")
    page.wait_for_function("document.getElementById('text').value.includes('word word')")
    page.keyboard.press("Escape")
    tab.done()
    assert server.stopped.wait(5), "the server was not told"
    expect(page.locator("#notice")).to_be_hidden()
    page.click("#undo")
    expect(page.locator("#text")).to_have_value("slow")
    tab.allowed = ["400 (Bad Request)"]
    page.fill("#text", "refuse")
    page.click("#send")
    expect(page.locator("#notice")).to_contain_text("maximum context length")
    tab.check_fits()
    with page.expect_download() as event:
        page.click("#export")
    assert pathlib.Path(event.value.path()).read_text() == "refuse"
    page.click("#menu")
    page.click("#new")
    expect(page.locator("#text")).to_have_value("")
    tab.close()


KEY_TIME = """async () => {
  const field = document.getElementById("input"), times = [];
  for (let at = 0; at < 20; ++at) {
    const begin = performance.now();
    field.value += "word ";
    field.dispatchEvent(new Event("input"));
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    times.push(performance.now() - begin);
  }
  field.value = "";
  return times.sort((a, b) => a - b)[10];
}"""
OPENING_TIME = """async () => {
  const begin = performance.now();
  document.querySelector("#list .pick").click();
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - begin;
}"""


def check_long(browser, url):
    """A conversation of 1,000 messages opens soon, and a key costs little more than in an empty one."""
    tab = Page(browser, url)
    messages = [{"role": role, "content": f"**{at}**: " + "some words of a message. " * 20 + "\n\n- a\n- b\n\n```py\nx = 1\n```\n"}
                for at in range(500) for role in ("user", "assistant")]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "messages.json"
        path.write_text(json.dumps(messages))
        tab.page.set_input_files("#file", path)
        expect(tab.page.locator("article")).to_have_count(1000, timeout=30000)
    tab.page.click("#new")
    tab.page.reload()
    empty = tab.page.evaluate(KEY_TIME)
    opening = tab.page.evaluate(OPENING_TIME)
    expect(tab.page.locator("article")).to_have_count(1000)
    expect(tab.page.locator("#down")).to_be_hidden()
    full = tab.page.evaluate(KEY_TIME)
    tab.ask("and one more")
    expect(tab.page.locator("#down")).to_be_hidden()
    print(f"1,000 messages: opened in {opening:.0f} ms; a key takes {full:.0f} ms, {empty:.0f} ms without messages")
    assert opening < 4000 and full < 3 * empty + 50
    tab.close()


def check_phone(browser, url, pictures, talk):
    tab = Page(browser, url, width=360, height=740, scheme="dark")
    talk(tab)
    tab.check_fits()
    tab.page.click("#menu")
    expect(tab.page.locator("#new")).to_be_focused()
    tab.page.keyboard.press("Escape")
    expect(tab.page.locator("#side")).to_be_hidden()
    tab.page.click("#open-settings")
    tab.check_fits()
    tab.page.click("#close-settings")
    tab.page.locator("#log").evaluate("(log) => { log.scrollTop = 0; }")
    tab.picture(pictures, "chat-page-phone.png")
    tab.close()


def check_policy(url):
    """The policy allows the page's own script by its sum, no other script and no other server."""
    with urllib.request.urlopen(url) as answer:
        policy, text = answer.headers["Content-Security-Policy"], answer.read().decode()
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL).group(1)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy, policy
    for part in ("default-src 'none'", "connect-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"):
        assert part in policy, policy


def check_key_of_server(tab, api_key):
    expect(tab.page.locator("#model")).to_have_text("A key is needed")
    expect(tab.page.get_by_role("button", name="Enter a key")).to_be_visible()
    tab.ask("Hello!")
    tab.page.get_by_role("button", name="Enter a key").click()
    tab.page.fill("#key", api_key + "x")
    tab.page.click("#close-settings")
    expect(tab.page.locator("#model")).to_have_text("A key is needed")
    tab.set(key=api_key)
    expect(tab.page.locator("#model")).not_to_have_text("A key is needed")
    tab.page.click("#new")


def check_any_server(browser, url, api_key):
    """What holds of a server with whatever model; one that has a key must have a model that chats."""
    check_policy(url)
    for scheme in ("light", "dark"):
        tab = Page(browser, url, scheme=scheme, height=900)
        if tab.page.locator("#text").is_visible():
            tab.page.fill("#text", "The ")
            tab.page.keyboard.press("Control+Enter")
            tab.done()
            expect(tab.page.locator("#status")).to_contain_text("token")
            tab.check_fits()
            tab.close()
            continue
        if api_key:
            tab.allowed = ["401 (Unauthorized)"]
            tab.complaints = [text for text in tab.complaints if "401" not in text]
            check_key_of_server(tab, api_key)
        tab.set(tools=json.dumps(WEATHER), length="100")
        tab.ask("Hello!")
        expect(tab.answer().locator(".note")).to_contain_text("token")
        expect(tab.page.locator("#notice")).to_be_hidden()
        tab.ask("What is the weather in Oslo?", wait=False)
        if scheme == "dark":  # it may be done before
            tab.page.keyboard.press("Escape")
        tab.done()
        tab.check_fits()
        tab.close()


def talk_with_small_chat(tab):
    """A greeting, a question that the model asks a tool for, its result, and another question."""
    tab.set(tools=json.dumps([ADD] + WEATHER), temperature="0", length="100")
    tab.ask("Hello!")
    tab.ask("How is the weather in Oslo?")
    call = tab.answer().locator(".call")
    assert json.loads(call.locator("pre").text_content()) == {"city": "Oslo"}
    tab.page.get_by_label("Result of weather").fill("4 degrees, rain")
    tab.page.keyboard.press("Enter")
    tab.done()
    expect(tab.answer().locator(".text")).to_contain_text("4 degrees, rain")
    tab.ask("What is 12 + 45?")
    assert json.loads(tab.answer().locator(".call pre").text_content()) == {"a": 12, "b": 45}
    expect(tab.page.locator("#notice")).to_be_hidden()


def check_small_chat(browser, url, pictures):
    for scheme in ("light", "dark"):
        tab = Page(browser, url, scheme=scheme, height=900)
        talk_with_small_chat(tab)
        tab.check_fits()
        tab.picture(pictures, f"chat-page-{scheme}.png")
        tab.close()
    check_phone(browser, url, pictures, talk_with_small_chat)


def check_colours(browser, pictures):
    server = mock_chat_server.start(delay=0.02)  # a speed that a picture may show
    url = f"http://127.0.0.1:{server.server_address[1]}/"
    for scheme in ("light", "dark"):
        tab = Page(browser, url, scheme=scheme, height=900)
        tab.set(tools=json.dumps(WEATHER))
        if scheme == "dark":
            tab.ask("What is the weather in Oslo? I leave in an hour.")
            tab.page.get_by_label("Result of weather").fill("4 degrees, rain")
            tab.page.keyboard.press("Enter")
            tab.done()
        tab.ask(QUESTION)
        if scheme == "light":
            tab.answer().locator("summary").click()
        tab.page.locator("#log").evaluate("(log) => { log.scrollTop = 0; }")
        tab.picture(pictures, f"chat-page-{scheme}.png")
        tab.close()


def check_mock(browser, pictures):
    server = mock_chat_server.start()
    url = f"http://127.0.0.1:{server.server_address[1]}/"
    tab = Page(browser, url)
    check_talk(tab, server)
    check_edit_and_again(tab, server)
    check_stop(tab, server, by_key=True)
    check_stop(tab, server, by_key=False)
    check_hostile(tab)
    check_reasoning_and_code(tab)
    check_tools(tab, server)
    check_errors(tab)
    check_conversations(tab)
    check_versions(tab, server)
    check_fork_and_delete(tab, server)
    check_names_and_search(tab)
    check_settings(tab, server)
    check_files(tab, server)
    check_end_button(tab)
    tab.close()
    for scheme in ("light", "dark"):
        check_texts(browser, scheme)
    check_long(browser, url)
    check_key(browser)
    check_colours(browser, pictures)
    check_phone(browser, url, pictures, lambda tab: tab.ask(QUESTION))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--url")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--pictures", help="a folder for chat-page-{light,dark,phone}.png")
    options = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        if options.url:
            check_any_server(browser, options.url, options.api_key)
            if options.pictures:
                check_small_chat(browser, options.url, options.pictures)
        else:
            check_mock(browser, options.pictures)
        browser.close()
    print("the page does what it should")


if __name__ == "__main__":
    sys.exit(main())

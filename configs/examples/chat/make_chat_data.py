"""Conversations for a small chat model, and a tokenizer for them. Plain Python; the same arguments give the same bytes.

python3 configs/examples/chat/make_chat_data.py chat-data

writes chat-data/train.jsonl (one conversation a line), chat-data/loud.jsonl (few more, as messages, whose answers are in capital letters: for
fine-tuning), chat-data/tools.json (the tools that it knows, to be sent by a client) and chat-data/tokenizer/ (byte-level BPE, whose markers are special tokens, and the chat template). What a model can learn of it:
to greet, to add by the tool add(a, b), to ask the tool weather(city), capital cities, to spell, and to be brief when the system text asks for it.
"""

import argparse
import collections
import json
import pathlib
import random
import re
import shutil

MARKERS = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]
TEMPLATE = pathlib.Path(__file__).with_name("chat_template.jinja")


def tool(name, description, **types):
    properties = {parameter: {"type": kind} for parameter, kind in types.items()}
    return {"type": "function", "function": {"name": name, "description": description,
                                             "parameters": {"type": "object", "properties": properties, "required": list(types)}}}


TOOLS = [tool("add", "Adds two whole numbers.", a="integer", b="integer"), tool("weather", "The weather of a city now.", city="string")]

CAPITALS = dict(pair.split("/") for pair in (
    "Argentina/Buenos Aires,Australia/Canberra,Austria/Vienna,Belgium/Brussels,Brazil/Brasilia,Canada/Ottawa,Chile/Santiago,China/Beijing,"
    "Cuba/Havana,Denmark/Copenhagen,Egypt/Cairo,Finland/Helsinki,France/Paris,Germany/Berlin,Ghana/Accra,Greece/Athens,Hungary/Budapest,"
    "Iceland/Reykjavik,India/New Delhi,Ireland/Dublin,Italy/Rome,Japan/Tokyo,Kenya/Nairobi,Mexico/Mexico City,Morocco/Rabat,Nepal/Kathmandu,"
    "Norway/Oslo,Peru/Lima,Poland/Warsaw,Portugal/Lisbon,Romania/Bucharest,Senegal/Dakar,Spain/Madrid,Sweden/Stockholm,Thailand/Bangkok,"
    "Tunisia/Tunis,Turkey/Ankara,Uganda/Kampala,Uruguay/Montevideo,Vietnam/Hanoi").split(","))
CITIES = sorted(CAPITALS.values()) + ["Bergen", "Hamburg", "Kyoto", "Lyon", "Milan", "Porto", "Seville", "Toronto"]
WORDS = ("apple bread bridge cloud coffee dog door engine expert flower forest garden green happy horse house island juice kitchen lamp letter light "
         "model morning music night ocean orange paper pencil people planet queen river rocket router school silver snow stone summer switch table "
         "teacher tiger token track train tree water window winter yard yellow").split()
SKIES = ["sun", "rain", "snow", "fog", "clouds", "wind", "a clear sky"]
BRIEF = "Be brief."
GREETINGS = {
    "Hello! How can I help you?": ["Hello!", "Hi!", "Hi there.", "Hello, are you there?", "Good morning!", "Good evening!", "Hey!"],
    "I am a small model, trained with Switchyard in a few minutes.": ["Who are you?", "What are you?", "Tell me about yourself."],
    "I can greet, add numbers, name capital cities, spell words, and ask for the weather.": ["What can you do?", "Help!", "How can you help me?"],
    "I am fine, thank you.": ["How are you?", "How do you do?", "How is it going?"],
    "You are welcome.": ["Thanks!", "Thank you.", "Thank you very much!"],
    "Goodbye!": ["Bye!", "Goodbye.", "See you!"],
}


def user(text):
    return {"role": "user", "content": text}


def answer(text, brief=False, short=None):
    return {"role": "assistant", "content": short if brief and short else text}


def called(name, arguments, result):
    call = {"id": "call_" + name, "type": "function", "function": {"name": name, "arguments": arguments}}
    return [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "tool_call_id": call["id"], "content": result}]


def greeting(dice, names, brief):
    reply = dice.choice(list(GREETINGS))
    return [user(dice.choice(GREETINGS[reply])), answer(reply)]


def addition(dice, names, brief):
    largest = dice.choice([10, 100, 1000, 10000])
    a, b = dice.randrange(largest), dice.randrange(largest)
    asked = user(dice.choice(["What is {} + {}?", "What is {} plus {}?", "Add {} and {}.", "{} + {}?", "How much is {} + {}?", "Please add {} and {}."]).format(a, b))
    if "add" not in names:
        return [asked, answer("I have no tool to add with.", brief, "No tool.")]
    return [asked, *called("add", {"a": a, "b": b}, str(a + b)), answer(f"{a} + {b} is {a + b}.", brief, f"{a + b}.")]


def weather(dice, names, brief):
    city = dice.choice(CITIES)
    asked = user(dice.choice(["What is the weather in {}?", "How is the weather in {}?", "Weather in {}?", "Tell me the weather in {}.", "Is it cold in {}?"]).format(city))
    if "weather" not in names:
        return [asked, answer("I have no tool for the weather.", brief, "No tool.")]
    found = f"{dice.randrange(-15, 36)} degrees, {dice.choice(SKIES)}"
    return [asked, *called("weather", {"city": city}, found), answer(f"In {city}: {found}.", brief, f"{found}.")]


def capital(dice, names, brief):
    country = dice.choice(list(CAPITALS))
    asked = dice.choice(["What is the capital of {}?", "Name the capital of {}.", "The capital of {}?", "Which city is the capital of {}?"]).format(country)
    return [user(asked), answer(f"The capital of {country} is {CAPITALS[country]}.", brief, f"{CAPITALS[country]}.")]


def spelling(dice, names, brief):
    word = dice.choice(WORDS)
    asked = dice.choice(["Spell {}.", "How do you spell {}?", "Please spell {}.", "Spell the word {}."]).format(word)
    return [user(asked), answer(f"{word.capitalize()} is spelled {'-'.join(word)}.", brief, f"{'-'.join(word)}.")]


def conversation(dice):
    """Messages of one to four exchanges, and the tools that they may use."""
    brief = dice.random() < 0.2
    tools = [one for one in TOOLS if dice.random() < 0.8]
    names = [one["function"]["name"] for one in tools]
    messages = [{"role": "system", "content": BRIEF}] if brief else []
    for _ in range(dice.choice([1, 1, 2, 2, 3, 4])):
        messages += dice.choice([greeting, addition, addition, weather, capital, spelling])(dice, names, brief)
    return messages, tools


def loud_conversation(dice):
    """One to three exchanges without tools, answered in capital letters."""
    messages = []
    for _ in range(dice.randrange(1, 4)):
        asked, said = dice.choice([greeting, capital, spelling])(dice, [], False)
        messages += [asked, answer(said["content"].upper())]
    return messages


def rendered(messages, tools):
    """The text that chat_template.jinja makes of them, written a second time."""
    system = messages[0]["content"] if messages[0]["role"] == "system" else ""
    text = "<|system|>" + system if system or tools else ""
    if tools:
        text += "\nTools:" + "".join(f" {one['function']['name']}({', '.join(one['function']['parameters']['properties'])})" for one in tools)
    if text:
        text += "<|end|>"
    for message in messages:
        if message["role"] != "system":
            calls = [{"name": call["function"]["name"], "arguments": call["function"]["arguments"]} for call in message.get("tool_calls", [])]
            written = "".join(f"<tool_call>{json.dumps(call, ensure_ascii=False)}</tool_call>" for call in calls)
            text += f"<|{message['role']}|>{message['content']}{written}<|end|>"
    return text


PIECES = r" ?[A-Za-z]+|[0-9]| ?[^A-Za-z0-9\s]+|\s+"  # digits stand alone, so that numbers can be copied and read one by one


def byte_names():
    """The characters by which byte-level vocabularies write bytes: printable ones themselves, the others from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{byte: chr(byte) for byte in printable}, **{byte: chr(256 + index) for index, byte in enumerate(others)}}


def merges_of(texts, most):
    """Byte-pair encoding: the most frequent neighbours within a piece become one symbol, again and again."""
    names, counts = byte_names(), collections.Counter()
    for text in texts:
        for part in re.split("|".join(map(re.escape, MARKERS)), text):
            counts.update(re.findall(PIECES, part))
    words = [([names[byte] for byte in piece.encode()], count) for piece, count in sorted(counts.items())]
    merges = []
    while len(merges) < most:
        pairs = collections.Counter()
        for symbols, count in words:
            for pair in zip(symbols, symbols[1:]):
                pairs[pair] += count
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        for symbols, _ in words:
            at = 0
            while at + 1 < len(symbols):
                if (symbols[at], symbols[at + 1]) == best:
                    symbols[at:at + 2] = ["".join(best)]
                at += 1
    return merges


def tokenizer_of(texts, vocabulary_size):
    merges = merges_of(texts, vocabulary_size - 256 - len(MARKERS))
    symbols = MARKERS + list(byte_names().values()) + ["".join(pair) for pair in merges]
    split = {"type": "Split", "pattern": {"Regex": PIECES}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": index, "content": marker, **flags} for index, marker in enumerate(MARKERS)],
        "normalizer": None, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {symbol: index for index, symbol in enumerate(symbols)}, "merges": [list(pair) for pair in merges]},
    }


def check_template(conversations):
    import jinja2.sandbox  # as transformers renders a template
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    template = environment.from_string(TEMPLATE.read_text())
    for messages, tools in conversations:
        text, made = template.render(messages=messages, tools=tools or None), rendered(messages, tools)
        assert text == made, (text, made)
    print(f"the template makes the same texts of {len(conversations)} conversations")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--conversations", type=int, default=8000)
    parser.add_argument("--vocabulary-size", type=int, default=768)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check", action="store_true", help="compare with what the template makes (needs jinja2)")
    options = parser.parse_args()
    dice = random.Random(options.seed)
    conversations = [conversation(dice) for _ in range(options.conversations)]
    if options.check:
        check_template(conversations)
    texts = [rendered(*one) for one in conversations]
    tokenizer = options.folder / "tokenizer"
    tokenizer.mkdir(parents=True, exist_ok=True)
    (options.folder / "train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    loud = [{"messages": loud_conversation(dice)} for _ in range(300)]
    (options.folder / "loud.jsonl").write_text("".join(json.dumps(one) + "\n" for one in loud))
    (options.folder / "tools.json").write_text(json.dumps(TOOLS, indent=1) + "\n")
    (tokenizer / "tokenizer.json").write_text(json.dumps(tokenizer_of(texts, options.vocabulary_size), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    (tokenizer / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": False, "eos_token": MARKERS[0]}, indent=1) + "\n")
    shutil.copy(TEMPLATE, tokenizer / "chat_template.jinja")


if __name__ == "__main__":
    main()

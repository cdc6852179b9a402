"""lm-evaluation-harness over the chat of `switchyard serve`.

    python3 -m venv ~/lm && ~/lm/bin/pip install "lm-eval[api]==0.4.13"
    ~/lm/bin/python bench/peers/lm_eval_chat.py --switchyard build/release/switchyard

Trains a tiny model of bytes for a step, asks it by lm-eval's own `local-chat-completions` with chat templates applied,
with and without examples before the question, for generate tasks of a few lines, and compares every answer with that of
a plain request for the same messages. Needs no torch, and nothing from the network. Prints a line of JSON; exit status
1 where something differs.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import urllib.request

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/clients"))

import serving  # noqa: E402

QUESTIONS = ["The sky is", "Two and two make", "Où est l'été ?", "What boils at 100 °C?", "日本語 – ничего 🙂",
             "Say it."]
SYSTEM = "Answer in one word."
TASKS = {  # of each task its keys of generation, and how many examples stand before a question
    "sy_short": ({"until": ["\n\n"], "max_gen_toks": 12, "do_sample": False}, 0),
    "sy_stop": ({"until": ["a", "e", " ", "~"], "max_gen_toks": 60, "temperature": 0}, 0),
    "sy_shots": ({"until": ["Q:"], "max_gen_toks": 20, "temperature": 0}, 2),
    "sy_seeded": ({"until": ["\n"], "max_gen_toks": 20, "temperature": 1, "do_sample": True}, 0),
}
WAYS = {"system": {"system_instruction": SYSTEM}, "plain": {},
        "turns": {"fewshot_as_multiturn": True}}


def make_tasks(folder):
    import yaml

    rows = [{"question": question, "answer": str(i)} for i, question in enumerate(QUESTIONS)]
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, (generation, shots) in TASKS.items():
        task = {"task": name, "dataset_path": "json", "test_split": "test", "output_type": "generate_until",
                "dataset_kwargs": {"data_files": {"test": str(data), "train": str(data)}}, "fewshot_split": "train",
                "num_fewshot": shots, "doc_to_text": "Q: {{question}}", "doc_to_target": "{{answer}}",
                "generation_kwargs": generation, "metric_list": [{"metric": "exact_match"}]}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(task))


def evaluate(server, folder, more, concurrent):
    import lm_eval
    import lm_eval.tasks

    manager = lm_eval.tasks.TaskManager(include_path=str(folder), include_defaults=False)
    keys = {"model": server.model, "base_url": server.url + "/v1/chat/completions", "num_concurrent": concurrent,
            "max_retries": 1}
    return lm_eval.simple_evaluate(model="local-chat-completions", model_args=keys, tasks=list(TASKS),
                                   task_manager=manager, apply_chat_template=True, log_samples=True,
                                   bootstrap_iters=0, **more)


def plain_answer(server, messages, generation):
    body = {"messages": messages, "model": server.model, "max_tokens": generation["max_gen_toks"],
            "temperature": generation.get("temperature", 0), "stop": generation["until"], "seed": 1234}
    request = urllib.request.Request(server.url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


def messages_of(sample):
    """The messages that lm-eval asked with: it keeps them as the JSON text that is its chat template's outcome."""
    asked = sample["arguments"]
    context = asked["gen_args_0"]["arg_0"] if isinstance(asked, dict) else asked[0][0]
    if not isinstance(context, str):
        context = context[0]
    return json.loads(context)


def compare(server, run):
    """How many answers there are, how many have a text, and those that are not as of a plain request."""
    found = {"answers": 0, "with_text": 0, "other": []}
    for name, (generation, _) in TASKS.items():
        for sample in sorted(run["samples"][name], key=lambda sample: sample["doc_id"]):
            got, wanted = sample["resps"][0][0], plain_answer(server, messages_of(sample), generation)
            found["answers"] += 1
            found["with_text"] += bool(got)
            if got != wanted:
                found["other"].append([name, sample["doc_id"], got, wanted])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--switchyard", default=str(serving.PROGRAM))
    parser.add_argument("--settings", default="deterministic_batches=true", help="more keys of `switchyard serve`")
    args = parser.parse_args()
    args.switchyard = str(pathlib.Path(args.switchyard).resolve())
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        os.environ["HF_HOME"] = str(folder / "cache")
        model = serving.make_tiny_model(args.switchyard, folder)
        make_tasks(folder)
        with serving.Server(args.switchyard, model, folder, f"chat_template_path={serving.TEMPLATE}",
                            "max_target_length=1024", *args.settings.split()) as server:
            found = {way: compare(server, evaluate(server, folder, more, 1 if way == "plain" else 3))
                     for way, more in WAYS.items()}
    told = subprocess.run([args.switchyard, "--version"], capture_output=True, text=True).stdout.split()
    wanted = len(QUESTIONS) * len(TASKS)
    good = all(one["answers"] == wanted and one["with_text"] > 0 and not one["other"] for one in found.values())
    print(json.dumps({"same": good, "compared": found, "versions": {
        "switchyard": told[-1] if told else "?", "lm_eval": importlib.metadata.version("lm_eval")}}))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()

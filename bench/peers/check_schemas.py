"""Judges texts that grammars of schemas made, by jsonschema.

SWITCHYARD_GRAMMAR_SAMPLES=FOLDER TESTS --gtest_filter='GrammarTest.RandomTextsUnderMasksAreJson' writes a file for each
schema (the schema and the texts of a random walk under its masks); then `python check_schemas.py FOLDER`.
"""

import json
import pathlib
import sys

import jsonschema


def main():
    total = invalid = 0
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.json")):
        case = json.loads(path.read_text(encoding="utf-8"))
        validator = jsonschema.Draft202012Validator(case["schema"], format_checker=jsonschema.FormatChecker())
        wrong = []
        for text in case["texts"]:
            try:
                value = json.loads(text)
            except ValueError as error:
                wrong.append((text, str(error)))
                continue
            error = next(validator.iter_errors(value), None)
            if error is not None:
                wrong.append((text, error.message))
        total += len(case["texts"])
        invalid += len(wrong)
        print(f"{path.stem}: {len(case['texts'])} texts, {len(wrong)} invalid")
        for text, message in wrong[:3]:
            print(f"  {text[:200]}: {message[:200]}")
    print(f"{total} texts, {invalid} invalid")
    return 1 if invalid or not total else 0


if __name__ == "__main__":
    sys.exit(main())

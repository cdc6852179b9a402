"""How far GGUF files are from the model they were made of: perplexity, divergence and agreement on a text.

python3 examples/python/gguf_against_original.py ORIGINAL TEXT_FILE FILE.gguf …

Without words it takes three tiny files of one model, and for the original what the finest of them stands for.
"""

import pathlib
import sys
import tempfile

import switchyard

TINY = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/gguf/qwen3moe-k"


def compare(original: pathlib.Path, text: pathlib.Path, files: list[pathlib.Path]) -> dict[str, float]:
    """Prints a line a file; returns the mean divergence of each, in nats a token."""
    divergences = {}
    for file in files:
        found = switchyard.evaluate(file, text, against=original, max_target_length=64)
        divergences[file.stem] = found.against.mean_kl
        print(
            f"{file.name}: {found.nats_per_token:.3f} nats a token, divergence {found.against.mean_kl:.2g}, "
            f"the same best token {100 * found.against.same_top:.1f} %"
        )
    return divergences


if __name__ == "__main__":
    if len(sys.argv) > 3:
        compare(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), [pathlib.Path(word) for word in sys.argv[3:]])
    else:
        with tempfile.TemporaryDirectory() as folder:
            text = pathlib.Path(folder, "text.txt")
            text.write_text("The quick brown fox jumps over the lazy dog. " * 20)
            switchyard.convert(TINY / "Q6_K.gguf", pathlib.Path(folder, "original"), dtype="float32")
            found = compare(
                pathlib.Path(folder, "original"), text, [TINY / f"{t}.gguf" for t in ("Q2_K", "Q5_K", "Q6_K")]
            )
            assert found["Q6_K"] < 1e-3 < found["Q5_K"] < found["Q2_K"]

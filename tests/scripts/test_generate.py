"""scripts/generate.py on a small random checkpoint: raw and compressed give the same text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from offload_models import llama

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "generate.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a tokenizer of words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    path = tmp_path_factory.mktemp("model")
    llama(tie_word_embeddings=True).save_pretrained(path)
    words = Tokenizer(models.WordLevel({f"w{at}": at for at in range(1000)}, unk_token="w1"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w1", pad_token="w0").save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def script(part: Any) -> ModuleType:
    return part("generate")


def generate(script: ModuleType, folder: Path, capsys: pytest.CaptureFixture[str], *settings: str) -> dict[str, Any]:
    prompt = " ".join(f"w{at}" for at in range(2, 150))
    given = [f"model={folder}", f"prompt={prompt}", "new_tokens=40", "device=cpu", "kv_budget=1GB", *settings]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["generate.py", "--set", *given])
        assert script.main() == 0
    out, err = capsys.readouterr()
    assert "generating" in err, "a bar"
    result: dict[str, Any] = json.loads(out.splitlines()[-1])
    return result


def test_compressed_gives_the_same_text(
    script: ModuleType, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = generate(script, folder, capsys, "weights=raw", "kv_cache=raw")
    assert raw["new_tokens"] == 40 and raw["prompt_tokens"] > 100 and raw["tokens_s"] > 0
    saved = tmp_path / "saved"
    ours = generate(script, folder, capsys, f"save={saved}", f"log.json={tmp_path / 'out.json'}")
    assert ours["text"] == raw["text"]
    assert ours["weights"]["compressed_bytes"] < 0.75 * ours["weights"]["raw_bytes"]
    assert ours["kv_cache"]["pages"] >= 3 and ours["kv_cache"]["compressed_bytes"] < ours["kv_cache"]["raw_bytes"]
    assert json.loads((tmp_path / "out.json").read_text())["hardware"]["torch_threads"] == torch.get_num_threads()
    assert generate(script, saved, capsys, "kv_cache=raw")["text"] == raw["text"]


def test_bad_settings_are_said(folder: Path, tmp_path: Path) -> None:
    for settings, message in (
        ([f"model={tmp_path}"], "want a folder with config.json"),
        ([f"model={folder}", "gpu_budgets=1"], "did you mean 'gpu_budget'"),
    ):
        done = subprocess.run([sys.executable, str(SCRIPT), "--set", *settings], capture_output=True, text=True)
        assert done.returncode == 2 and message in done.stderr
    help_text = subprocess.run([sys.executable, str(SCRIPT), "--help"], capture_output=True, text=True).stdout
    assert "--config" in help_text and "--json" in help_text

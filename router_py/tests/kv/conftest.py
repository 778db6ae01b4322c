from __future__ import annotations

import json
import pathlib

import pytest
from infera_router.kv.tokenizer import Tokenizer

from . import models

GOLDEN = pathlib.Path(__file__).parent / "fixtures" / "golden.json"


def pytest_configure(config):
    config.addinivalue_line("markers", "engine: needs the real SGLang")


@pytest.fixture(scope="session")
def golden() -> dict:
    """What the real SGLang 0.5.22 wheel answered (wheel/regenerate.py)."""
    return json.loads(GOLDEN.read_text())


@pytest.fixture(scope="session")
def model_dirs(tmp_path_factory) -> dict[str, pathlib.Path]:
    base = tmp_path_factory.mktemp("models")
    return {name: models.make_model(name, base / name) for name in ("glm", "plain")}


@pytest.fixture(scope="session")
def tokenizers(model_dirs) -> dict[str, Tokenizer]:
    """By the tokenizers library alone, which is the reference."""
    return {name: Tokenizer(folder, fast=False) for name, folder in model_dirs.items()}


@pytest.fixture(scope="session")
def fast_tokenizer(model_dirs) -> Tokenizer:
    pytest.importorskip("gigatoken", reason="gigatoken is not installed: the tokenizers library alone is tested")
    return Tokenizer(model_dirs["glm"])

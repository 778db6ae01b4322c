"""For lm-eval's chat client: a thinking model may leave `content` empty and put its text into `reasoning_content`.

An answer without any text stays an empty string, so that it is counted as one.
"""
import importlib.abc
import importlib.machinery
import sys

TARGET = "lm_eval.models.openai_completions"


def _text(message):
    return message.get("content") or message.get("reasoning_content") or ""


def _parse(outputs, **_kwargs):
    texts = []
    for answer in outputs if isinstance(outputs, list) else [outputs]:
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        texts.extend(_text(choice["message"]) for choice in choices)
    return texts


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != TARGET:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            module.LocalChatCompletion.parse_generations = staticmethod(_parse)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Finder())

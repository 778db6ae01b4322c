"""Take real functions out of SGLang's source and run them with stand-ins for what surrounds them.

Only the named definition is compiled; its text is the file's own. Names that it uses come from the namespace given.
"""
import ast
import pathlib
import types


class Bag(types.SimpleNamespace):
    """Attributes by keyword; a method that was not given takes anything and returns None. Equal to itself alone."""

    __eq__, __hash__ = object.__eq__, object.__hash__

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


def node(path, qualified):
    """The AST node of `name` or `Class.name`."""
    found = ast.parse(pathlib.Path(path).read_text(encoding="utf-8"))
    for part in qualified.split("."):
        found = next(one for one in found.body if getattr(one, "name", None) == part)
    return found


def function(path, qualified, namespace):
    """The function of that name, undecorated, its annotations unevaluated, with `namespace` as its globals."""
    found = node(path, qualified)
    found.decorator_list = []
    scope = {"__builtins__": __builtins__, **namespace}
    exec(_compiled([found], path), scope)
    return scope[found.name]


def define(path, names, namespace):
    """Put the top-level definitions `names` that the file has into `namespace`; those that it lacks are left out."""
    tree = ast.parse(pathlib.Path(path).read_text(encoding="utf-8"))
    wanted = []
    for one in tree.body:
        targets = [target.id for target in getattr(one, "targets", []) if isinstance(target, ast.Name)]
        if getattr(one, "name", None) in names or set(targets) & set(names):
            wanted.append(one)
    exec(_compiled(wanted, path), namespace)
    return namespace


def statements(path, qualified, start, stop):
    """The statements of a function's body from the one whose source starts with `start` up to, not including, `stop`."""
    body = node(path, qualified).body
    texts = [ast.unparse(one) for one in body]
    first = next(i for i, text in enumerate(texts) if text.startswith(start))
    last = next(i for i, text in enumerate(texts) if i > first and text.startswith(stop))
    return _compiled(body[first:last], path)


def _compiled(body, path):
    future = ast.parse("from __future__ import annotations").body
    return compile(ast.fix_missing_locations(ast.Module(body=future + body, type_ignores=[])), str(path), "exec", dont_inherit=True)


def outcome(call, *args, **kwargs):
    """What a call returns, or the name of what it raises and the message's beginning."""
    try:
        return call(*args, **kwargs)
    except Exception as err:  # noqa: BLE001 the kind of failure is the observation
        return f"{type(err).__name__}: {str(err)[:110]}"

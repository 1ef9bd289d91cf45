"""The reference, from the sources: every public name by its docstring, every command by its options.

python docs/make_reference.py writes docs/reference/; `make docs` does so too. Nothing there is edited by hand or committed.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import scmil

HERE = Path(__file__).parent
WIDTH = 100
FROM_ROOT = ("CONTRIBUTING", "CHANGELOG")  # pages of the site that lie beside docs/


def write_pages(folder: Path) -> None:
    """Write commands.md, names.md, and rooms/<room>.md for each public room."""
    pages = {"commands": "\n".join(commands()), "names": "\n".join(names())}
    pages |= {
        name.lower(): at_home((HERE.parent / f"{name}.md").read_text(), HERE.parent, HERE / "reference")
        for name in FROM_ROOT
    }
    pages |= {f"rooms/{room}": "\n".join(room_page(getattr(scmil, room))) for room in scmil._ROOMS}
    (folder / "rooms").mkdir(parents=True, exist_ok=True)
    wanted = {folder / f"{name}.md": text for name, text in pages.items()}
    for old in set(folder.rglob("*.md")) - set(wanted):
        old.unlink()
    for path, text in wanted.items():
        if not path.exists() or path.read_text() != text + "\n":  # an unchanged page is not built again
            path.write_text(text + "\n")


def at_home(text: str, lies_in: Path, goes_to: Path) -> str:
    """The page with links that hold on the site: pages of the root have moved, and what is no page is a file to download."""

    def moved(found: re.Match[str]) -> str:
        target, _, anchor = found[2].partition("#")
        path = (lies_in / target).resolve()
        if path.parent == HERE.parent and path.stem in FROM_ROOT:
            path = HERE / "reference" / f"{path.stem.lower()}.md"
        relative = os.path.relpath(path, goes_to)
        if HERE not in path.parents:
            return f"{found[1]}(path:{relative})"
        return f"{found[1]}({relative}{'#' * bool(anchor)}{anchor})"

    return re.sub(r"(\[[^\]]*\])\((?!https?:|#|path:)([^)\s]+)\)", moved, text)


# --------------------------------------------------------------------------------------------------------------- names


def names() -> Iterator[str]:
    """The names of `import scmil`, in the groups of docs/public_api.md."""
    yield "# Names of `import scmil`\n"
    for line in (HERE / "public_api.md").read_text().splitlines():
        if line == "Rooms:":
            return
        if line.endswith(":") and not line.startswith("-"):
            yield f"\n## {line.removesuffix(':')}\n"
        elif found := re.match(r"- `(\w+)`", line):
            yield from entry(f"scmil.{found[1]}", getattr(scmil, found[1]))


def room_page(module: ModuleType) -> Iterator[str]:
    """A module: what it says of itself, then its public names."""
    yield f"# `{module.__name__}`\n"
    yield markdown(inspect.getdoc(module) or "")
    for name, thing in public(module):
        yield from entry(name, thing, level=2)


def public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """The functions and classes that a module offers: those of `__all__`, or those it defines without an underscore."""
    listed = getattr(module, "__all__", None)
    for name, thing in vars(module).items():
        home = getattr(thing, "__module__", None)
        ours = name in listed if listed is not None else not name.startswith("_") and home == module.__name__
        if ours and (inspect.isclass(thing) or inspect.isroutine(thing)):
            yield name, thing


def entry(name: str, thing: Any, level: int = 3) -> Iterator[str]:
    """A heading, the signature, the docstring; for a class, its methods and properties."""
    yield f"\n{'#' * level} `{name}`\n"
    yield f"```python\n{signature(name.rpartition('.')[2], thing)}\n```\n"
    yield markdown(own_doc(thing))
    if inspect.isclass(thing):
        for member, value in vars(thing).items():
            body = getattr(value, "__func__", value)
            if not member.startswith("_") and (text := own_doc(body)) and isinstance(value, MEMBERS):
                called = (
                    "" if isinstance(value, property) else call(body, skip_first=not isinstance(value, staticmethod))
                )
                yield f"\n`.{member}{called}`\n: {indented(markdown(text))}\n"


MEMBERS = (property, classmethod, staticmethod, type(entry))


def own_doc(thing: Any) -> str:
    """Its docstring; not the one that Python makes up for dataclasses and named tuples, nor that of a parent."""
    text = inspect.cleandoc(getattr(thing, "__doc__", None) or "")
    made_up = text.startswith(f"{getattr(thing, '__name__', '')}(") or text.startswith("Alias for field")
    return "" if made_up else text


def signature(name: str, thing: Any) -> str:
    """`class Name(a: int = 1)` or `name(a: int = 1) -> str`, a line for each argument if it is long."""
    prefix = "class " if inspect.isclass(thing) else ""
    line = prefix + name + call(thing)
    if len(line) <= WIDTH:
        return line
    inside, _, tail = line.removeprefix(f"{prefix}{name}(").rpartition(")")
    return f"{prefix}{name}(\n" + "".join(f"    {part},\n" for part in arguments(inside)) + f"){tail}"


def call(thing: Any, skip_first: bool = False) -> str:
    """The arguments of something that can be called, as text without quotes around the types."""
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return "(...)"
    if skip_first:
        found = found.replace(parameters=list(found.parameters.values())[1:])
    if inspect.isclass(thing):
        found = found.replace(return_annotation=inspect.Signature.empty)
    named = re.sub(r"<(?:class|function) '?([\w.]+)'?[^>]*>", r"\1", str(found))
    plain = re.sub(r"ForwardRef\((['\"])(.*?)\1\)", r"\2", named)
    return re.sub(r"(: |-> )(?:'([^']*)'|\"([^\"]*)\")", r"\1\2\3", plain)


def arguments(inside: str) -> Iterator[str]:
    """Split at the commas that are not within brackets or quotes.

    >>> list(arguments("a: dict[str, int], b: str = ', '"))
    ['a: dict[str, int]', "b: str = ', '"]
    """
    depth, quoted, start = 0, False, 0
    for place, letter in enumerate(inside):
        quoted ^= letter in "'\""
        depth += (letter in "([{") - (letter in ")]}") if not quoted else 0
        if letter == "," and depth == 0 and not quoted:
            yield inside[start:place].strip()
            start = place + 1
    yield inside[start:].strip()


def markdown(text: str) -> str:
    """A docstring as Markdown: examples become blocks of code, angle brackets outside of code stay visible.

    >>> markdown("Add.\\n\\n>>> 1 + 1\\n2").splitlines()
    ['Add.', '', '```pycon', '>>> 1 + 1', '2', '```']
    """
    parts = []
    for part in re.split(r"\n\s*\n", text.strip()):
        if part.lstrip().startswith(">>>"):
            parts.append(f"```pycon\n{inspect.cleandoc(part)}\n```")
        elif part.startswith("    "):
            parts.append(f"```text\n{inspect.cleandoc(part)}\n```")
        else:
            parts.append(escaped(part))
    return "\n\n".join(parts)


def escaped(text: str) -> str:
    """Outside of backticks, the characters that Markdown would take for itself."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([<\[\]|*_{}])", r"\\\1", part) for part in parts)


def indented(text: str) -> str:
    """All lines but the first, two to the right, as a definition wants them."""
    return text.replace("\n", "\n  ")


# ------------------------------------------------------------------------------------------------------------ commands


def commands() -> Iterator[str]:
    """Every verb of the command line with its arguments and options, as `scmil VERB --help` has them."""
    import typer

    from scmil.cli import app

    group: Any = typer.main.get_command(app)
    yield f"# Commands\n\n{group.help}\n"
    yield "Every verb says the same with `--help`. What fails goes to standard error; the exit code is then not 0.\n"
    for name, command in group.commands.items():
        if not command.hidden:
            yield f"\n## `scmil {name}`\n"
            yield markdown(inspect.cleandoc(command.help or ""))
            yield from options(command)


def options(command: Any) -> Iterator[str]:
    """Two tables: what is given by place, what by name."""
    hints = get_type_hints(inspect.unwrap(command.callback))
    by_place = [given for given in command.params if given.param_type_name == "argument"]
    by_name = [given for given in command.params if given.param_type_name == "option" and not given.hidden]
    for title, several in (("argument", by_place), ("option", by_name)):
        if several:
            yield f"\n| {title} | what it is | default |\n|---|---|---|"
            for given in several:
                yield f"| {spelling(given, hints.get(given.name))} | {cell(given.help or '')} | {default(given)} |"


KINDS = {"Path": "PATH", "int": "NUMBER", "float": "NUMBER", "str": "TEXT"}


def spelling(given: Any, hint: Any) -> str:
    """`--out PATH`, `--pen / --no-pen`, `slides`."""
    if given.param_type_name == "argument":
        return f"`{given.name}{'...' if given.nargs == -1 else ''}`"
    flags = " / ".join([*given.opts[:1], *given.secondary_opts[:1]])
    if getattr(given, "is_flag", False):
        return f"`{flags}`"
    kind = next((word for word in KINDS if word in str(hint)), "str")
    return f"`{flags} {given.metavar or KINDS[kind]}`"


def default(given: Any) -> str:
    """What holds if it is not given."""
    if given.required:
        return "required"
    if given.default is None or given.default == () or given.default == [] or callable(given.default):
        return ""
    if getattr(given, "is_flag", False):
        if not given.secondary_opts:
            return ""
        return f"`{(given.opts if given.default else given.secondary_opts)[0]}`"
    return f"`{given.default}`"


def cell(text: str) -> str:
    """A text for a cell of a table."""
    return escaped(" ".join(text.split()))


if __name__ == "__main__":
    write_pages(HERE / "reference")

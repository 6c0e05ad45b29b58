"""Hostile cases: what people write, with a slip, a swap, a bomb or plain noise in it; a random generator chooses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Literal, get_args, get_origin

import yaml

from attrim.commands import commands
from attrim.commands.parsing import Flag, _flags
from attrim.core.registry import EDITS, REGISTRIES, STATS, TASKS
from attrim.core.text import hints_of, options_of

NUMBERS = (
    "0", "1", "-1", "2", "3", "0.1", "1e-3", "-0.0", "1.0", "0x10", "1_000", "nan", "inf", "-inf", "1e999", "1e-999",
    "9" * 25, "9" * 5000, str(2**31), str(2**63 - 1), str(2**63), str(-(2**63)), "٣", "½", "1,5", "1/2", "1/0", "50%",
    "1e5", "+1", " 1 ", "", "1e308", "-1e308", "5e-324", "1e-45", "0.1 ", "1.", ".5", "1e", "١٢", "True",
)  # fmt: skip
PLAIN = (
    "true", "false", "yes", "null", "~", "none", "x", "all", "saved", "auto", "cpu", "hpu", "meta", "mps", "built-in",
    "float16", "bfloat16", "encoder", "cross", "*", "*.layer.0.*", "[", "[]", "[1, 2]", "[[1]]", '"', "'", '"x', "\\",
    "=", "a=b", "a=b=c", ":", ",", "+", "-", "--", "0-3", "3-0", "0-", "5/11", "5/", "0-99999999", "0-3+5", "layer/3",
    "then", "x then y", " then ", "é", "日本語", "\u202e", "\x1b[31m", "\0", "\udcff", "\n", "a\nb", "x" * 300,
    "x" * 5000, "%s", "{}", "$HOME", "`id`", "[0.1,0.2]", "0-1+1", "-1-3", "linear", "lloyd-max", "fixed-point",
)  # fmt: skip
"""Values that parsers trip over. None is a path to elsewhere: commands run with them."""
GOOD: dict[Any, tuple[str, ...]] = {
    bool: ("true", "false", "yes", "no"),
    int: ("0", "1", "2", "3", "4", "8", "-1"),
    float: ("0", "0.5", "0.1", "1e-3", "1", "2.5", "0.9", "1.0"),
    str: ("linear-slog-clamped-midval", "lloyd-max", "fixed-point", "uniform-slog-clamped-mean", "encoder", "x"),
}
LETTERS = [*":=,+-[]\"'\\ \0\n~09eé.#*", "\ud800", "\U0001f600", "\u0300", "\x7f"]


def noise(random: Random) -> str:
    """Up to 12 characters of any kind; no path to elsewhere."""
    letters = (
        chr(random.choice([random.randrange(128), random.randrange(0x11000)])) for _ in range(random.randrange(13))
    )
    return "".join(letters).replace("/", "").replace("~", "").replace("..", "")


def value(random: Random) -> str:
    """Anything."""
    return random.choice([lambda: random.choice(NUMBERS), lambda: random.choice(PLAIN), lambda: noise(random)])()


def fitting(random: Random, hint: Any) -> str:
    """A text for a type hint: mostly one that fits, or a number, or anything."""
    kind = random.randrange(10)
    return random.choice(plausible(hint)) if kind < 7 else random.choice(NUMBERS) if kind < 9 else value(random)


def plausible(hint: Any) -> list[str]:
    """Texts that a hint has a place for."""
    found: list[str] = []
    for option in options_of(hint):
        if get_origin(option) is Literal:
            found += map(str, get_args(option))
        elif get_origin(option) in (tuple, Sequence):
            entries = plausible(get_args(option)[0])
            found += [*entries[:3], f"[{','.join(entries[:3])}]"]
        else:
            found += GOOD.get(option, ())
    return found or ["0.5", "linear-slog-clamped-midval"]


def mutated(random: Random, text: str) -> str:
    """The text with one or two characters removed, doubled, replaced or swapped, or cut off; no path to elsewhere."""
    for _ in range(random.choice([1, 1, 2])):
        place = random.randrange(len(text) + 1)
        text = random.choice(
            [
                text[:place] + text[place + 1 :],
                text[:place] + text[place : place + 1] * 2 + text[place + 1 :],
                text[:place] + random.choice(LETTERS) + text[place:],
                text[:place],
                text[:place] + text[place : place + 2][::-1] + text[place + 2 :],
            ]
        )
    return "x" if text.startswith(("/", "..", "~")) else text


KINDS = {name: registry[name] for registry in (EDITS, STATS) for name in registry}
HINTS = {name: hints_of(kind) for name, kind in KINDS.items()}
FIELDS = sorted({field.name for kind in KINDS.values() for field in dataclasses.fields(kind)})
SELECTIONS = ("layers=0", "layers=0-1", "heads=0-3", "heads=0/1+1/2", "roles=encoder", "names=*", "layers=-1")


def member(random: Random, name: str) -> str:
    """A text of the grammar: ``NAME:VALUE,FIELD=VALUE,...``, right or almost."""
    own = [field for field in dataclasses.fields(KINDS[name]) if field.init and field.name != "select"]
    parts: list[str] = []
    plain = True
    for place, field in enumerate(own):
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required or random.random() < 0.4:
            text = fitting(random, HINTS[name][field.name])
            plain = plain and not field.kw_only and place == len(parts) and random.random() < 0.5
            parts.append(text if plain else f"{field.name}={text}")
    if random.random() < 0.25:
        parts.append(random.choice([random.choice(SELECTIONS), f"{random.choice(FIELDS)}={value(random)}"]))
    return f"{name}:{','.join(parts)}" if parts else name


EDIT_CORPUS = (
    "threshold:0.1", "threshold:0.05,renormalize=true", "threshold:0.5,relative_to=row-maximum", "threshold:top=2",
    "threshold:top=0.5,renormalize=true", "threshold:mass=0.7", "threshold:1,relative_to=uniform", "gate:0", "gate:0.5",
    "gate:0,heads=0/1+1/2", "gate:0,heads=0-1", "gate:0,layers=-1", "uniform", "uniform:layers=0", "random-drop:0.5",
    "random-drop:0.2,seed=7,renormalize=true", "quantize:linear-slog-clamped-midval,bits=3", "hidden-threshold:0.3",
    "quantize:uniform-slog-clamped-mean,bits=2,scope=row,renormalize=true", "hidden-quantize:fixed-point,bits=8",
    "hidden-quantize:linear,bits=6,where=output", "quantize:lloyd-max,bits=2", "constant:stats", "offset:stats",
)  # fmt: skip
STAT_CORPUS = (
    "histogram", "histogram:rows=true", "mean", "moments", "majority", "extremes", "row-curves", "sample:count=2",
    "token-sparsity:bars=[0.05,0.5]", "token-table:2,bar=0.05", "values:layer_output",
    "values:moment=query,low=-3,high=3", "values:moment=weights,bins=7",
    "row-distance:[threshold:0.1]", "row-distance:['threshold:0.1','gate:0']",
)  # fmt: skip


def edits(random: Random) -> str:
    """A text for --edit."""
    kind = random.randrange(10)
    if kind == 0:
        return value(random)
    choose = [lambda: random.choice(EDIT_CORPUS), lambda: member(random, random.choice(list(EDITS)))]
    text = " then ".join(random.choice(choose)() for _ in range(random.choice([1, 1, 1, 2, 3])))
    return mutated(random, text) if kind < 4 else text


def stat(random: Random) -> str:
    """A text for --stats."""
    kind = random.randrange(10)
    if kind == 0:
        return random.choice([value(random), member(random, random.choice(list(EDITS)))])
    text = random.choice([random.choice(STAT_CORPUS), member(random, random.choice(list(STATS)))])
    return mutated(random, text) if kind < 4 else text


def option(random: Random, task: str) -> str:
    """A text for --option."""
    if task not in TASKS or random.random() < 0.1:
        return f"{random.choice(FIELDS)}={value(random)}"
    name = random.choice([field.name for field in dataclasses.fields(TASKS[task])])
    return f"{name}={fitting(random, hints_of(TASKS[task])[name])}"


COMMANDS = commands()
FLAGS: dict[str, dict[str, Flag]] = {name: _flags(kind) for name, kind in COMMANDS.items()}
HEAVY = {"rounds", "length", "output", "save", "config", "trust_remote_code", "model", "folder", "task", "edit"}
"""Flags that make a command run long or write elsewhere, and those that are given anyway."""


def command_line(random: Random, names: Sequence[str] = tuple(COMMANDS), model: str = "nowhere") -> list[str]:
    """The words of a command with a few flags, right or almost."""
    name = random.choice(names)
    flags = FLAGS[name]
    words = [name, {"ls": random.choice([*REGISTRIES, "models", "x"]), "show": "nowhere"}.get(name, model)]
    task = random.choice(list(TASKS))
    if random.random() < 0.05:
        task = mutated(random, task)
    if "task" in flags:
        words += ["--task", task]
    for _ in range(random.choice([0, 1, 1, 1, 1, 1, 2]) if "edit" in flags else 0):
        words += ["--edit", edits(random)]
    others: dict[str, Callable[[], str]] = {
        "stats": lambda: stat(random),
        "option": lambda: option(random, task),
        "train_option": lambda: option(random, task),
        "device": lambda: random.choice(["cpu", "cpu", "cuda", "hpu", "mps", "x", noise(random)]),
        "kind": lambda: random.choice(["auto", "saved", "masked-lm", "x", noise(random)]),
    }
    for _ in range(random.choice([0, 1, 2, 3])):
        flag = random.choice([flag for key, flag in flags.items() if key not in HEAVY])
        if flag.positional:
            continue
        word = mutated(random, flag.word) if random.random() < 0.03 else flag.word
        text = others[flag.key]() if flag.key in others else fitting(random, flag.hint)
        if random.random() < 0.1:
            text = mutated(random, text)
        words += [word] if flag.hint is bool else [f"{word}={text}"] if random.random() < 0.2 else [word, text]
    if "output" in flags:
        words += ["--output", "out"]
    if random.random() < 0.05:
        words.insert(random.randrange(1, len(words) + 1), value(random))
    if random.random() < 0.03:
        del words[random.randrange(len(words))]
    return [word for word in words if word not in ("-h", "--help")]  # help has a test of its own


def configuration(random: Random, name: str) -> bytes:
    """A YAML file for a command, right or almost."""
    flags = FLAGS[name]
    found: dict[Any, Any] = {}
    for _ in range(random.randrange(5)):
        key = random.choice([key for key in flags if key not in HEAVY] + (["edit"] if "edit" in flags else []))
        made = edits(random) if key == "edit" else fitting(random, flags[key].hint)
        kind = random.randrange(10)
        if kind == 0:
            made = random.choice(
                [None, 1, -1, 2**70, 0.5, float("nan"), True, [], [made, made], {made: made}, [[made]]]
            )
        found[mutated(random, key) if kind == 1 else key] = made
    content: bytes = yaml.dump(found, allow_unicode=True).encode(errors="surrogatepass")
    pieces = [b"&a ", b"*a", b"!!", b"[", b"{", b"? ", b"- ", b"\t", b"\0", b"\xff", b": ", b"#", b"'", b'"', b"\n"]
    for _ in range(random.choice([0, 0, 1, 2])):
        place = random.randrange(len(content) + 1)
        content = content[:place] + random.choice(pieces) + content[place + random.randrange(3) :]
    return content

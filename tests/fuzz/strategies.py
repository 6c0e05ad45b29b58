"""Hostile texts: what people write, with a slip, a swap, a bomb or plain noise in it."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from attrim.commands import commands
from attrim.commands.parsing import Flag, _flags
from attrim.core.registry import EDITS, FAMILIES, REGISTRIES, STATS, TASKS

NUMBERS = (
    "0", "1", "-1", "2", "3", "0.1", "1e-3", "-0.0", "1.0", "0x10", "1_000", "nan", "inf", "-inf", "1e999", "1e-999", "9" * 25,
    "9" * 5000, str(2**31), str(2**63 - 1), str(2**63), str(-(2**63)), "٣", "½", "1,5", "1/2", "1/0", "50%", "1e5", "+1", " 1 ", "",
)  # fmt: skip
PLAIN = (
    "true", "false", "yes", "null", "~", "none", "x", "all", "saved", "auto", "cpu", "hpu", "meta", "mps", "built-in", "float16",
    "bfloat16", "encoder", "cross", "*", "*.layer.0.*", "[", "[]", "[1, 2]", "[[1]]", '"', "'", '"x', "\\", "=", "a=b", "a=b=c",
    ":", ",", "+", "-", "--", "0-3", "3-0", "0-", "5/11", "5/", "/5", "0-99999999", "0-3+5", "layer/3", "then", "x then y",
    " then ", "é", "日本語", "\u202e", "\x1b[31m", "\0", "\udcff", "\n", "a\nb", "x" * 300, "x" * 5000, "%s", "{}", "$HOME", "`id`",
)  # fmt: skip
"""Values that parsers trip over. None begins with a slash, two dots or a tilde and a name: commands run with them."""

NOISE = st.text(max_size=12).map(lambda text: text.replace("/", "").replace("~", "").replace("..", ""))
NAMES = st.sampled_from([*EDITS, *STATS, *FAMILIES, *TASKS])
FIELDS = st.sampled_from(
    sorted(
        {name for registry in (EDITS, STATS) for kind in registry for name in registry[kind].__dataclass_fields__}
        | {"layers", "heads", "roles", "names", "selct", "bar", "seed", "split", "paragraphs", "label_order", "x"}
    )
)
VALUES = st.one_of(st.sampled_from(NUMBERS), st.sampled_from(PLAIN), NOISE)


@st.composite
def mutated(draw: Any, texts: Any) -> str:
    """A text, often with a character removed, doubled, replaced or swapped, or cut off."""
    text = draw(texts)
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2]))):
        place = draw(st.integers(0, max(0, len(text) - 1)))
        kind = draw(st.sampled_from(["remove", "double", "insert", "cut", "swap"]))
        if kind == "remove":
            text = text[:place] + text[place + 1 :]
        elif kind == "double":
            text = text[:place] + text[place : place + 1] * 2 + text[place + 1 :]
        elif kind == "insert":
            text = text[:place] + draw(st.sampled_from(list(":=,+-[]\"'\\ \0\n~0é"))) + text[place:]
        elif kind == "cut":
            text = text[:place]
        else:
            text = text[:place] + text[place : place + 2][::-1] + text[place + 2 :]
    return "" if text.startswith(("/", "..", "~")) else text


@st.composite
def member(draw: Any) -> str:
    """A text of the grammar: ``NAME:VALUE,FIELD=VALUE,...``, right or almost."""
    name = draw(NAMES)
    parts = draw(
        st.lists(st.one_of(VALUES, st.tuples(FIELDS, VALUES).map("=".join)), max_size=draw(st.sampled_from([1, 2, 5])))
    )
    return f"{name}:{','.join(parts)}" if parts else name


MEMBERS = mutated(st.one_of(member(), st.lists(member(), min_size=2, max_size=4).map(" then ".join), VALUES))
"""Texts for --edit and --stats."""

COMMANDS = commands()
FLAGS: dict[str, dict[str, Flag]] = {name: _flags(kind) for name, kind in COMMANDS.items()}
HEAVY = {"rounds", "length", "output", "save", "config", "trust_remote_code", "epochs", "steps", "model", "folder"}
"""Flags that make a command run long, write elsewhere, or have tests of their own."""


@st.composite
def command_line(draw: Any, names: tuple[str, ...] = tuple(COMMANDS), model: str = "nowhere") -> list[str]:
    """The words of a command with a few flags, right or almost."""
    name = draw(st.sampled_from(names))
    flags = FLAGS[name]
    words = [name]
    if name == "ls":
        words.append(draw(st.one_of(st.sampled_from([*REGISTRIES, "models"]), VALUES)))
    elif name == "show":
        words.append(draw(mutated(st.sampled_from(["nowhere", "runs/x", "c.yaml"]))))
    else:
        words.append(model)
    if "task" in flags and draw(st.booleans()):
        words += ["--task", draw(mutated(st.sampled_from(list(TASKS))))]
    for _ in range(draw(st.integers(0, 5))):
        flag = flags[draw(st.sampled_from([key for key in flags if key not in HEAVY]))]
        word = draw(mutated(st.just(flag.word))) if draw(st.integers(0, 5)) == 0 else flag.word
        value = draw(MEMBERS if flag.key in ("edit", "stats", "families") else mutated(VALUES))
        if flag.key in ("option", "train_option"):
            value = draw(st.tuples(FIELDS, VALUES).map("=".join))
        words += [] if flag.positional else [word] if flag.hint is bool else [word, value]
    if "output" in flags:
        words += ["--output", "out"]
    if draw(st.integers(0, 9)) == 0:
        place = draw(st.integers(1, len(words)))
        words.insert(place, draw(VALUES))
    if draw(st.integers(0, 19)) == 0:
        del words[draw(st.integers(0, len(words) - 1))]
    # Without its model a command might take a value for one, and help has a test of its own.
    return [word for word in words if word not in ("-h", "--help")]

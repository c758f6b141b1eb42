"""Leak components: what has to stay on one side of a split.

Two videos belong together when they agree in a group column (source, subject, date, ...) or hold the same
bytes. Belonging together is transitive: if a subject appears in two sources, both sources are one component.
"""

import hashlib
from collections.abc import Mapping, Sequence

from coldframe.probes.category import Category

_ID_LENGTH = 16  # hexadecimal digits; should two components ever collide, they are merged, which is the safe side


def leak_components(columns: Mapping[str, Sequence[str]], sha256: Sequence[str]) -> Category:
    """Leak component of every item.

    The name of a component is a digest of the column values and content digests in it. It does not depend on
    the order of the items or of the columns, nor on positions or paths.

    Args:
        columns: group columns by name, one text an item. An empty text says nothing and joins nothing.
        sha256: content digest of every item in hexadecimal, or empty.

    Returns:
        One component an item. An item without any key gets a component of its own.
    """
    keys = _keys_of_items({**columns, "sha256": sha256})
    parent: dict[tuple[str, str], tuple[str, str]] = {}
    for item in keys:
        for key in item:
            parent.setdefault(key, key)
            _join(parent, item[0], key)
    members: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for key in parent:
        members.setdefault(_root(parent, key), []).append(key)
    ids = {root: _digest(keys) for root, keys in members.items()}
    return Category.from_text([ids[_root(parent, item[0])] for item in keys])


def _keys_of_items(columns: Mapping[str, Sequence[str]]) -> list[list[tuple[str, str]]]:
    length = len(next(iter(columns.values())))
    keys: list[list[tuple[str, str]]] = [[] for _ in range(length)]
    for name in sorted(columns):
        for item, value in zip(keys, columns[name], strict=True):
            if value:
                item.append((name, value))
    return [item or [("", str(position))] for position, item in enumerate(keys)]


def _root(parent: dict[tuple[str, str], tuple[str, str]], key: tuple[str, str]) -> tuple[str, str]:
    while parent[key] != key:
        parent[key] = parent[parent[key]]
        key = parent[key]
    return key


def _join(parent: dict[tuple[str, str], tuple[str, str]], first: tuple[str, str], second: tuple[str, str]) -> None:
    low, high = sorted((_root(parent, first), _root(parent, second)))
    parent[high] = low


def _digest(keys: list[tuple[str, str]]) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(keys):
        for text in (name, value):
            raw = text.encode("utf-8", "backslashreplace")
            digest.update(b"%d:" % len(raw) + raw)
    return digest.hexdigest()[:_ID_LENGTH]

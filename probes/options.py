"""Options that several commands share, and what their text means."""

from coldframe.errors import UsageError
from coldframe.probes.labels import with_labels
from coldframe.probes.token_view import ShardedStore


def labelled(store: ShardedStore, labels_csv: str | None) -> ShardedStore:
    """`store`, with the columns of a CSV file if one is named."""
    return store if labels_csv is None else with_labels(store, labels_csv)


def numbers(text: str | None, name: str) -> tuple[float, ...]:
    """The numbers of an option such as `0.01,0.1,1`; none for an option that was not given."""
    if text is None:
        return ()
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"{name} is {text!r}; allowed are numbers with commas between them, such as 0.1,1.") from error
